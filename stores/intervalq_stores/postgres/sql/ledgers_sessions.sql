-- Sessions of ledgers, and the ledger itself.

create or replace function intervalq.ledger_beat(
    named text, me text, expiry bigint, now bigint
) returns setof intervalq.ledger_line
language plpgsql volatile
set search_path = pg_catalog, pg_temp
set lock_timeout = '4s'
as $$
declare
    l intervalq.ledgers;
begin
    now := intervalq._ledger_now(now);
    l := intervalq._ledger(named, true, now);
    perform intervalq._ledger_renew(l.number, me, now + expiry, now, 0, 0);
    return next intervalq._ledger_head(l, now);
end
$$;


create or replace function intervalq.ledger_leave(
    named text, me text, now bigint
) returns setof intervalq.ledger_line
language plpgsql volatile
set search_path = pg_catalog, pg_temp
set lock_timeout = '4s'
as $$
declare
    l intervalq.ledgers;
begin
    now := intervalq._ledger_now(now);
    l := intervalq._ledger(named, false, now);
    if l.number is not null then
        perform from intervalq.ledger_sessions s where s.ledger = l.number and s.session = me for update;
        perform intervalq._ledger_end(l.number, me, now);
    end if;
    return next intervalq._ledger_head(l, now);
end
$$;


-- intervalq.ledger_set: `rules.Cancel` if `cancel` isn't null, else `rules.Expire`.
create or replace function intervalq.ledger_set(
    named text, cancel boolean, expiry bigint, now bigint
) returns setof intervalq.ledger_line
language plpgsql volatile
set search_path = pg_catalog, pg_temp
set lock_timeout = '4s'
as $$
declare
    l intervalq.ledgers;
begin
    now := intervalq._ledger_now(now);
    l := intervalq._ledger(named, false, now);
    if l.number is not null then
        update intervalq.ledgers x
        set cancelled = coalesce(cancel, x.cancelled),
            expires = case when cancel is null then expiry else x.expires end
        where x.number = l.number and x.name = named returning x.* into l;
    end if;
    return next intervalq._ledger_head(l, now);
end
$$;


-- intervalq.ledger_drop: `rules.Drop`. It takes no longer for many rows: `ledger_sweep` removes them.
create or replace function intervalq.ledger_drop(named text, now bigint) returns setof intervalq.ledger_line
language plpgsql volatile
set search_path = pg_catalog, pg_temp
set lock_timeout = '4s'
as $$
declare
    l intervalq.ledgers;
    head intervalq.ledger_line;
begin
    now := intervalq._ledger_now(now);
    l := intervalq._ledger(named, false, now);
    update intervalq.ledgers x set name = null, dropped = clock_timestamp()
    where x.number = l.number and x.name = named;
    head := intervalq._ledger_head(l, now);
    head.attempt := found::integer;
    return next head;
end
$$;


-- intervalq.ledger_sweep: remove up to `most` rows of dropped ledgers, and return how many. A ledger's own row stays
-- for a minute, because a command that began before may still write some.
create or replace function intervalq.ledger_sweep(most integer) returns bigint
language plpgsql volatile
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
as $$
declare
    l intervalq.ledgers;
    n bigint := 0;
    removed bigint;
begin
    for l in
        select x.* from intervalq.ledgers x where x.name is null
        order by x.number limit 8 for update skip locked
    loop
        delete from intervalq.ledger_rows r
        where r.ctid = any (array(
            select x.ctid from intervalq.ledger_rows x where x.ledger = l.number limit most - n
        ));
        get diagnostics removed = row_count;
        n := n + removed;
        exit when n >= most;
        if l.dropped < clock_timestamp() - interval '1 minute' then
            delete from intervalq.ledger_sessions s where s.ledger = l.number;
            delete from intervalq.ledgers x where x.number = l.number;
        end if;
    end loop;
    return n;
end
$$;
