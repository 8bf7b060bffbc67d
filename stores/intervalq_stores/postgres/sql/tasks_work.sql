-- `Work`, its second half: claim tasks.

-- intervalq._room: how many of the `wanted` tasks the sessions of a consumer may claim, if they may hold `most`.
-- One session at a time counts.
create or replace function intervalq._room(mine text, most bigint, wanted integer) returns integer
language plpgsql volatile
set search_path = pg_catalog, pg_temp
as $$
begin
    perform pg_advisory_xact_lock(intervalq._lock('c', mine));
    return greatest(0, least(wanted, most - (
        select count(*) from intervalq.sessions s join intervalq.tasks t on t.session = s.number
        where s.consumer = mine and s.gone is null
    ) - (
        select coalesce(sum(r.size), 0) from intervalq.ranges r
        join intervalq.sessions s on s.number = r.session where s.consumer = mine and s.gone is null
    )));
end
$$;


-- intervalq._first: line f, the first ready task of a queue from `since` on; nulls: there is none.
create or replace function intervalq._first(q text, since bigint, since_id uuid, now bigint) returns intervalq.line
language plpgsql volatile
set search_path = pg_catalog, pg_temp
as $$
declare
    l intervalq.line;
begin
    select 'f', t.id, q, t.ready into l.kind, l.id, l.queue, l.at from intervalq.tasks t
    where t.queue = q and t.priority = 0 and t.ready <= now
        and (t.ready, t.id) >= (
            coalesce(since, -9223372036854775808), coalesce(since_id, '00000000-0000-0000-0000-000000000000')
        )
    order by t.ready, t.id limit 1;
    return l;
end
$$;


-- intervalq._claim_ready: claim ready tasks of a queue: first those from `since` on, then those before.
--   who, me: the session; ends: when the lease ends; again: when they are ready again, unless the session lapses;
--   is_ranked: some have priorities, whose order then decides
create or replace function intervalq._claim_ready(
    q text, wanted integer, since bigint, since_id uuid, who text, me integer, begins integer, ends bigint,
    again bigint, is_ranked boolean, now bigint
) returns setof intervalq.line
language plpgsql volatile
set search_path = pg_catalog, pg_temp
as $$
declare
    start bigint := coalesce(since, -9223372036854775808);
    start_id uuid := coalesce(since_id, '00000000-0000-0000-0000-000000000000');
    left_over integer := wanted;
    x record;
    n integer;
begin
    if is_ranked then
        return query select c.* from intervalq._claim_ranked(q, wanted, who, me, begins, ends, again, now) as c;
        return;
    end if;
    if wanted < 16 then
        -- Not always the first ones: a few tasks that nobody completes must not block the rest.
        select t.ready, t.id into x from intervalq.tasks t
        where t.queue = q and t.priority = 0 and t.ready <= now and (t.ready, t.id) >= (start, start_id)
        order by t.ready, t.id offset floor(random() * 16) limit 1;
        start := coalesce(x.ready, start);
        start_id := coalesce(x.id, start_id);
    end if;
    loop
        return query
        with picked as materialized (
            select t.ctid as spot from intervalq.tasks t
            where t.queue = q and t.priority = 0 and t.ready <= now and (t.ready, t.id) >= (start, start_id)
            order by t.ready, t.id limit left_over for update skip locked
        )
        update intervalq.tasks t set
            version = t.version + 1, session = me, until = ends, ready = again,
            claims = t.claims + 1, attempt = t.attempt + (begins > t.alone::integer)::integer,
            begun = begins > t.alone::integer, modified = now
        from picked p where t.ctid = p.spot
        returning 't', coalesce(t.own, t.id::text), t.version, t.queue, t.at, t.json, t.key,
            t.place, t.waiting, who, t.until, t.claims, t.attempt, t.error, t.created, t.modified,
            t.dedupe, t.dedupe_for, t.begun, t.alone, t.cancelled, t.progress, t.priority, t.keep_for, t.errors,
            coalesce(t.per_key, 1), coalesce(t.follow_up, ''), 0;
        get diagnostics n = row_count;
        left_over := left_over - n;
        -- Then those before: tasks that came back, or were skipped.
        exit when left_over <= 0 or start = -9223372036854775808;
        start := -9223372036854775808;
        start_id := '00000000-0000-0000-0000-000000000000';
    end loop;
end
$$;


-- intervalq._stand_idle: from now on the session is woken when a task of these queues is inserted, or is handed up to
-- `wanted` of them (null: none).
create or replace function intervalq._stand_idle(me integer, queues text[], wanted integer, lease bigint) returns void
language plpgsql volatile
set search_path = pg_catalog, pg_temp
as $$
declare
    q text;
begin
    -- Concurrent inserts don't see this session yet, nor are they visible here: wait for them briefly; the caller looks
    -- again.
    foreach q in array queues loop
        for i in 1 .. 20 loop
            exit when pg_try_advisory_xact_lock(intervalq._queue_lock(q));
            perform pg_sleep(0.0005);
        end loop;
    end loop;
    insert into intervalq.idle (session, queues, wanted, lease) values (me, queues, wanted, lease)
    on conflict (session) do update set
        queues = excluded.queues, wanted = excluded.wanted, lease = excluded.lease;
end
$$;


-- intervalq._next: line n, the time until the next task of these queues is ready; no line: there is no such task.
--   ahead: of `_read_clock`; while the clock catches up, the session asks again within a second
create or replace function intervalq._next(queues text[], ahead bigint, now bigint) returns setof intervalq.line
language plpgsql volatile
set search_path = pg_catalog, pg_temp
as $$
declare
    q text;
    x bigint;
    l intervalq.line;
begin
    l.kind := 'n';
    foreach q in array queues loop
        select min(c.ready) into x from unnest(intervalq._levels(q)) as u (p), lateral (
            select t.ready from intervalq.tasks t
            where t.queue = q and t.priority = u.p and t.ready > now order by t.ready limit 1
        ) as c;
        l.until := least(l.until, x - now, case when ahead > 0 then 1000000 end);
    end loop;
    if l.until is not null then
        return next l;
    end if;
end
$$;


-- intervalq._claim: claim tasks of several queues, ordinary and plain ones. `work` describes the parameters and the
-- answer; me: the number of the session `who`; ahead: of `_read_clock`.
create or replace function intervalq._claim(
    who text, me integer, queues text[], wanted integer, lease bigint, most bigint, idle boolean,
    sinces bigint[], since_ids uuid[], begins integer, ahead bigint, now bigint
) returns setof intervalq.line
language plpgsql volatile
set search_path = pg_catalog, pg_temp
as $$
declare
    share constant integer := (wanted + cardinality(queues) - 1) / cardinality(queues);
    plain_first constant boolean := random() < 0.5;
    left_over integer := wanted;
    total integer;
    n integer;
    i integer;
    is_ranked boolean;
    is_plain boolean;
    l intervalq.line;
begin
    for look in 1 .. 2 loop
        -- First an equal share of each queue, then whatever else there is.
        for turn in 1 .. least(2, cardinality(queues)) loop
            for i, is_ranked in
                select u.i, exists (
                    select from intervalq.tasks t where t.queue = u.q and t.priority <> 0 and t.ready is not null
                ) from unnest(queues) with ordinality as u (q, i) order by random()
            loop
                total := case when turn = 1 then least(share, left_over) else left_over end;
                foreach is_plain in array array[plain_first, not plain_first] loop
                    exit when total <= 0;
                    if is_plain then
                        for l in select c.* from intervalq._claim_ranges(
                            queues[i], total, me, begins, lease is not null, now
                        ) as c loop
                            return next l;
                            total := total - l.claims;
                            left_over := left_over - l.claims;
                        end loop;
                        continue when lease is null;
                    end if;
                    l := null;
                    if total < 16 and not is_ranked then
                        l := intervalq._first(queues[i], sinces[i], since_ids[i], now);
                        if l.kind is not null then
                            return next l;
                        end if;
                    end if;
                    return query select c.* from intervalq._claim_ready(
                        queues[i], total, coalesce(l.at, sinces[i]), coalesce(l.id::uuid, since_ids[i]), who, me,
                        begins, now + lease, case when lease > 0 then now + lease end, is_ranked, now
                    ) as c;
                    get diagnostics n = row_count;
                    total := total - n;
                    left_over := left_over - n;
                end loop;
            end loop;
            exit when left_over <= 0;
        end loop;
        delete from intervalq.idle d where d.session = me and left_over < _claim.wanted;
        exit when left_over < wanted or look = 2;
        if exists (select from intervalq.heads h where h.queue = any (queues) and h.moved) then
            perform intervalq._sweep(now);
        end if;
        exit when not idle;
        -- For a consumer with a limit, its claims are counted, by one session at a time.
        perform intervalq._stand_idle(me, queues, case when most is null then wanted end, lease);
    end loop;
    if left_over > 0 then
        return query select x.* from intervalq._next(queues, ahead, now) as x;
    end if;
end
$$;


-- intervalq.work: `rules.Work`.
--   ids, versions: tasks to delete
--   keep_fors, durations, results: of `_done`, for these tasks; null: their ends say nothing about outcomes
--   parts: of `_settle`, settled one by one; null: none
--   finished: of `_finish`; null: none
--   sinces, since_ids: for each queue, where the last claim ended: nearly everything before is claimed, or dead rows.
--     Null: look from the start, which finds everything.
--   begins, begun: see `rules.Work`
-- Returns lines: t, a claimed task; f, the first ready task, by queue, id and at; r, a range, with its part as place,
-- its low and high as at and until, its values joined in json, and its numbers in key, unless none is left out; n, the
-- time until the next task is ready, as until; and last h, with the store's clock as created, and as claims null, 0 if
-- the session is gone, or 1 if json has what was lost.
create or replace function intervalq.work(
    who text, ids uuid[], versions integer[], keep_fors bigint[], durations bigint[], results text, parts jsonb,
    finished jsonb, queues text[], wanted integer, lease bigint, most bigint, idle boolean,
    sinces bigint[], since_ids uuid[], begins integer, begun uuid[], now bigint
) returns setof intervalq.line
language plpgsql volatile
set search_path = pg_catalog, pg_temp
set lock_timeout = '4s'
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set enable_hashjoin = off
set enable_mergejoin = off
set enable_bitmapscan = off
as $$
declare
    me integer;
    mine text;
    ahead bigint := 0;           -- see `_read_clock`
    since bigint;
    is_read constant boolean := now is null;
    settled record;
    l intervalq.line;
begin
    select s.number, s.consumer into me, mine from intervalq.sessions s where s.id = who and s.gone is null;
    now := intervalq._now(now);
    -- A call would cost more than this look, which usually shows that there is nothing to do.
    if is_read and not exists (
        select from intervalq.clock c
        where now between c.last_now - 1000000 and c.last_now + 1000000 and now >= c.since + c.behind
    ) then
        select c.ahead, c.since into ahead, since from intervalq._read_clock(now) as c;
    end if;

    l.kind := 'h';
    l.created := now;
    l.claims := case when me is null then 0 end;
    if ids is not null or parts is not null or finished is not null then
        settled := intervalq._settle_all(ids, versions, keep_fors, durations, results, parts, finished, begun, me, now);
        if l.claims = 0 or settled.lost <> '{}' or settled.lost_ranges <> '{}' then
            l.claims := coalesce(l.claims, 1);
            l.json := json_build_object('lost', settled.lost, 'ranges', settled.lost_ranges);
        end if;
    end if;
    if cardinality(begun) > 0 and me is not null then
        update intervalq.tasks t set attempt = t.attempt + 1, begun = true
        where t.id = any (work.begun) and t.session is not distinct from me and not t.begun;
    end if;

    if me is not null and cardinality(queues) > 0 and wanted > 0 then
        if most is not null then
            wanted := intervalq._room(mine, most, wanted);
        end if;
        if ahead > 0 and wanted > 0 then
            perform intervalq._catch_up(queues, wanted, now, ahead, since);
        end if;
        if wanted > 0 then
            return query select c.* from intervalq._claim(
                who, me, queues, wanted, lease, most, idle, sinces, since_ids, begins, ahead, now
            ) as c;
        end if;
        if lease <= 0 and wanted > 0 then
            -- Ready again at once, but not for this same claim.
            update intervalq.tasks t set ready = now + lease
            where t.session = me and t.ready is null and t.until = now + lease and t.modified = now;
        end if;
    end if;
    if ids is not null or parts is not null or finished is not null then
        if settled.woken <> '{}' then
            perform intervalq._wake(settled.woken);
        end if;
    end if;
    return next l;
end
$$;
