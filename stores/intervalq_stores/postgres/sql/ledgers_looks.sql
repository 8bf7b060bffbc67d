-- Looks: rows, counts and names of ledgers.

-- intervalq.ledger_look: `rules.Look`. The lines are in the order of their keys; `kind` is how a row is shown.
create or replace function intervalq.ledger_look(
    named text, after text, most bigint, now bigint
) returns setof intervalq.ledger_line
language plpgsql volatile
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
as $$
declare
    l intervalq.ledgers;
    page text[];
begin
    now := intervalq._ledger_now(now);
    select x.* into l from intervalq.ledgers x
    where x.name = named and (x.expires is null or x.expires > now);
    return next intervalq._ledger_head(l, now);
    page := array(
        select r.key from intervalq.ledger_rows r
        where r.ledger = l.number and r.key > after order by r.key limit most
    );
    return query
        select x.* from intervalq._ledger_shown(l.number, page, now) as x order by x.key collate "C";
end
$$;


-- intervalq.ledger_count: `rules.Count`. The lines are numbers, in `attempt`, and `kind` says of what.
create or replace function intervalq.ledger_count(named text, now bigint) returns setof intervalq.ledger_line
language plpgsql volatile
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
as $$
declare
    l intervalq.ledgers;
begin
    now := intervalq._ledger_now(now);
    select x.* into l from intervalq.ledgers x
    where x.name = named and (x.expires is null or x.expires > now);
    return next intervalq._ledger_head(l, now);
    if l.number is null then
        return;
    end if;
    return query
        with alive as (
            select s.session from intervalq.ledger_sessions s
            where s.ledger = l.number and s.lapses > now
        ), open as (
            select case
                when a.session is not null then intervalq._ledger_stage(r.stage)
                when r.stage = 's' then 'unknown'
                else 'free'
            end as shown
            from intervalq.ledger_rows r left join alive a on a.session = r.session
            where r.ledger = l.number and r.session is not null
        ), ended as (
            select coalesce(sum(s.done), 0) as done, coalesce(sum(s.failed), 0) as failed
            from intervalq.ledger_sessions s where s.ledger = l.number
        ), counted (kind, number) as (
            select o.shown, count(*) from open o group by o.shown
            union all select 'sessions', count(*) from alive
            union all select 'done', e.done + l.done from ended e
            union all select 'failed', e.failed + l.failed from ended e
            union all select 'created', l.created
            union all select 'expires', l.expires
        )
        select c.kind, null::text, c.number::bigint, null::text, null::bigint from counted c;
end
$$;


create or replace function intervalq.ledger_names() returns setof text
language sql volatile
set search_path = pg_catalog, pg_temp
as $$
    select l.name from intervalq.ledgers l
    where l.name is not null and (l.expires is null or l.expires > intervalq._ledger_now(null))
    order by l.name;
$$;
