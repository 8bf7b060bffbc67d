-- Time, locks, ids, lines of answers, and the wake-up of idle sessions.

create or replace function intervalq._now(given bigint) returns bigint
language sql volatile
return coalesce(given, (extract(epoch from clock_timestamp()) * 1000000)::bigint);

-- intervalq._lag: by how much the clock was set back since a task was written, as far as `_read_clock` noticed; 0 once
-- the clock has caught up. The task becomes ready that much sooner. A task that was written while this command was on
-- its way has a later time than the command read; steps of under a second are not noticed anyway.
create or replace function intervalq._lag(modified bigint, now bigint) returns bigint
language plpgsql volatile
set search_path = pg_catalog, pg_temp
as $$
begin
    return coalesce((
        select c.behind from intervalq.clock c
        where now < c.since + c.behind and (modified < c.since or modified > now + 1000000)
    ), 0);
end
$$;


-- intervalq._fresh: whether each statement sees what others have committed before it.
create or replace function intervalq._fresh() returns boolean
language sql stable
return current_setting('transaction_isolation') in ('read committed', 'read uncommitted');

-- intervalq._lock: the number of the advisory lock for these parts, of which the first is a kind. There are 512
-- locks of each kind, because a server has room for a few thousand, and a command may name a thousand keys.
create or replace function intervalq._lock(variadic parts text[]) returns bigint
language sql stable
return 7310027118246900000 + (ascii(parts[1]) << 9) + (hashtextextended(parts::text, 7310027118246817121) & 511);

-- intervalq._queue_lock: the number of a queue's lock, which inserts share.
create or replace function intervalq._queue_lock(queue text) returns bigint
language sql immutable
return hashtextextended(queue, 7310027118246817122);

-- Functions that can't be inlined are in PL/pgSQL: one in SQL would be planned again at each call.
create or replace function intervalq._line(kind text, t intervalq.tasks) returns intervalq.line
language plpgsql stable
set search_path = pg_catalog, pg_temp
as $$
begin
    return row(
        kind, coalesce(t.own, t.id::text), t.version, t.queue, t.at, t.json, t.key, t.place, t.waiting,
        case when t.session is not null then (select s.id from intervalq.sessions s where s.number = t.session) end,
        t.until, t.claims, t.attempt, t.error, t.created, t.modified, t.dedupe, t.dedupe_for, t.begun, t.alone,
        t.cancelled, t.progress, t.priority, t.keep_for, t.errors, coalesce(t.per_key, 1), coalesce(t.follow_up, ''),
        coalesce(t.awaits, 0)
    )::intervalq.line;
end
$$;

-- intervalq._plain_id: the UUID of a plain task: version 8, with the place of the task in it.
create or replace function intervalq._plain_id(part integer, number bigint) returns uuid
language sql immutable
return ('0000000000008' || lpad(to_hex(part), 3, '0') || lpad(to_hex(number), 16, '0'))::uuid;

create or replace function intervalq._is_plain(id uuid) returns boolean
language sql immutable
return id between '00000000-0000-8000-0000-000000000000' and '00000000-0000-8fff-ffff-ffffffffffff';

-- intervalq._id: the UUID of a task's id, as the store makes it.
create or replace function intervalq._id(id text) returns uuid
language sql immutable
return case
    when id ~ '^[0-9a-f]{8}-[0-9a-f]{4}-[0-79a-f][0-9a-f]{3}-[0-9a-f]{4}-[0-9a-f]{12}$' then id::uuid
    when id ~ '^plain-(0|[1-9][0-9]{0,2})-[1-9][0-9]{0,17}$'
        then intervalq._plain_id(split_part(id, '-', 2)::integer, split_part(id, '-', 3)::bigint)
    else overlay(left(encode(sha256(convert_to(id, 'UTF8')), 'hex'), 32) placing '8' from 13)::uuid
end;


-- intervalq._next_idle: take one session off the list of those that wait for tasks of a queue; nulls: none waits.
create or replace function intervalq._next_idle(
    q text, out who text, out session integer, out wanted integer, out lease bigint
)
language plpgsql volatile
set search_path = pg_catalog, pg_temp
as $$
begin
    -- A session that becomes idle at this moment either sees our inserts, or is seen here.
    perform pg_advisory_xact_lock_shared(intervalq._queue_lock(q));
    loop
        delete from intervalq.idle x where x.session = (
            select j.session from intervalq.idle j where q = any (j.queues) limit 1 for update skip locked
        ) returning x.session, x.wanted, x.lease into session, wanted, lease;
        exit when not found;
        select s.id into who from intervalq.sessions s where s.number = _next_idle.session and s.gone is null;
        exit when found;
    end loop;
end
$$;


-- intervalq._wake: for each of the queues, notify one idle session that there is something to claim, or will be within
-- a second, before which it might not ask by itself.
create or replace function intervalq._wake(queues text[]) returns void
language plpgsql volatile
set search_path = pg_catalog, pg_temp
as $$
declare
    q text;
    woken text;
    shared boolean;
begin
    for q in select distinct u.q from unnest(queues) as u (q) order by 1 loop
        -- One that becomes idle has this lock to itself, and may wake others, too: they would wait for each other.
        for i in 1 .. 20 loop
            shared := pg_try_advisory_xact_lock_shared(intervalq._queue_lock(q));
            exit when shared;
            perform pg_sleep(0.0005);
        end loop;
        if not shared then
            perform pg_notify('intervalq_tasks', '*');
        elsif intervalq._fresh() then
            select x.who into woken from intervalq._next_idle(q) as x;
            if woken is not null then
                perform pg_notify('intervalq_tasks', woken);
            end if;
        else
            if exists (select from intervalq.idle j where q = any (j.queues)) then
                -- Removing a session that was woken just now would abort the caller's transaction: notify them all.
                perform pg_notify('intervalq_tasks', '*');
            end if;
        end if;
    end loop;
end
$$;
