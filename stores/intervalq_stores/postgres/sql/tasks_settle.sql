-- `Work`, its first half: settle what a session has claimed.

-- intervalq._lock_claims: lock what ends or changes of a session's claims may touch, in the order of `_lock_tasks`.
-- Returns the locks of lines that it holds.
--   ids: tasks that are to end or to begin; parts: of `_settle`; null: none
create or replace function intervalq._lock_claims(ids uuid[], parts jsonb, me integer) returns bigint[]
language plpgsql volatile
set search_path = pg_catalog, pg_temp
as $$
declare
    mine uuid[];
    tells boolean;
    locks bigint[];
begin
    select coalesce(array_agg(distinct r.id), '{}'), bool_or(r.follow_up is not null),
        coalesce(array_agg(l.l) filter (where r.key is not null), '{}')
    into mine, tells, locks
    from (
        select u.u as id, null as queue from unnest(ids) as u (u)
        union all select (e ->> 0)::uuid, e ->> 2 from jsonb_array_elements(parts) as e
    ) as d, lateral (select x.* from intervalq.tasks x where x.id = d.id limit 1) as r,
        lateral (values (r.queue), (d.queue)) as w (queue),
        lateral (select intervalq._lock('k', w.queue, r.key)) as l (l)
    where r.session = me and w.queue is not null;
    perform intervalq._lock_lines(locks);
    if tells or cardinality(mine) > 1 then
        perform intervalq._lock_tasks(mine, '{}');
    end if;
    return locks;
end
$$;


-- intervalq._settle: settle, one by one, the claims that need more than a delete.
--   parts: in order, [uuid, version, null, kept] to delete, or as `_change` takes them; a session of null has no claims
--   locks: of `_lock_claims`
-- Returns the UUIDs of those that were lost, and the queues of tasks that became ready.
create or replace function intervalq._settle(
    parts jsonb, locks bigint[], me integer, now bigint, out lost uuid[], out woken text[]
)
language plpgsql volatile
set search_path = pg_catalog, pg_temp
as $$
declare
    p jsonb;
    t intervalq.tasks;
    after record;
    keeps boolean;
begin
    lost := '{}';
    woken := '{}';
    for p in select e from jsonb_array_elements(parts) as e loop
        select r.* into t from intervalq.tasks r where r.id = (p ->> 0)::uuid and r.session = me for update;
        keeps := coalesce((p ->> 8)::boolean, false);
        if not found or (t.version <> (p ->> 1)::bigint and (keeps or not t.cancelled)) then
            lost := lost || (p ->> 0)::uuid;
        elsif t.key is not null and intervalq._lock('k', t.queue, t.key) <> all (locks) then
            raise exception 'a task was moved at the same moment' using errcode = '40001';
        elsif t.cancelled and not keeps then
            -- It ends the work on a cancelled task, whatever else it says of the task.
            if jsonb_array_length(p) > 4 or t.version <> (p ->> 1)::bigint then
                lost := lost || t.id;
            end if;
            woken := woken || intervalq._remove(
                t, 'cancelled', p -> case when jsonb_array_length(p) > 4 then 12 else 3 end, me, now, true
            );
        elsif jsonb_array_length(p) = 4 then
            woken := woken || intervalq._remove(t, 'done', p -> 3, me, now, true);
        else
            after := intervalq._change(t, p, me, now);
            t := after.t;
            woken := woken || after.woken || case when t.ready <= now + 5000000 then t.queue end;
        end if;
    end loop;
    woken := array_remove(woken, null);
end
$$;


-- intervalq._read_clock: record what the clock reads, to the second. `ahead`: the clock was set back by this much at
-- `since`, and has not caught up; 0: it was not.
create or replace function intervalq._read_clock(now bigint, out ahead bigint, out since bigint)
language plpgsql volatile
set search_path = pg_catalog, pg_temp
as $$
declare
    c intervalq.clock;
    before bigint;
begin
    select x.* into c from intervalq.clock x;
    before := c.last_now;
    -- In a transaction with one snapshot, writing a row that others have written meanwhile would abort it.
    if intervalq._fresh() and now not between before - 1000000 and before + 1000000 then
        update intervalq.clock x set
            last_now = now,
            since = case when now < x.last_now then now else x.since end,
            -- Tasks that waited before an earlier step wait for what is left of both steps.
            behind = case when now > x.last_now then x.behind else
                x.last_now - now + case when x.last_now < x.since + x.behind then x.behind else 0 end
            end
        where x.one = (select y.one from intervalq.clock y where y.last_now = before for update skip locked)
        returning x.* into c;
        if now < before and c.since = now then
            update intervalq.beats b set beaten = now where b.number in (
                select x.number from intervalq.beats x where x.beaten > now order by x.number for update skip locked
            );
            update intervalq.marks m set until = m.until - (before - now) where (m.queue, m.key) in (
                select x.queue, x.key from intervalq.marks x where x.until > now order by x.until
                for update skip locked
            );
        end if;
    end if;
    ahead := case when now < c.since + c.behind then c.behind else 0 end;
    since := c.since;
end
$$;


-- intervalq._catch_up: tasks that were written before the clock was set back, and would be ready without that step,
-- are ready now: up to `wanted` tasks of each queue, before they are claimed.
create or replace function intervalq._catch_up(queues text[], wanted integer, now bigint, ahead bigint, since bigint)
returns void
language plpgsql volatile
set search_path = pg_catalog, pg_temp
as $$
declare
    q text;
begin
    foreach q in array queues loop
        with late as materialized (
            select c.spot from unnest(intervalq._levels(q)) as u (p), lateral (
                select t.ctid as spot from intervalq.tasks t
                where t.queue = q and t.priority = u.p and t.ready > now and t.ready <= now + ahead
                    and (t.modified < since or t.modified > now + 1000000)
                order by t.ready, t.id limit wanted for update skip locked
            ) as c
        )
        update intervalq.tasks t set ready = now, at = least(t.at, now), until = least(t.until, now)
        from late l where t.ctid = l.spot;
    end loop;
end
$$;


-- intervalq._settle_all: settle the claims that `work` is given, see there.
-- Returns what was lost, ranges by their number in `finished`, and the queues of tasks that became ready.
create or replace function intervalq._settle_all(
    ids uuid[], versions integer[], keep_fors bigint[], durations bigint[], results text, parts jsonb, finished jsonb,
    begun uuid[], me integer, now bigint, out lost uuid[], out lost_ranges integer[], out woken text[]
)
language plpgsql volatile
set search_path = pg_catalog, pg_temp
as $$
declare
    done uuid[] := '{}';
    locks bigint[];
    ended text[];
    z record;
begin
    lost := '{}';
    lost_ranges := '{}';
    woken := '{}';
    -- A single task, and several that need no more than a delete, are locked in the right order anyway.
    if me is not null and (
        parts is not null or cardinality(begun) > 0 and cardinality(ids) > 0 or cardinality(keep_fors) > 1
        or cardinality(ids) > 1 and exists (
            select from intervalq.tasks t where t.id = any (ids)
                and (t.key is not null or t.dedupe is not null or t.cancelled or t.keep_for > 0 and keep_fors is null)
        )
    ) then
        locks := intervalq._lock_claims(ids || begun, parts, me);
    end if;
    if me is not null and keep_fors is not null then
        select x.done, x.ended into done, ended
        from intervalq._done(ids, versions, keep_fors, durations, results, me, now) as x;
    elsif cardinality(ids) > 0 and me is not null then
        -- The index gives, and so the statement locks, these tasks in the order of their ids. `is not distinct`: the
        -- planner must not scan all claims of the session. `is true`: it must not compare each task with each.
        with gone as (
            delete from intervalq.tasks t where t.id = any (ids) and ((t.id, t.version) in (
                select d.id, d.version from unnest(ids, versions) as d (id, version)
            )) is true and t.session is not distinct from me
                and t.key is null and t.dedupe is null and t.keep_for = 0
            returning t.id, t.follow_up
        )
        select coalesce(array_agg(g.id), '{}'), array_agg(g.follow_up) filter (where g.follow_up is not null)
        into done, ended from gone g;
    end if;
    if ended is not null then
        woken := intervalq._less_to_await(ended, now);
    end if;
    if cardinality(ids) > cardinality(done) then
        locks := coalesce(locks, intervalq._lock_claims(ids, null, me));
        z := intervalq._settle((
            select jsonb_agg(jsonb_build_array(d.id, d.version, null, case
                when k.k is not null then jsonb_build_array(k.k, coalesce(d.result, ''), d.took)
            end) order by d.o)
            from unnest(ids, versions, keep_fors, durations, string_to_array(results, chr(31)))
                with ordinality as d (id, version, keep_for, took, result, o),
                lateral (values (coalesce(d.keep_for, keep_fors[1]))) as k (k)
            where d.id <> all (done)
        ), locks, me, now);
        lost := z.lost;
        woken := woken || z.woken;
    end if;
    if parts is not null then
        z := intervalq._settle(parts, locks, me, now);
        lost := lost || z.lost;
        woken := woken || z.woken;
    end if;
    if finished is not null and me is null then
        lost_ranges := array(select generate_series(0, jsonb_array_length(finished) - 1));
    elsif finished is not null then
        z := intervalq._finish_all(finished, me, now);
        lost_ranges := z.lost_ranges;
        woken := woken || z.woken;
    end if;
end
$$;
