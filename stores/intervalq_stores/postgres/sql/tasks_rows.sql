-- One task: insert, change and remove it, and keep the lines of keys in order.

-- intervalq._hand: insert the first of these tasks as claimed by an idle session, if there is one. The notification
-- that wakes it has the lines of the claim, if they fit. Returns how many were inserted. Only for transactions that end
-- at once.
--   ids: null: generate them
create or replace function intervalq._hand(q text, ids uuid[], jsons text[], now bigint) returns integer
language plpgsql volatile
set search_path = pg_catalog, pg_temp
as $$
declare
    i record;
    n integer;
    payload text;
begin
    if not intervalq._fresh() then
        perform intervalq._wake(array[q]);
        return 0;
    end if;
    select x.* into i from intervalq._next_idle(q) as x;
    if i.who is null then
        return 0;
    end if;
    n := case when i.wanted > 0 and coalesce(i.lease, 1) > 0 then least(i.wanted, cardinality(jsons)) else 0 end;
    if n > 0 then
        ids := coalesce(ids, array(select intervalq._uuid() from generate_series(1, n)));
        select ' ' || json_agg(json_build_array(
            't', u.id, 1, q, now, u.json, null, 0, false, i.who, now + i.lease, 1, 0, '', now, now, null, 0, false, false
        )) into payload from unnest(ids[:n], jsons[:n]) as u (id, json);
        if octet_length(payload) > 7900 then
            payload := '';
            n := 0;
        else
            insert into intervalq.tasks
                (id, ready, at, created, modified, until, version, claims, session, queue, json)
            select u.id, now + i.lease, now, now, now, now + i.lease, 1, 1, i.session, q, u.json
            from unnest(ids[:n], jsons[:n]) as u (id, json);
        end if;
    end if;
    perform pg_notify('intervalq_tasks', i.who || coalesce(payload, ''));
    return n;
end
$$;


-- intervalq._free_lanes: the places of a key that are free, if `most` of its tasks may run at a time. There are no more
-- than are left for others, even if tasks that run beyond `most` are there from before.
create or replace function intervalq._free_lanes(q text, k text, most integer) returns smallint[]
language plpgsql volatile
set search_path = pg_catalog, pg_temp
as $$
declare
    taken constant smallint[] := array(
        select x.lane from intervalq.tasks x where x.queue = q and x.key = k and not x.waiting
    );
begin
    return array(
        select n from generate_series(0, most - 1) as n except select unnest(taken)
        order by 1 limit greatest(0, most - cardinality(taken))
    );
end
$$;


-- intervalq._feed: one of the first tasks of a key is gone: let the next ones be claimed, after the first tasks of all
-- other keys that are ready by now. Returns their queue if one is ready now.
create or replace function intervalq._feed(q text, k text, now bigint) returns text
language plpgsql volatile
set search_path = pg_catalog, pg_temp
as $$
declare
    f record;
    lanes smallint[];            -- the free places of the key
    most integer;
    ready_at bigint;
    is_ready boolean := false;
begin
    if not intervalq._fresh() then
        -- The next task may have been committed after this transaction's snapshot.
        insert into intervalq.unfed (queue, key) values (q, k);
        return null;
    end if;
    select x.ctid as spot, exists (
        select from intervalq.tasks y where y.queue = q and y.key = k and y.per_key is not null
    ) as is_shared, x.waiting and not exists (
        select from intervalq.tasks y where y.queue = q and y.key = k and not y.waiting
    ) as is_next into f from intervalq.tasks x
    where x.queue = q and x.key = k order by x.place, x.id limit 1;
    if f.is_shared then
        select x.per_key into most from intervalq.tasks x
        where x.queue = q and x.key = k order by x.place desc, x.id desc limit 1;
        lanes := intervalq._free_lanes(q, k, coalesce(most, 1));
        for i in 1 .. cardinality(lanes) loop
            update intervalq.tasks t set
                waiting = false, at = greatest(t.at, now), ready = greatest(t.at, now), lane = lanes[i]
            where t.ctid = (
                select x.ctid from intervalq.tasks x where x.queue = q and x.key = k and x.waiting
                order by x.place, x.id limit 1
            )
            returning t.ready into ready_at;
            exit when not found;
            is_ready := is_ready or ready_at <= now;
        end loop;
    elsif f.is_next then
        update intervalq.tasks t set waiting = false, at = greatest(t.at, now), ready = greatest(t.at, now), lane = 0
        where t.ctid = f.spot returning t.ready into ready_at;
        is_ready := coalesce(ready_at <= now, false);
    end if;
    return case when is_ready then q end;
end
$$;


-- intervalq._less_to_await: note that tasks have ended for which the tasks `ended` wait: one for each time that a task
-- is listed. Returns the queues of those that wait no longer.
create or replace function intervalq._less_to_await(ended text[], now bigint) returns text[]
language plpgsql volatile
set search_path = pg_catalog, pg_temp
as $$
declare
    f record;
    x record;
    woken text[] := '{}';
begin
    for f in select intervalq._id(u.u) as id, count(*) as n from unnest(ended) as u (u) group by 1 order by 1 loop
        update intervalq.tasks t set
            awaits = case when t.awaits > f.n then t.awaits - f.n end,
            waiting = t.awaits > f.n,
            at = case when t.awaits > f.n then t.at else greatest(t.at, now) end,
            ready = case when t.awaits > f.n then null else greatest(t.at, now) end
        where t.id = f.id and t.awaits > 0
        returning t.queue, t.ready into x;
        if x.ready <= now + 5000000 then
            woken := woken || x.queue;
        end if;
    end loop;
    return woken;
end
$$;


-- intervalq._lock_by_id: lock tasks in the order of their ids: some to change them, others so that they stay.
--   every: false: only those that wait for no other task
create or replace function intervalq._lock_by_id(named uuid[], depends uuid[], every boolean) returns void
language plpgsql volatile
set search_path = pg_catalog, pg_temp
as $$
declare
    n uuid;
begin
    if depends = '{}' then
        perform from intervalq.tasks x where x.id = any (named) and (every or x.awaits is null)
        order by x.id for update;
        return;
    end if;
    for n in select distinct u.u from unnest(named || depends) as u (u) order by 1 loop
        if n = any (named) then
            perform from intervalq.tasks x where x.id = n and (every or x.awaits is null) for update;
        else
            perform from intervalq.tasks x where x.id = n and (every or x.awaits is null) for share;
        end if;
    end loop;
end
$$;


-- intervalq._lock_tasks: lock the tasks that a command may change, and those that it depends on, in the order that
-- holds everywhere: first tasks that wait for no other one; then those that do, which are told when the first ones
-- end. In another order, two commands could wait for each other.
create or replace function intervalq._lock_tasks(named uuid[], depends uuid[]) returns void
language plpgsql volatile
set search_path = pg_catalog, pg_temp
as $$
begin
    perform intervalq._lock_by_id(named, depends, false);
    if exists (
        select from intervalq.tasks x where x.id = any (named || depends)
            and (x.awaits is not null or x.follow_up is not null)
    ) then
        perform intervalq._lock_by_id(named || array(
            select intervalq._id(x.follow_up) from intervalq.tasks x
            where x.id = any (named) and x.follow_up is not null
        ), depends, true);
    end if;
end
$$;


-- intervalq._try_follow_up: lock the task that waits for one that is to end, unless somebody else has locked it.
create or replace function intervalq._try_follow_up(follow_up text) returns boolean
language plpgsql volatile
set search_path = pg_catalog, pg_temp
as $$
declare
    n constant uuid := intervalq._id(follow_up);
begin
    perform from intervalq.tasks x where x.id = n for update skip locked;
    return found or not exists (select from intervalq.tasks x where x.id = n);
end
$$;


-- intervalq._remove: remove a task. Returns the queues in which others became ready.
--   ended_as, kept, me: of `_leave`
create or replace function intervalq._remove(
    t intervalq.tasks, ended_as text, kept jsonb, me integer, now bigint, feed boolean
) returns text[]
language plpgsql volatile
set search_path = pg_catalog, pg_temp
as $$
declare
    woken text[] := '{}';
begin
    delete from intervalq.tasks x where x.id = t.id returning x.waiting into t.waiting;
    if t.keep_for > 0 or kept <> 'null' then
        perform intervalq._leave(t, ended_as, kept, now, me);
    end if;
    if t.follow_up is not null then
        woken := intervalq._less_to_await(array[t.follow_up], now);
    end if;
    if t.dedupe is not null then
        perform intervalq._mark(t.queue, t.dedupe, coalesce(t.own, t.id::text), now + t.dedupe_for);
    end if;
    if feed and t.key is not null and not t.waiting then
        woken := woken || intervalq._feed(t.queue, t.key, now);
    end if;
    return woken;
end
$$;

create or replace function intervalq._mark(q text, k text, task text, ends bigint) returns void
language plpgsql volatile
set search_path = pg_catalog, pg_temp
as $$
begin
    insert into intervalq.marks (queue, key, id, until) values (q, k, task, ends)
    on conflict (queue, key) do update set id = excluded.id, until = excluded.until;
end
$$;


-- intervalq._in_line: the task, at the end of the line of its key.
create or replace function intervalq._in_line(t intervalq.tasks) returns intervalq.tasks
language plpgsql volatile
set search_path = pg_catalog, pg_temp
as $$
declare
    last record;
    most constant integer := coalesce(t.per_key, 1);
begin
    select x.place, x.waiting into last from intervalq.tasks x
    where x.queue = t.queue and x.key = t.key order by x.place desc, x.id desc limit 1;
    t.place := coalesce(last.place, 0) + 1;
    t.waiting := last.waiting or (last.place is not null and most = 1);
    if last.place is null then
        t.waiting := false;
        t.lane := 0;
    elsif not t.waiting then
        t.lane := (intervalq._free_lanes(t.queue, t.key, most))[1];
        t.waiting := t.lane is null;
    else
        t.lane := null;
    end if;
    if t.waiting and not intervalq._fresh() then
        insert into intervalq.unfed (queue, key) values (t.queue, t.key);  -- the first task may be gone by now
    end if;
    return t;
end
$$;

create or replace function intervalq._put(t intervalq.tasks) returns intervalq.tasks
language plpgsql volatile
set search_path = pg_catalog, pg_temp
as $$
begin
    t.ready := case when t.waiting then null when t.session is null then t.at else t.until end;
    insert into intervalq.tasks
        (id, ready, at, created, modified, until, dedupe_for, version, claims, attempt, place, session, waiting,
        queue, json, error, own, key, dedupe, begun, alone, cancelled, progress, priority,
        keep_for, errors, per_key, lane, follow_up, awaits)
    values (t.id, t.ready, t.at, t.created, t.modified, t.until, t.dedupe_for, t.version, t.claims, t.attempt,
        t.place, t.session, t.waiting, t.queue, t.json, t.error, t.own, t.key, t.dedupe, t.begun, t.alone,
        t.cancelled, t.progress, t.priority, t.keep_for, t.errors,
        t.per_key, t.lane, t.follow_up, t.awaits)
    on conflict do nothing;
    if not found then
        raise exception 'task % was inserted at the same moment', coalesce(t.own, t.id::text)
            using errcode = '40001';
    end if;
    return t;
end
$$;


-- intervalq._insert: `rules._insert`.
--   p: [uuid, own, queue, json, key, at, delay, attempt, error, skip, dedupe, dedupe_for, inbox, replace,
--     priority, keep_for, per_key, follow_up, awaits], and for a plain task that was claimed: version, claims
create or replace function intervalq._insert(p jsonb, now bigint) returns intervalq.tasks
language plpgsql volatile
set search_path = pg_catalog, pg_temp
as $$
declare
    t intervalq.tasks;
    other intervalq.tasks;
begin
    t.id := p ->> 0;
    t.own := p ->> 1;
    t.queue := p ->> 2;
    t.json := p ->> 3;
    t.key := p ->> 4;
    t.at := coalesce((p ->> 5)::bigint, now + (p ->> 6)::bigint);
    t.attempt := p ->> 7;
    t.error := p ->> 8;
    t.dedupe := p ->> 10;
    t.dedupe_for := p ->> 11;
    t.version := coalesce((p ->> 19)::integer, 0);
    t.claims := coalesce((p ->> 20)::integer, 0);
    t.place := 0;
    t.per_key := p ->> 16;
    t.follow_up := p ->> 17;
    t.awaits := p ->> 18;
    t.waiting := t.awaits is not null;
    t.begun := false;
    t.alone := false;
    t.cancelled := false;
    t.progress := '';
    t.priority := p ->> 14;
    t.keep_for := p ->> 15;
    t.errors := case
        when t.keep_for > 0 and t.error <> '' then intervalq._with_error('', t.error, t.attempt, now) else ''
    end;
    t.created := now;
    t.modified := now;
    if t.dedupe is not null then
        perform intervalq._mark(t.queue, t.dedupe, coalesce(t.own, t.id::text), null);
    end if;
    if t.key is not null then
        if (p ->> 13)::boolean then
            for other in
                select x.* from intervalq.tasks x where x.queue = t.queue and x.key = t.key
                order by x.place, x.id for update
            loop
                if other.session is null or other.until <= now
                    or other.until <= now + intervalq._lag(other.modified, now)
                then
                    perform intervalq._remove(other, 'cancelled', null, null, now, false);
                end if;
            end loop;
        end if;
        t := intervalq._in_line(t);
    end if;
    return intervalq._put(t);
end
$$;


-- intervalq._with_attempt: the task with the errors and the time for which it is kept after a change; p: of `_change`.
create or replace function intervalq._with_attempt(
    t intervalq.tasks, p jsonb, keeps boolean, now bigint
) returns intervalq.tasks
language plpgsql volatile
set search_path = pg_catalog, pg_temp
as $$
declare
    number constant integer := coalesce((p ->> 6)::integer, t.attempt);
begin
    if t.keep_for = 0 then
        t.errors := intervalq._errors_of(t.errors, 0, t.error, t.attempt, t.begun);
        t.keep_for := p -> 12 ->> 0;
    end if;
    -- Of attempts that killed their workers, the errors are there already.
    if t.keep_for > 0 and p ->> 7 <> '' and not keeps and t.session is not null
        and number > t.attempt - t.begun::integer
    then
        t.errors := intervalq._with_error(t.errors, p ->> 7, number, now);
    end if;
    return t;
end
$$;


-- intervalq._change: `rules._change`. Returns the task, and the queues in which others became ready.
--   p: [uuid, version, queue, json, at, delay, attempt, error, keep, lease, progress, priority, kept]; kept: of `_leave`
--   me: the session of the caller; null: none
create or replace function intervalq._change(
    inout t intervalq.tasks, p jsonb, me integer, now bigint, out woken text[]
)
language plpgsql volatile
set search_path = pg_catalog, pg_temp
as $$
declare
    keep boolean := (p ->> 8)::boolean;
    before text := t.queue;
    was_waiting boolean;
begin
    if t.key is not null or t.waiting then
        select x.waiting, x.at, x.lane, x.awaits into t.waiting, t.at, t.lane, t.awaits from intervalq.tasks x where x.id = t.id;
    end if;
    was_waiting := t.waiting;
    t.version := t.version + 1;
    t.queue := coalesce(p ->> 2, t.queue);
    keep := keep and t.queue = before;
    t.json := coalesce(p ->> 3, t.json);
    if t.at > now and p ->> 5 is null and p ->> 4 is null then
        t.at := t.at - intervalq._lag(t.modified, now);
    end if;
    t.at := coalesce(now + (p ->> 5)::bigint, (p ->> 4)::bigint, t.at);
    if t.keep_for > 0 or p -> 12 <> 'null' then
        t := intervalq._with_attempt(t, p, keep, now);
    end if;
    t.attempt := coalesce((p ->> 6)::integer, t.attempt);
    t.error := coalesce(p ->> 7, t.error);
    if not keep then
        t.session := null;
        t.alone := t.alone and not t.begun;
        t.begun := false;
        t.cancelled := false;
    end if;
    t.progress := coalesce(p ->> 10, t.progress);
    t.priority := coalesce((p ->> 11)::smallint, t.priority);
    t.until := case when keep then now + (p ->> 9)::bigint end;
    t.modified := now;
    if intervalq._is_dead(t.queue) and not intervalq._is_dead(before) then
        t.queue := before;
        perform intervalq._leave(t, 'failed', p -> 12, now, me);
        t.queue := p ->> 2;
        if t.follow_up is not null then
            woken := intervalq._less_to_await(array[t.follow_up], now);
            t.follow_up := null;  -- it has ended, even if it is tried again
        end if;
    end if;
    if t.dedupe is not null and t.queue <> before then
        perform intervalq._mark(before, t.dedupe, coalesce(t.own, t.id::text), now + t.dedupe_for);
        t.dedupe := null;
        t.dedupe_for := 0;
    end if;
    if t.key is not null and t.queue <> before then
        delete from intervalq.tasks x where x.id = t.id;
        if not was_waiting then
            woken := woken || intervalq._feed(before, t.key, now);
        end if;
        t := intervalq._put(intervalq._in_line(t));
        return;
    end if;
    t.ready := case when t.waiting then null when t.session is null then t.at else t.until end;
    update intervalq.tasks x set
        version = t.version, queue = t.queue, json = t.json, at = t.at, attempt = t.attempt, error = t.error,
        session = t.session, until = t.until, modified = t.modified, dedupe = t.dedupe,
        dedupe_for = t.dedupe_for, ready = t.ready, begun = t.begun, alone = t.alone,
        cancelled = t.cancelled, progress = t.progress, priority = t.priority, keep_for = t.keep_for,
        errors = t.errors, follow_up = t.follow_up
    where x.id = t.id;
end
$$;


-- intervalq._lock_lines: lock the lines of keys and the marks that a command touches, always in the same order.
create or replace function intervalq._lock_lines(locks bigint[]) returns void
language plpgsql volatile
set search_path = pg_catalog, pg_temp
as $$
declare
    l bigint;
begin
    for l in select distinct u.l from unnest(locks) as u (l) order by 1 loop
        perform pg_advisory_xact_lock(l);
    end loop;
end
$$;
