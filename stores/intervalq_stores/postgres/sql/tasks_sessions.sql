-- Sessions: begin, heartbeat, lapse and end, and the guards of processes.

create or replace function intervalq.begin_session(
    who text, host text, pid bigint, consumer text, expiry bigint, now bigint
) returns void
language plpgsql volatile
set search_path = pg_catalog, pg_temp
set lock_timeout = '4s'
as $$
declare
    me integer;
begin
    now := intervalq._now(now);
    insert into intervalq.sessions as s (id, host, pid, consumer, expiry, started)
    values (who, host, pid, consumer, expiry, now)
    on conflict (id) do update set
        host = excluded.host, pid = excluded.pid, consumer = excluded.consumer, expiry = excluded.expiry,
        started = excluded.started, gone = null
    returning s.number into me;
    insert into intervalq.beats (number, beaten) values (me, now)
    on conflict (number) do update set beaten = excluded.beaten;
end
$$;


-- intervalq._rest: how long a task rests after its worker was lost; `rest` in intervalq/tasks/_spec/transitions.py.
create or replace function intervalq._rest(t intervalq.tasks) returns bigint
language sql immutable
as $$
    select ((case when t.attempt <= 1 then 100000 else least((1 << least(t.attempt - 1, 6)) - 1, 60) * 1000000 end)::bigint
        * ('x' || substr(md5(coalesce(t.own, t.id::text)), 1, 4))::bit(16)::integer) >> 16
$$;


-- intervalq._drop_cancelled: remove the cancelled tasks of a session that has ended; returns the queues of tasks that
-- became ready. What others have locked at this moment is left to a later heartbeat.
create or replace function intervalq._drop_cancelled(s intervalq.sessions, now bigint) returns text[]
language plpgsql volatile
set search_path = pg_catalog, pg_temp
as $$
declare
    t intervalq.tasks;
    woken text[] := '{}';
begin
    for t in
        select x.* from intervalq.tasks x where x.session = s.number and x.cancelled order by x.id
        for update skip locked
    loop
        continue when t.key is not null and not pg_try_advisory_xact_lock(intervalq._lock('k', t.queue, t.key))
            or t.follow_up is not null and not intervalq._try_follow_up(t.follow_up);
        woken := woken || intervalq._remove(t, 'cancelled', null, null, now, true);
    end loop;
    return array_remove(woken, null);
end
$$;


-- intervalq._free: free the claims of a session that was lost, or that ended cleanly. Rows that are locked at this
-- moment are skipped, and freed by a later heartbeat.
create or replace function intervalq._free(s intervalq.sessions, now bigint) returns void
language plpgsql volatile
set search_path = pg_catalog, pg_temp
as $$
declare
    why constant text := case when s.lapsed then s.host || ':' || s.pid || ' was lost' else '' end;
    dropped constant text[] := intervalq._drop_cancelled(s, now);
    queues text[];
    r intervalq.ranges;
begin
    with found as materialized (
        select t.ctid as spot, case
            when s.lapsed then now + intervalq._rest(t)
            when t.at > now then t.at - intervalq._lag(t.modified, now) else t.at
        end as at from intervalq.tasks t where t.session = s.number and not t.cancelled for update skip locked
    ), freed as (
        update intervalq.tasks t set
            version = t.version + 1, session = null, until = null, modified = now,
            at = x.at, ready = x.at,
            error = case when s.lapsed and t.begun then why else t.error end,
            errors = case
                when s.lapsed and t.begun and t.keep_for > 0 then intervalq._with_error(t.errors, why, t.attempt, now)
                else t.errors
            end,
            attempt = case when s.lapsed then t.attempt else greatest(0, t.attempt - t.begun::integer) end,
            begun = false, alone = t.alone or s.lapsed
        from found x where t.ctid = x.spot
        returning t.queue
    )
    select array_agg(distinct f.queue) into queues from freed f;
    for r in
        delete from intervalq.ranges x using (
            select y.queue, y.part, y.low from intervalq.ranges y
            where y.session = s.number for update skip locked
        ) as f
        where x.queue = f.queue and x.part = f.part and x.low = f.low returning x.*
    loop
        perform intervalq._spill(r.queue, r.part, r.low, r.high, s.lapsed::integer, r.begun, why, now);
        queues := queues || r.queue;
    end loop;
    delete from intervalq.idle i where i.session = s.number;
    queues := dropped || queues;
    if queues <> '{}' then
        perform intervalq._wake(queues);
    end if;
end
$$;


-- intervalq._forget: remove a session: from now on, it has ended for everybody.
create or replace function intervalq._forget(n integer, by_itself boolean, now bigint) returns text
language plpgsql volatile
set search_path = pg_catalog, pg_temp
as $$
declare
    s intervalq.sessions;
begin
    update intervalq.sessions x set gone = pg_current_xact_id(), lapsed = not by_itself
    where x.number = n and x.gone is null returning x.* into s;
    if not found then
        return null;
    end if;
    perform intervalq._free(s, now);
    return s.id;
end
$$;


-- intervalq._close_ranks: move tasks of a key that wait in front of one that doesn't wait to the end of the line. They
-- joined it in transactions that saw an older line; `_feed` and `_in_line` need the last one to wait if any does.
create or replace function intervalq._close_ranks(q text, k text) returns void
language plpgsql volatile
set search_path = pg_catalog, pg_temp
as $$
declare
    running constant integer := (
        select max(x.place) from intervalq.tasks x where x.queue = q and x.key = k and not x.waiting
    );
    last constant integer := (
        select x.place from intervalq.tasks x where x.queue = q and x.key = k order by x.place desc limit 1
    );
begin
    update intervalq.tasks t set place = last + w.n
    from (
        select x.id, row_number() over (order by x.place, x.id) as n from intervalq.tasks x
        where x.queue = q and x.key = k and x.place <= running and x.waiting
    ) as w where t.id = w.id;
end
$$;


-- intervalq.feed: feed the lines whose first task was removed in a transaction that could not see the next one.
create or replace function intervalq.feed(now bigint) returns void
language plpgsql volatile
set search_path = pg_catalog, pg_temp
set lock_timeout = '4s'
as $$
declare
    queues text[];
    keys text[];
    u record;
begin
    now := intervalq._now(now);
    with fed as (
        delete from intervalq.unfed x where x.ctid = any (array(
            select y.ctid from intervalq.unfed y order by y.queue, y.key limit 1000 for update skip locked
        )) returning x.queue, x.key
    )
    select array_agg(f.queue), array_agg(f.key) into queues, keys from fed f;
    perform intervalq._lock_lines(array(select intervalq._lock('k', n.q, n.k) from unnest(queues, keys) as n (q, k)));
    for u in select distinct n.q as queue, n.k as key from unnest(queues, keys) as n (q, k) order by 1, 2 loop
        perform intervalq._close_ranks(u.queue, u.key);
        if intervalq._feed(u.queue, u.key, now) is not null then
            perform intervalq._wake(array[u.queue]);
        end if;
    end loop;
end
$$;


-- intervalq._lives: whether a session without a heartbeat for its expiry is known to be alive: its process holds the
-- lock of its guard, so only its event loop is blocked. Five minutes after the last heartbeat this no longer counts:
-- the process may hang for good, or a proxy keeps a connection open whose client is gone.
create or replace function intervalq._lives(n integer, now bigint) returns boolean
language plpgsql volatile
set search_path = pg_catalog, pg_temp
as $$
begin
    return exists (
        select from intervalq.sessions s join intervalq.beats b on b.number = s.number
        where s.number = n and s.guarding = pg_postmaster_start_time() and b.beaten + 300000000 >= now
    ) and not pg_try_advisory_xact_lock(7310027, n);
end
$$;


-- intervalq._forget_lapsed: remove the other sessions that had no heartbeat within their expiry. Returns their ids.
create or replace function intervalq._forget_lapsed(who text, now bigint) returns jsonb
language plpgsql volatile
set search_path = pg_catalog, pg_temp
as $$
declare
    lapsed jsonb := '[]';
    n integer;
    id text;
begin
    for n in
        select b.number from intervalq.beats b join intervalq.sessions x on x.number = b.number
        where x.id <> who and x.gone is null and b.beaten + x.expiry < now
        order by x.started, x.id for update of b skip locked
    loop
        continue when intervalq._lives(n, now);
        id := intervalq._forget(n, false, now);
        if id is not null then
            lapsed := lapsed || to_jsonb(id);
        end if;
    end loop;
    return lapsed;
end
$$;


-- intervalq._free_gone: free the claims that were skipped when sessions were removed, and those that were being made
-- at that moment. A session's row is deleted once it has no claims left.
create or replace function intervalq._free_gone(now bigint) returns void
language plpgsql volatile
set search_path = pg_catalog, pg_temp
as $$
declare
    s intervalq.sessions;
begin
    for s in
        select x.* from intervalq.sessions x where x.gone is not null and x.gone <> pg_current_xact_id()
        order by x.number for update skip locked
    loop
        perform intervalq._free(s, now);
        if s.gone < pg_snapshot_xmin(pg_current_snapshot())
            and not exists (select from intervalq.tasks t where t.session = s.number)
            and not exists (select from intervalq.ranges r where r.session = s.number)
        then
            delete from intervalq.sessions x where x.number = s.number;
            delete from intervalq.beats b where b.number = s.number;
        end if;
    end loop;
end
$$;


-- intervalq._free_orphans: free the claims of sessions that have no row any more. A statement that read its session
-- before it was removed, and got its transaction's number only then, may claim after the row was deleted.
create or replace function intervalq._free_orphans(now bigint) returns void
language plpgsql volatile
set search_path = pg_catalog, pg_temp
as $$
declare
    s intervalq.sessions;
begin
    s.lapsed := false;  -- nobody has begun them: their answer came after the end of their session
    for s.number in
        with recursive held (n) as (
            select min(t.session) from intervalq.tasks t where t.session is not null
            union all
            select (select min(t.session) from intervalq.tasks t where t.session > h.n) from held h where h.n is not null
        ), ranged (n) as (
            select min(r.session) from intervalq.ranges r
            union all
            select (select min(r.session) from intervalq.ranges r where r.session > h.n)
            from ranged h where h.n is not null
        )
        select u.n from (
            select h.n from held h union select r.n from ranged r union select i.session from intervalq.idle i
        ) as u where u.n is not null and not exists (select from intervalq.sessions x where x.number = u.n)
    loop
        perform intervalq._free(s, now);
    end loop;
end
$$;


-- intervalq.beat: `rules.Beat`. Returns an array: whether the session is alive, how many claims it holds, which
-- sessions had lapsed, the result of `guarded` if the clock is the server's, which saves a transaction, and the ids and
-- versions of claims that were cancelled.
create or replace function intervalq.beat(who text, now bigint) returns jsonb
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
    lapsed jsonb;
    held bigint;
    is_read constant boolean := now is null;
    watched integer;
begin
    if is_read then
        now := intervalq._now(now);
        perform intervalq._read_clock(now);
    end if;
    update intervalq.beats b set beaten = now
    where b.number = (select x.number from intervalq.sessions x where x.id = who and x.gone is null);
    -- A removal of this session either came before, or waits for what we have just written, and then sees it.
    select x.number into me from intervalq.sessions x where x.id = who and x.gone is null;

    perform intervalq.feed(now);  -- first, because it waits for locks: all that follows leaves what others have locked
    lapsed := intervalq._forget_lapsed(who, now);
    if is_read and me is not null then
        watched := intervalq.guarded(me, now);
    end if;

    perform intervalq._free_gone(now);
    if me = (select min(x.number) from intervalq.sessions x where x.gone is null) then
        perform intervalq._free_orphans(now);  -- one session looks, because an index may have many dead entries
    end if;
    delete from intervalq.marks m where (m.queue, m.key) in (
        select y.queue, y.key from intervalq.marks y where y.until <= now order by y.until limit 1000
        for update skip locked
    ) and m.until <= now;
    perform intervalq._sweep(now);
    if exists (select from intervalq.outcome_periods p where p.over <= now) then
        perform intervalq.drop_outcomes(now);
    end if;

    select (select count(*) from intervalq.tasks t where t.session = me)
        + (select coalesce(sum(r.size), 0) from intervalq.ranges r where r.session = me) into held;
    return jsonb_build_array(me is not null, held, lapsed, watched, (
        select coalesce(jsonb_agg(jsonb_build_array(coalesce(t.own, t.id::text), t.version) order by t.id), '[]')
        from intervalq.tasks t where t.session = me and t.cancelled
    ));
end
$$;


-- intervalq.end_session: `rules.End`. Returns whether others had locked some of its claims: then call it again, or a
-- heartbeat of another session frees them.
create or replace function intervalq.end_session(who text, now bigint) returns boolean
language plpgsql volatile
set search_path = pg_catalog, pg_temp
set lock_timeout = '4s'
set enable_seqscan = off
as $$
declare
    s intervalq.sessions;
begin
    if now is null then
        now := intervalq._now(now);
        perform intervalq._read_clock(now);
    end if;
    select x.* into s from intervalq.sessions x where x.id = who;
    if not found then
        return false;
    elsif s.gone is null then
        perform intervalq._forget(s.number, true, now);
    else
        perform intervalq._free(s, now);
    end if;
    return exists (select from intervalq.tasks t where t.session = s.number);
end
$$;


-- intervalq.guarding: from now on this connection holds the lock of a session. Returns the session's number.
create or replace function intervalq.guarding(who text) returns integer
language plpgsql volatile
set search_path = pg_catalog, pg_temp
as $$
declare
    me integer;
begin
    select s.number into me from intervalq.sessions s where s.id = who and s.gone is null;
    if me is null or not pg_try_advisory_lock(7310027, me) then
        return null;
    end if;
    update intervalq.sessions s set guarding = pg_postmaster_start_time() where s.number = me;
    return me;
end
$$;


-- intervalq.unguarded: from now on, a session's lock says nothing about its process.
create or replace function intervalq.unguarded(me integer) returns void
language plpgsql volatile
set search_path = pg_catalog, pg_temp
as $$
begin
    update intervalq.sessions s set guarding = null where s.number = me;
    perform pg_advisory_unlock(7310027, me);
end
$$;


-- intervalq.guarded: remove the next session of the ring if its process is dead, then the one after it, and so on.
-- Returns how many were removed; -1: none, and the next one has no claims. A session whose lock was taken before the
-- server restarted may not have reconnected yet, so it is left alone.
create or replace function intervalq.guarded(me integer, now bigint) returns integer
language plpgsql volatile
set search_path = pg_catalog, pg_temp
set lock_timeout = '4s'
set enable_seqscan = off
as $$
declare
    next integer;
    n integer := 0;
begin
    loop
        select s.number into next from intervalq.sessions s
        where s.gone is null and s.guarding = pg_postmaster_start_time() and s.number <> me
        order by s.number < me, s.number limit 1;
        if n = 0 and not exists (select from intervalq.tasks t where t.session = next)
            and not exists (select from intervalq.ranges r where r.session = next)
        then
            n := -1;
        end if;
        exit when next is null or not pg_try_advisory_xact_lock(7310027, next);
        perform from intervalq.beats b where b.number = next for update skip locked;
        exit when not found;
        if intervalq._forget(next, false, intervalq._now(now)) is not null then
            n := greatest(n, 0) + 1;
        end if;
    end loop;
    return n;
end
$$;
