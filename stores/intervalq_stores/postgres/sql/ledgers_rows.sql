-- Rows: claim, start, record, release and forget them.

-- intervalq._ledger_judge: the verdicts about rows for a session that doesn't hold them (`rules._verdict`), and `own`
-- for rows that it holds. A row that may be claimed is `free`; a key without a row has no line.
create or replace function intervalq._ledger_judge(
    l integer, keys text[], me text, again boolean, now bigint
) returns setof intervalq.ledger_line
language sql stable
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
as $$
    select case
            when r.session is null then case r.stage when 'd' then 'done' else 'failed' end
            when r.session = me then 'own'
            when exists (
                select from intervalq.ledger_sessions s
                where s.ledger = l and s.session = r.session and s.lapses > now
            ) then 'busy'
            when r.stage = 's' and not again then 'unknown'
            else 'free'
        end,
        r.key, r.attempt, case when r.session is null then r.value end, r.at
    from intervalq.ledger_rows r where r.ledger = l and r.key = any (keys);
$$;


-- intervalq._ledger_claim_new: claim the keys that have no row yet, and return them.
create or replace function intervalq._ledger_claim_new(
    number integer, keys text[], s "char", me text, now bigint
) returns text[]
language plpgsql volatile
set search_path = pg_catalog, pg_temp
as $$
declare
    claimed text[];
begin
    with new as (
        insert into intervalq.ledger_rows (ledger, key, stage, session, attempt, at)
        select number, u.key, s, me, 1, now
        from (select distinct k collate "C" from unnest(keys) as k) as u (key)
        where not exists (select from intervalq.ledger_rows r where r.ledger = number and r.key = u.key)
        order by u.key
        on conflict do nothing
        returning ledger_rows.key
    )
    select coalesce(array_agg(new.key), '{}') into claimed from new;
    return claimed;
end
$$;


-- intervalq.ledger_claim: `rules.Claim`. A line's kind is mine, busy, unknown, done or failed.
create or replace function intervalq.ledger_claim(
    named text, me text, expiry bigint, keys text[], started boolean, again boolean, now bigint
) returns setof intervalq.ledger_line
language plpgsql volatile
set search_path = pg_catalog, pg_temp
set lock_timeout = '4s'
set enable_seqscan = off
as $$
declare
    l intervalq.ledgers;
    s constant "char" := case when started then 's' else 'c' end;
    todo text[] := keys;
    held text[];
    j intervalq.ledger_line;
    free text[];
    answered text[];
begin
    now := intervalq._ledger_now(now);
    l := intervalq._ledger(named, true, now);
    return next intervalq._ledger_head(l, now);
    for turn in 1..10 loop
        exit when cardinality(todo) = 0;
        if not l.cancelled then
            answered := intervalq._ledger_claim_new(l.number, todo, s, me, now);
            return query select 'mine', k, 1::bigint, null::text, null::bigint from unnest(answered) as k;
            todo := array(select k from unnest(todo) as k except select k from unnest(answered) as k);
            exit when cardinality(todo) = 0;
        end if;
        -- Only rows that have not ended: ended ones don't change.
        held := array(
            select r.key from intervalq.ledger_rows r
            where r.ledger = l.number and r.key = any (todo) and r.session is not null and r.session <> me
            order by r.key for update
        );
        free := '{}';
        answered := '{}';
        for j in select x.* from intervalq._ledger_judge(l.number, todo, me, again, now) as x loop
            if j.kind = 'own' then
                j.kind := 'mine';
            elsif j.kind = 'free' and l.cancelled then
                j.kind := 'busy';
                j.attempt := 0;
            elsif j.kind = 'free' then
                if j.key = any (held) then
                    free := free || j.key;
                    answered := answered || j.key;
                end if;
                continue;  -- a row that nobody holds appeared meanwhile: try again
            end if;
            return next j;
            answered := answered || j.key;
        end loop;
        if cardinality(free) > 0 then
            return query
                update intervalq.ledger_rows r set stage = s, session = me, attempt = r.attempt + 1, at = now
                where r.ledger = l.number and r.key = any (free)
                returning 'mine', r.key, r.attempt::bigint, null::text, null::bigint;
        end if;
        todo := array(select k from unnest(todo) as k except select k from unnest(answered) as k);
        if l.cancelled then  -- the remaining keys have no row
            return query select 'busy', k, 0::bigint, null::text, null::bigint from unnest(todo) as k;
            todo := '{}';
        end if;
    end loop;
    if cardinality(todo) > 0 then
        raise exception 'rows of this ledger came and went all the time' using errcode = '40001';
    end if;
    perform intervalq._ledger_renew(l.number, me, now + expiry, now, 0, 0);
end
$$;


-- intervalq.ledger_start: `rules.Start`. Keys without a line are busy.
create or replace function intervalq.ledger_start(
    named text, me text, expiry bigint, keys text[], now bigint
) returns setof intervalq.ledger_line
language plpgsql volatile
set search_path = pg_catalog, pg_temp
set lock_timeout = '4s'
set enable_seqscan = off
as $$
declare
    l intervalq.ledgers;
    j intervalq.ledger_line;
begin
    now := intervalq._ledger_now(now);
    l := intervalq._ledger(named, false, now);
    return next intervalq._ledger_head(l, now);
    if l.number is null then
        return;
    end if;
    perform from intervalq.ledger_rows r
    where r.ledger = l.number and r.key = any (keys) and r.session = me order by r.key for update;
    if not l.cancelled then
        update intervalq.ledger_rows r set stage = 's', at = now
        where r.ledger = l.number and r.key = any (keys) and r.session = me and r.stage = 'c';
    end if;
    for j in select x.* from intervalq._ledger_judge(l.number, keys, me, false, now) as x loop
        if j.kind = 'own' and not l.cancelled then
            j.kind := 'mine';
        elsif j.kind in ('own', 'free') then
            continue;
        end if;
        return next j;
    end loop;
    perform intervalq._ledger_renew(l.number, me, now + expiry, now, 0, 0);
end
$$;


-- intervalq.ledger_record: `rules.Record`. A line's kind is kept, for what is written here, done or failed.
-- The keys must be distinct.
create or replace function intervalq.ledger_record(
    named text, me text, expiry bigint, keys text[], jsons text[], errors boolean[], now bigint
) returns setof intervalq.ledger_line
language plpgsql volatile
set search_path = pg_catalog, pg_temp
set lock_timeout = '4s'
set enable_seqscan = off
as $$
declare
    l intervalq.ledgers;
    j intervalq.ledger_line;
    kept text[] := '{}';
    is_done bigint := 0;
    is_failed bigint := 0;
begin
    now := intervalq._ledger_now(now);
    l := intervalq._ledger(named, true, now);
    return next intervalq._ledger_head(l, now);
    for j in
        insert into intervalq.ledger_rows as r (ledger, key, stage, session, attempt, at, value)
        select l.number, u.key, case when u.error then 'f' else 'd' end::"char", null, 1, now, u.json
        from unnest(keys, jsons, errors) as u (key, json, error)
        order by u.key collate "C"
        on conflict (ledger, key) do update
        set stage = excluded.stage, session = null, at = excluded.at, value = excluded.value
        where r.session is not null
        returning r.stage::text, r.key, r.attempt::bigint, null::text, null::bigint
    loop
        if j.kind = 'd' then
            is_done := is_done + 1;
        else
            is_failed := is_failed + 1;
        end if;
        j.kind := 'kept';
        return next j;
        kept := kept || j.key;
    end loop;
    if cardinality(kept) < cardinality(keys) then
        -- They have been locked since the statement above, so none is missing.
        keys := array(select k from unnest(keys) as k except select k from unnest(kept) as k);
        return query select x.* from intervalq._ledger_judge(l.number, keys, me, false, now) as x;
    end if;
    perform intervalq._ledger_renew(l.number, me, now + expiry, now, is_done, is_failed);
end
$$;


-- intervalq.ledger_release: `rules.Release`. The first line's `key` is how many were removed.
create or replace function intervalq.ledger_release(
    named text, me text, keys text[], now bigint
) returns setof intervalq.ledger_line
language plpgsql volatile
set search_path = pg_catalog, pg_temp
set lock_timeout = '4s'
set enable_seqscan = off
as $$
declare
    l intervalq.ledgers;
    head intervalq.ledger_line;
    n bigint := 0;
begin
    now := intervalq._ledger_now(now);
    l := intervalq._ledger(named, false, now);
    head := intervalq._ledger_head(l, now);
    if l.number is not null then
        perform from intervalq.ledger_rows r
        where r.ledger = l.number and r.key = any (keys) and r.session = me order by r.key for update;
        delete from intervalq.ledger_rows r
        where r.ledger = l.number and r.key = any (keys) and r.session = me;
        get diagnostics n = row_count;
    end if;
    head.key := n::text;
    return next head;
end
$$;


-- intervalq.ledger_forget: `rules.Forget`. The first line's `key` is how many were removed.
create or replace function intervalq.ledger_forget(
    named text, keys text[], kinds text[], now bigint
) returns setof intervalq.ledger_line
language plpgsql volatile
set search_path = pg_catalog, pg_temp
set lock_timeout = '4s'
set enable_seqscan = off
as $$
declare
    l intervalq.ledgers;
    head intervalq.ledger_line;
    held text[];
    n bigint := 0;
    d bigint;
    f bigint;
begin
    now := intervalq._ledger_now(now);
    l := intervalq._ledger(named, false, now);
    head := intervalq._ledger_head(l, now);
    if l.number is not null then
        held := array(
            select r.key from intervalq.ledger_rows r
            where r.ledger = l.number and r.key = any (keys) order by r.key for update
        );
        with gone as (
            delete from intervalq.ledger_rows r
            where r.ledger = l.number and r.key = any (array(
                select x.key from intervalq._ledger_shown(l.number, held, now) as x where x.kind = any (kinds)
            ))
            returning r.stage
        )
        select count(*), count(*) filter (where g.stage = 'd'), count(*) filter (where g.stage = 'f')
        into n, d, f from gone g;
        if d + f > 0 then
            update intervalq.ledgers x set done = x.done - d, failed = x.failed - f where x.number = l.number;
        end if;
    end if;
    head.key := n::text;
    return next head;
end
$$;


-- intervalq._ledger_shown: how rows are shown (`rules._shown`).
create or replace function intervalq._ledger_shown(l integer, keys text[], now bigint)
returns setof intervalq.ledger_line
language sql stable
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
as $$
    select case
            when r.session is null or exists (
                select from intervalq.ledger_sessions s
                where s.ledger = l and s.session = r.session and s.lapses > now
            ) then intervalq._ledger_stage(r.stage)
            when r.stage = 's' then 'unknown'
            else 'free'
        end,
        r.key, r.attempt, r.value, r.at
    from intervalq.ledger_rows r where r.ledger = l and r.key = any (keys);
$$;
