-- `Work`, its first half: settle what a session has claimed.

-- intervalq._settle: settle, one by one, the claims that need more than a delete.
--   parts: in order, [uuid, version, null, kept] to delete, or as `_change` takes them; a session of null has no claims
--   ended: the follow-ups of tasks that this command has ended before, see `_less_to_await`; null: none
--   begun: tasks that it writes afterwards
-- Lines of keys are locked first, then tasks, then their follow-ups, as `modify` does: else they would block each other.
-- Returns the UUIDs of those that were lost, and the queues of tasks that became ready.
create or replace function intervalq._settle(
    parts jsonb, ended text[], begun uuid[], me integer, now bigint, out lost uuid[], out woken text[]
)
language plpgsql volatile
set search_path = pg_catalog, pg_temp
as $$
declare
    locks bigint[];
    follow_ups text[];
    p jsonb;
    t intervalq.tasks;
    after record;
    keeps boolean;
begin
    lost := '{}';
    woken := '{}';
    select coalesce(array_agg(l.l) filter (where r.key is not null), '{}'),
        array_agg(r.follow_up) filter (where r.follow_up is not null)
    into locks, follow_ups
    from jsonb_array_elements(parts) as e,
        lateral (select x.* from intervalq.tasks x where x.id = (e ->> 0)::uuid limit 1) as r,
        lateral (values (r.queue), (e ->> 2)) as w (queue),
        lateral (select intervalq._lock('k', w.queue, r.key)) as l (l)
    where (r.key is not null or r.follow_up is not null) and r.session = me and w.queue is not null;
    perform intervalq._lock_lines(locks);
    follow_ups := follow_ups || ended;
    if follow_ups is not null then
        perform from intervalq.tasks x where x.session = me and x.id = any (array(
            select (e ->> 0)::uuid from jsonb_array_elements(parts) as e
        ) || _settle.begun) order by x.id for update;
        perform intervalq._lock_followers(follow_ups);
    end if;
    if ended is not null then
        woken := intervalq._less_to_await(ended, now);
    end if;
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
    before := c.seen;
    -- In a transaction with one snapshot, writing a row that others have written meanwhile would abort it.
    if intervalq._fresh() and now not between before - 1000000 and before + 1000000 then
        update intervalq.clock x set
            seen = now,
            since = case when now < x.seen then now else x.since end,
            -- Tasks that waited before an earlier step wait for what is left of both steps.
            behind = case when now > x.seen then x.behind when x.seen < x.since + x.behind then x.behind + x.seen - now else x.seen - now end
        where x.one = (select y.one from intervalq.clock y where y.seen = before for update skip locked)
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
    ended text[];
    z record;
begin
    lost := '{}';
    lost_ranges := '{}';
    woken := '{}';
    if me is not null and keep_fors is not null then
        select x.done, x.ended into done, ended
        from intervalq._done(ids, versions, keep_fors, durations, results, me, now) as x;
    elsif cardinality(ids) > 0 and me is not null then
        -- Look up each one by its id, whatever the planner assumes about the size of the table: it might scan all
        -- claims of the session for each of them.
        with gone as (
            delete from intervalq.tasks t where t.ctid = any (array(
                select x.ctid from unnest(ids, versions) as d (id, version), lateral (
                    select y.ctid from intervalq.tasks y
                    where y.id = d.id and y.version = d.version and y.session is not distinct from me
                        and y.key is null and y.dedupe is null and y.keep_for = 0
                    limit 1
                ) as x
            )) and t.session is not distinct from me
            returning t.id, t.follow_up
        )
        select coalesce(array_agg(g.id), '{}'), array_agg(g.follow_up) filter (where g.follow_up is not null)
        into done, ended from gone g;
    end if;
    if cardinality(ids) > cardinality(done) then
        parts := (
            select jsonb_agg(jsonb_build_array(d.id, d.version, null, case
                when d.keep_for is not null then jsonb_build_array(d.keep_for, coalesce(d.result, ''), d.took)
            end) order by d.o)
            from unnest(ids, versions, keep_fors, durations, string_to_array(results, chr(31)))
                with ordinality as d (id, version, keep_for, took, result, o)
            where d.id <> all (done)
        ) || coalesce(parts, '[]');
    end if;
    if parts is not null or ended is not null then
        z := intervalq._settle(coalesce(parts, '[]'), ended, begun, me, now);
        lost := z.lost;
        woken := z.woken;
    end if;
    for i in 0 .. coalesce(jsonb_array_length(finished), 0) - 1 loop
        if me is null or not intervalq._finish(finished -> i, me, now) then
            lost_ranges := lost_ranges || i;
        else
            select woken || coalesce(array_agg(distinct e -> 1 ->> 2), '{}') into woken
            from jsonb_array_elements(finished -> i -> 4) as e
            where (e -> 1 ->> 6)::bigint <= 0 and e -> 1 ->> 5 is null;
        end if;
    end loop;
end
$$;
