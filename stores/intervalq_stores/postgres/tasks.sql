-- The rules of `intervalq/tasks/rules.py` in PL/pgSQL: one row a task, one statement a command.
--
-- Public, called by the store:
--   intervalq.modify(command, now)                           `rules.Modify`
--   intervalq.insert_plain(ids, queues, jsons, ats, now)     inserts without key, dedupe key or own id
--   intervalq.work(...)                                      `rules.Work`
--   intervalq.begin_session, beat, end_session            sessions
--   intervalq.guarding, unguarded, guarded                   guards of sessions
--   intervalq.feed(now)                                      lines of keys, after serializable transactions
--   intervalq.put(queue, jsons)                              plain tasks, claimed in ranges
--   intervalq.tasks_of, stats, live_sessions                 looks
-- Public, for everybody:
--   intervalq.enqueue(queue, value, ...)                     a task out of any SQL: triggers, other drivers
-- Private: what begins with an underscore.
--
-- The file is whole, and may be run again: it makes what is missing in schema `intervalq`, or brings an older one
-- up to its version, all in one transaction. The store runs it on first use. Where its role may not create
-- schemas, an administrator runs it with `psql -f tasks.sql`, and then, for that role:
--   grant usage on schema intervalq to some_role;
--   grant select on intervalq.tasks_version to some_role;
--   grant select, insert, update, delete on intervalq.tasks, intervalq.sessions, intervalq.beats to some_role;
--   grant select, insert, update, delete on intervalq.marks, intervalq.idle, intervalq.unfed to some_role;
--   grant select, insert, update, delete on intervalq.clock to some_role;
--   grant select, insert, update, delete on intervalq.plain, intervalq.heads to some_role;
--   grant select, insert, update, delete on intervalq.ranges, intervalq.floors to some_role;
--   grant usage on sequence intervalq.sessions_number_seq, intervalq.plain_blocks to some_role;
--
-- All times are whole microseconds in bigint. SQLSTATE of what is raised here: IQ001 tables whose version is not
-- known, IQ002 something of a newer version, IQ010 tasks that can't be changed so, IQ011 a full inbox (both by
-- `enqueue` only: to the store they are answers, so that the transaction of a caller goes on), 40001 somebody else
-- was faster: again.
--
-- Advisory locks, all but the guards' for the length of a transaction, and in this order:
--   (7310027, number of a session)     a guard's: its process lives
--   hash of [queue, key]               the line of an exclusive key, exclusive, in the order of the hashes
--   hash of [queue, dedupe key]        a mark, likewise
--   hash of [consumer]                 claims of a consumer that has a limit
--   another hash of the queue          who makes its heads
--   hash of the queue                  shared by inserts; a session that becomes idle tries to get it alone

begin;

set local search_path = pg_catalog, pg_temp;
set local client_min_messages = warning;
set local check_function_bodies = on;

-- Many processes may begin at the same moment: the first one makes the schema, the others find it. The other
-- file of this schema takes the same lock.
do $$
declare
    found integer;
begin
    perform pg_advisory_xact_lock(7310027118246817121);
    if to_regclass('intervalq.tasks_version') is not null then
        select max(v.number) into found from intervalq.tasks_version v;
    end if;
    if found > 2 then
        raise exception 'the tasks of schema intervalq are newer than this file, which makes version 2'
            using errcode = 'IQ002';
    elsif found is null and to_regclass('intervalq.tasks') is not null then
        raise exception '%', 'schema intervalq has tasks of a version that is not known, and nothing was done: insert '
            'the version of the release that made them into intervalq.tasks_version' using errcode = 'IQ001';
    elsif found = 1 then
        -- What the functions take and give has changed. Without `cascade`: what users have built on them is theirs.
        drop function if exists intervalq._line(text, intervalq.tasks), intervalq.modify(jsonb, bigint),
            intervalq.tasks_of(text, uuid[], text, bigint, boolean),
            intervalq._claim_ranges(text, integer, integer),
            intervalq.stats(text[], text[], bigint, bigint),
            intervalq._spill(text, smallint, bigint, bigint, integer, text, bigint),
            intervalq.work(
                text, uuid[], integer[], jsonb, jsonb, text[], integer, bigint, bigint, boolean, bigint[], uuid[],
                bigint
            );
        drop type if exists intervalq.line;
        -- Its place is taken by one that looks use, too.
        drop index intervalq.tasks_session;
        -- A claim was an attempt.
        alter table intervalq.tasks add column begun boolean not null default false,
            add column alone boolean not null default false;
        update intervalq.tasks t set begun = true where t.session is not null;
        alter table intervalq.ranges add column begun bigint[], add column has_gaps boolean not null default false;
        -- Queues that were drained have left rows.
        lock table intervalq.heads, intervalq.floors;
        delete from intervalq.heads h where not exists (select from intervalq.plain p where p.queue = h.queue)
            and not exists (select from intervalq.ranges r where r.queue = h.queue);
        delete from intervalq.floors f where not exists (
            select from intervalq.heads h where h.queue = f.queue and h.part = f.part
        );
        insert into intervalq.floors (queue, part) select h.queue, h.part from intervalq.heads h on conflict do nothing;
        alter table intervalq.heads add column moved boolean not null default true;
        alter table intervalq.idle add column wanted integer, add column lease bigint;
    end if;
end
$$;

create schema if not exists intervalq;

-- The version of everything in this file, functions too: any change to it that is released counts this up, here,
-- above, in the last statement, and in `SCHEMA` of tasks.py. What `create ... if not exists` and `create or
-- replace` can't do to an older version is done above. When an older client can't work with the new functions,
-- they take other parameters: clients that are connected then fail with "undefined function", look at the version,
-- and say so.
create table if not exists intervalq.tasks_version (
    one boolean primary key default true check (one),
    number integer not null
);

-- One row a session. It is written when a session begins and ends, and read by all its commands: what its
-- beats write is in a table of its own. A session that is `gone` is no more, for everybody; its row is left
-- until nothing that it has claimed is left, and nothing can come any more.
create table if not exists intervalq.sessions (
    number integer generated by default as identity (sequence name intervalq.sessions_number_seq) primary key,
    id text collate "C" not null unique,
    host text not null,
    pid bigint not null,
    consumer text collate "C" not null,
    expiry bigint not null,
    started bigint not null,
    guarding timestamptz,        -- the start of the server on which it holds the lock of its guard
    gone xid8,                   -- the transaction that removed it
    lapsed boolean not null default false
);

create table if not exists intervalq.beats (
    number integer primary key,
    beaten bigint not null
) with (fillfactor = 50);

-- One row a task; the columns are the fields of `rules.Row`. An id that is no UUID, or one of version 8, is
-- kept in `own`; its `id` is a UUID of version 8 made from its hash. `ready` is `Row.ready`.
create table if not exists intervalq.tasks (
    id uuid primary key,
    ready bigint,
    at bigint not null,
    created bigint not null,
    modified bigint not null,
    until bigint,
    dedupe_for bigint not null default 0,
    version integer not null default 0,
    claims integer not null default 0,
    attempt integer not null default 0,
    place integer not null default 0,
    session integer,             -- sessions.number
    waiting boolean not null default false,
    queue text collate "C" not null,
    json text not null,
    error text not null default '',
    own text collate "C",
    key text collate "C",
    dedupe text collate "C",
    begun boolean not null default false,
    alone boolean not null default false
) with (autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_insert_scale_factor = 0.2);

create index if not exists tasks_ready on intervalq.tasks (queue, ready, id) where ready is not null;
-- Of a session, and for looks of a queue by time. A hash, because every claim writes this index: a text of any length
-- would cost a claim 6 % more, the hash costs nothing that can be measured.
create index if not exists tasks_session on intervalq.tasks (session, hashtextextended(queue, 0), at)
    where session is not null;
create index if not exists tasks_line on intervalq.tasks (queue, key, place) where key is not null;
-- Whatever goes wrong: never two tasks of a key that could run.
create unique index if not exists tasks_first on intervalq.tasks (queue, key)
    where key is not null and not waiting;

-- For looks: tasks behind others by time, and those that have been claimed before. Few tasks are in these, and none
-- comes into them by its first claim.
create index if not exists tasks_waiting on intervalq.tasks (queue, at, id) where waiting;
create index if not exists tasks_again on intervalq.tasks (queue, claims)
    where claims > 1 or claims > 0 and session is null;

create table if not exists intervalq.marks (
    queue text collate "C",
    key text collate "C",
    id text collate "C" not null,
    until bigint,                -- null: as long as the task is there
    primary key (queue, key)
);
create index if not exists marks_until on intervalq.marks (until) where until is not null;

-- Lines of keys whose first has gone in a transaction that could not see who is next.
create table if not exists intervalq.unfed (
    queue text collate "C" not null,
    key text collate "C" not null
);

-- Sessions that found nothing to claim, and want to be woken. Losing it in a crash costs one poll.
create unlogged table if not exists intervalq.idle (
    session integer primary key,
    queues text[] not null,
    wanted integer,              -- so many may be handed to it with a wake-up; null: it claims by itself
    lease bigint
) with (fillfactor = 50);

-- About the latest reading of the server's clock; and when it was last set back, and by how much: who began to wait
-- before that waits by the clock as it would read else. One row; whoever finds it locked leaves it alone.
create table if not exists intervalq.clock (
    one boolean primary key default true check (one),
    seen bigint not null default 0,
    since bigint not null default 0,
    behind bigint not null default 0
) with (fillfactor = 50);
insert into intervalq.clock default values on conflict do nothing;

-- Plain tasks are never updated: what is changed becomes an ordinary task of the same id. A row of `heads` for each
-- part: what is beyond `head` nobody has claimed yet; it is locked by who claims, and by who changes or deletes tasks of
-- the part. There are none for a queue that has no plain tasks: a claim makes them, a sweep removes them. Whoever locks
-- both does it in this order: heads, ranges.
create table if not exists intervalq.plain (
    queue text collate "C",
    part smallint,
    number bigint,
    json text not null,
    primary key (queue, part, number)
);
create sequence if not exists intervalq.plain_blocks;

create table if not exists intervalq.heads (
    queue text collate "C",
    part smallint,
    head bigint not null default 0,
    moved boolean not null default true,  -- since a sweep found nothing to be done below
    primary key (queue, part)
) with (fillfactor = 30);
create index if not exists heads_moved on intervalq.heads (queue, part) where moved;

-- Plain tasks that are committed late may lie below the head. Once all those who could bring any (`writers`, as
-- virtual transactions) have ended, what no range covers up to `next` is moved to the tasks, and `floor` is
-- there: nothing comes below it any more.
create table if not exists intervalq.floors (
    queue text collate "C",
    part smallint,
    floor bigint not null default 0,
    next bigint,
    writers text[],
    swept bigint not null default 0,
    primary key (queue, part)
) with (fillfactor = 30);

create table if not exists intervalq.ranges (
    queue text collate "C",
    part smallint,
    low bigint,
    high bigint not null,
    session integer not null,
    size integer not null,
    begun bigint[],              -- the numbers of tasks that have begun; null: all of them have
    seen pg_snapshot not null,   -- which of the rows between low and high were handed out
    has_gaps boolean not null default false,  -- some of them were taken out of it since
    primary key (queue, part, low)
);
create index if not exists ranges_session on intervalq.ranges (session);

-- What the functions answer: the fields of `rules.Row`, behind a letter for what it is.
do $$
begin
    if to_regtype('intervalq.line') is null then
        create type intervalq.line as (
            kind text, id text, version integer, queue text, at bigint, json text, key text, place integer,
            waiting boolean, session text, until bigint, claims integer, attempt integer, error text,
            created bigint, modified bigint, dedupe text, dedupe_for bigint, begun boolean, alone boolean
        );
    end if;
end
$$;


-- --- small parts -------------------------------------------------------------------------------------

create or replace function intervalq._now(given bigint) returns bigint
language sql volatile
return coalesce(given, (extract(epoch from clock_timestamp()) * 1000000)::bigint);

-- intervalq._lag: by how much the clock was set back since a task was written, as far as `_read_clock` has seen it, and
-- until it has come as far again. What the task waits for comes by so much sooner. What was written while a command
-- was on its way is later than the instant that it read: a step of under a second isn't noticed anyway.
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

-- intervalq._lock: the number of the advisory lock of something, whose kind is the first part. There are 512 of
-- a kind: a server has room for some thousands, and a command may name a thousand keys.
create or replace function intervalq._lock(variadic parts text[]) returns bigint
language sql stable
return 7310027118246900000 + (ascii(parts[1]) << 9) + (hashtextextended(parts::text, 7310027118246817121) & 511);

-- intervalq._queue_lock: that of a queue, which inserts share.
create or replace function intervalq._queue_lock(queue text) returns bigint
language sql immutable
return hashtextextended(queue, 7310027118246817122);

-- In PL/pgSQL what can't be inlined: a function in SQL would be planned anew at each call.
create or replace function intervalq._line(kind text, t intervalq.tasks) returns intervalq.line
language plpgsql stable
set search_path = pg_catalog, pg_temp
as $$
begin
    return row(
        kind, coalesce(t.own, t.id::text), t.version, t.queue, t.at, t.json, t.key, t.place, t.waiting,
        case when t.session is not null then (select s.id from intervalq.sessions s where s.number = t.session) end,
        t.until, t.claims, t.attempt, t.error, t.created, t.modified, t.dedupe, t.dedupe_for, t.begun, t.alone
    )::intervalq.line;
end
$$;

-- intervalq._plain_id: the UUID of a plain task, of version 8: it says where the task is.
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


-- intervalq._next_idle: a session that waits for tasks of a queue, and doesn't any more; nulls: there is none.
create or replace function intervalq._next_idle(
    q text, out who text, out session integer, out wanted integer, out lease bigint
)
language plpgsql volatile
set search_path = pg_catalog, pg_temp
as $$
begin
    -- Whoever becomes idle in this moment has either seen what we insert, or is seen here.
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


-- intervalq._wake: tell one idle session for each of the queues that there is something to claim, or will be
-- within a second: until then it might not ask by itself.
create or replace function intervalq._wake(queues text[]) returns void
language plpgsql volatile
set search_path = pg_catalog, pg_temp
as $$
declare
    q text;
    woken text;
begin
    for q in select distinct u.q from unnest(queues) as u (q) order by 1 loop
        if intervalq._fresh() then
            select x.who into woken from intervalq._next_idle(q) as x;
            if woken is not null then
                perform pg_notify('intervalq_tasks', woken);
            end if;
        else
            perform pg_advisory_xact_lock_shared(intervalq._queue_lock(q));
            if exists (select from intervalq.idle j where q = any (j.queues)) then
                -- To take one out that was woken just now would end the caller's transaction: tell them all.
                perform pg_notify('intervalq_tasks', '*');
            end if;
        end if;
    end loop;
end
$$;


-- intervalq._hand: insert the first of some tasks as claimed by an idle session, if there is one, which gets the lines
-- of a claim with the notice that wakes it, if they fit. Gives how many. Only in a transaction that ends at once.
--   ids: null: new ones
create or replace function intervalq._hand(q text, ids uuid[], jsons text[], now bigint) returns integer
language plpgsql volatile
set search_path = pg_catalog, pg_temp
as $$
declare
    i record;
    n integer;
    said text;
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
        )) into said from unnest(ids[:n], jsons[:n]) as u (id, json);
        if octet_length(said) > 7900 then
            said := '';
            n := 0;
        else
            insert into intervalq.tasks
                (id, ready, at, created, modified, until, version, claims, session, queue, json)
            select u.id, now + i.lease, now, now, now, now + i.lease, 1, 1, i.session, q, u.json
            from unnest(ids[:n], jsons[:n]) as u (id, json);
        end if;
    end if;
    perform pg_notify('intervalq_tasks', i.who || coalesce(said, ''));
    return n;
end
$$;


-- intervalq._feed: the next of its key, now that the first is gone, can be claimed. Gives its queue if now.
create or replace function intervalq._feed(q text, k text, now bigint) returns text
language plpgsql volatile
set search_path = pg_catalog, pg_temp
as $$
declare
    t intervalq.tasks;
begin
    if not intervalq._fresh() then
        -- Who is next may have come later than what this transaction sees.
        insert into intervalq.unfed (queue, key) values (q, k);
        return null;
    end if;
    select x.* into t from intervalq.tasks x where x.queue = q and x.key = k order by x.place, x.id limit 1;
    if t.waiting then
        t.ready := case when t.session is null then t.at else t.until end;
        update intervalq.tasks x set waiting = false, ready = t.ready where x.id = t.id;
        if t.ready <= now then
            return q;
        end if;
    end if;
    return null;
end
$$;


-- intervalq._remove: remove a task. Gives its queue if that made another one ready.
create or replace function intervalq._remove(t intervalq.tasks, now bigint, feed boolean) returns text
language plpgsql volatile
set search_path = pg_catalog, pg_temp
as $$
begin
    if t.key is not null then
        select x.waiting into t.waiting from intervalq.tasks x where x.id = t.id;
    end if;
    delete from intervalq.tasks x where x.id = t.id;
    if t.dedupe is not null then
        perform intervalq._mark(t.queue, t.dedupe, coalesce(t.own, t.id::text), now + t.dedupe_for);
    end if;
    if feed and t.key is not null and not t.waiting then
        return intervalq._feed(t.queue, t.key, now);
    end if;
    return null;
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


-- intervalq._in_line: a task with the last place in the line of its key.
create or replace function intervalq._in_line(t intervalq.tasks) returns intervalq.tasks
language plpgsql volatile
set search_path = pg_catalog, pg_temp
as $$
declare
    last integer;
begin
    select x.place into last from intervalq.tasks x
    where x.queue = t.queue and x.key = t.key order by x.place desc limit 1;
    t.place := coalesce(last, 0) + 1;
    t.waiting := last is not null;
    if t.waiting and not intervalq._fresh() then
        insert into intervalq.unfed (queue, key) values (t.queue, t.key);  -- the first may have gone since
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
        queue, json, error, own, key, dedupe, begun, alone)
    values (t.id, t.ready, t.at, t.created, t.modified, t.until, t.dedupe_for, t.version, t.claims, t.attempt,
        t.place, t.session, t.waiting, t.queue, t.json, t.error, t.own, t.key, t.dedupe, t.begun, t.alone)
    on conflict do nothing;
    if not found then
        raise exception 'task % was inserted at the same moment', coalesce(t.own, t.id::text)
            using errcode = '40001';
    end if;
    return t;
end
$$;


-- intervalq._insert: `rules._insert`.
--   p: [uuid, own, queue, json, key, at, delay, attempt, error, skip, dedupe, dedupe_for, inbox, replace], and of
--     a plain task that was claimed: version, claims
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
    t.version := coalesce((p ->> 14)::integer, 0);
    t.claims := coalesce((p ->> 15)::integer, 0);
    t.place := 0;
    t.waiting := false;
    t.begun := false;
    t.alone := false;
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
                    perform intervalq._remove(other, now, false);
                end if;
            end loop;
        end if;
        t := intervalq._in_line(t);
    end if;
    return intervalq._put(t);
end
$$;


-- intervalq._change: `rules._change`. Gives the task, and queues in which another one became ready.
--   p: [uuid, version, queue, json, at, delay, attempt, error, keep, lease]
create or replace function intervalq._change(
    inout t intervalq.tasks, p jsonb, now bigint, out fed text
)
language plpgsql volatile
set search_path = pg_catalog, pg_temp
as $$
declare
    keep boolean := (p ->> 8)::boolean;
    lease constant bigint := (p ->> 9)::bigint;
    before text := t.queue;
    was_waiting boolean;
begin
    if t.key is not null then
        select x.waiting into t.waiting from intervalq.tasks x where x.id = t.id;
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
    t.attempt := coalesce((p ->> 6)::integer, t.attempt);
    t.error := coalesce(p ->> 7, t.error);
    if not keep then
        t.session := null;
        t.alone := t.alone and not t.begun;
        t.begun := false;
    end if;
    t.until := case when keep then now + lease end;
    t.modified := now;
    if t.dedupe is not null and t.queue <> before then
        perform intervalq._mark(before, t.dedupe, coalesce(t.own, t.id::text), now + t.dedupe_for);
        t.dedupe := null;
        t.dedupe_for := 0;
    end if;
    if t.key is not null and t.queue <> before then
        delete from intervalq.tasks x where x.id = t.id;
        if not was_waiting then
            fed := intervalq._feed(before, t.key, now);
        end if;
        t := intervalq._put(intervalq._in_line(t));
        return;
    end if;
    t.ready := case when t.waiting then null when t.session is null then t.at else t.until end;
    update intervalq.tasks x set
        version = t.version, queue = t.queue, json = t.json, at = t.at, attempt = t.attempt, error = t.error,
        session = t.session, until = t.until, modified = t.modified, dedupe = t.dedupe,
        dedupe_for = t.dedupe_for, ready = t.ready, begun = t.begun, alone = t.alone
    where x.id = t.id;
end
$$;


-- intervalq._lock_lines: the lines of keys and the marks that a command touches, all at once, in one order.
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


-- --- modify ------------------------------------------------------------------------------------------

-- intervalq._locks_of: the lines and marks of everything that a command may touch.
create or replace function intervalq._locks_of(inserts jsonb, changes jsonb, named uuid[]) returns bigint[]
language plpgsql volatile
set search_path = pg_catalog, pg_temp
as $$
begin
    return (select coalesce(array_agg(x.l), '{}') from (
        select intervalq._lock('k', e ->> 2, e ->> 4) from jsonb_array_elements(inserts) as e
        where e ->> 4 is not null
        union all
        -- Those who insert the same ids at the same time wait for each other, in the same order.
        select intervalq._lock('i', e ->> 0) from jsonb_array_elements(inserts) as e
        where e ->> 1 is not null
        union all
        select intervalq._lock('d', e ->> 2, e ->> 10) from jsonb_array_elements(inserts) as e
        where e ->> 10 is not null
        union all
        select intervalq._lock('k', r.queue, r.key)
        from (select y.* from intervalq.tasks y where y.id = any (named) offset 0) as r
        where r.key is not null
        union all
        select intervalq._lock('k', e ->> 2, r.key) from jsonb_array_elements(changes) as e,
            lateral (select y.* from intervalq.tasks y where y.id = (e ->> 0)::uuid limit 1) as r
        where e ->> 2 is not null and r.key is not null
    ) as x (l));
end
$$;


-- intervalq._coming: how many tasks the lines that have limits will have without the inserts of a command, by queue and
-- key; while that can't matter, with those that are missing between the first and the last. And which tasks leave lines.
--   rows_named, known: of `_named`
create or replace function intervalq._coming(
    command jsonb, rows_named intervalq.tasks[], known jsonb, out coming jsonb, out gone uuid[]
)
language plpgsql volatile
set search_path = pg_catalog, pg_temp
as $$
declare
    inserts constant jsonb := command -> 'inserts';
    changes constant jsonb := command -> 'changes';
    few bigint;
    most bigint;
    n bigint;
    i integer;
    k text;
    p jsonb;
    t intervalq.tasks;
begin
    coming := '{}';
    gone := '{}';
    i := jsonb_array_length(inserts) + jsonb_array_length(changes) + jsonb_array_length(command -> 'deletes');
    for k, few, most in
        select jsonb_build_array(e -> 2, e -> 4)::text, min((e ->> 12)::bigint) - i, max((e ->> 12)::bigint) + i + 1
        from jsonb_array_elements(inserts) as e where e ->> 4 is not null and e ->> 12 is not null group by 1
    loop
        select coalesce((
            select r.place from intervalq.tasks r where r.queue = k::jsonb ->> 0 and r.key = k::jsonb ->> 1
            order by r.place desc limit 1
        ) - (
            select r.place from intervalq.tasks r where r.queue = k::jsonb ->> 0 and r.key = k::jsonb ->> 1
            order by r.place limit 1
        ) + 1, 0) into n;
        if n > few then
            select count(*) into n from (
                select from intervalq.tasks r where r.queue = k::jsonb ->> 0 and r.key = k::jsonb ->> 1 limit most
            ) as r;
        end if;
        coming := coming || jsonb_build_object(k, n);
    end loop;
    for p in
        select e from jsonb_array_elements(command -> 'deletes') as e
        union all select e from jsonb_array_elements(changes) as e where e ->> 2 is not null
    loop
        t := rows_named[(known ->> (p ->> 0))::integer];
        continue when t.key is null or t.queue = p ->> 2;
        gone := gone || t.id;
        k := jsonb_build_array(t.queue, t.key)::text;
        if coming ? k then
            coming := coming || jsonb_build_object(k, (coming ->> k)::bigint - 1);
        end if;
        k := jsonb_build_array(p ->> 2, t.key)::text;
        if jsonb_array_length(p) > 2 and coming ? k then
            coming := coming || jsonb_build_object(k, (coming ->> k)::bigint + 1);
        end if;
    end loop;
end
$$;


-- intervalq._full_inbox: the line that says whose inbox gets more than its limit; nulls: none does. Tasks that the
-- command takes away make room.
--   rows_named, known: of `_named`; left_out: of `_leave_out`
create or replace function intervalq._full_inbox(
    command jsonb, rows_named intervalq.tasks[], known jsonb, left_out boolean[], now bigint
) returns intervalq.line
language plpgsql volatile
set search_path = pg_catalog, pg_temp
as $$
declare
    inserts constant jsonb := command -> 'inserts';
    coming jsonb;
    gone uuid[];
    n bigint;
    k text;
    p jsonb;
    l intervalq.line;
begin
    select c.coming, c.gone into coming, gone from intervalq._coming(command, rows_named, known) as c;
    for i in 0 .. jsonb_array_length(inserts) - 1 loop
        p := inserts -> i;
        continue when left_out[i] or p ->> 4 is null;
        k := jsonb_build_array(p -> 2, p -> 4)::text;
        continue when not coming ? k;
        n := coming ->> k;
        if (p ->> 13)::boolean then
            -- Only the first of a key can be held, and all others go.
            select (r.id <> all (gone) and r.session is not null and (r.until is null or (
                r.until > now and r.until > now + intervalq._lag(r.modified, now)
            )))::integer
            into n from intervalq.tasks r where r.queue = p ->> 2 and r.key = p ->> 4
            order by r.place limit 1;
        elsif n > (p ->> 12)::bigint then
            l.kind := 'F';
            l.queue := p ->> 2;
            l.key := p ->> 4;
            l.place := (p ->> 12)::integer;
            return l;
        end if;
        coming := coming || jsonb_build_object(k, coalesce(n, 0) + 1);
    end loop;
    return null;
end
$$;


-- intervalq._named: lock the tasks that a command names, and see which of its new ones are there already.
--   named: those that it changes or deletes; locks: of `_lock_lines`, which it holds
-- Gives the tasks as they were; `known`, for each UUID the place there (0: only an insert names it); and which of
-- those named are plain.
create or replace function intervalq._named(
    command jsonb, named uuid[], locks bigint[],
    out rows_named intervalq.tasks[], out known jsonb, out plain uuid[]
)
language plpgsql volatile
set search_path = pg_catalog, pg_temp
as $$
declare
    depends constant uuid[] := array(select (e ->> 0)::uuid from jsonb_array_elements(command -> 'depends') as e);
    t intervalq.tasks;
begin
    rows_named := '{}';
    known := '{}';
    for t in select r.* from intervalq.tasks r where r.id = any (named) order by r.id for update loop
        if t.key is not null and intervalq._lock('k', t.queue, t.key) <> all (locks) then
            raise exception 'a task was moved at the same moment' using errcode = '40001';
        end if;
        rows_named := rows_named || t;
        known := known || jsonb_build_object(t.id, cardinality(rows_named));
    end loop;
    if depends <> '{}' then
        for t in select r.* from intervalq.tasks r where r.id = any (depends) order by r.id for share loop
            rows_named := rows_named || t;
            known := known || jsonb_build_object(t.id, cardinality(rows_named));
        end loop;
    end if;
    plain := array(
        select u.u from unnest(named || depends) as u (u) where intervalq._is_plain(u.u) and not known ? u.u::text
    );
    if plain <> '{}' then
        for t in select x.* from intervalq._lock_plain(plain) as x loop
            rows_named := rows_named || t;
            known := known || jsonb_build_object(t.id, cardinality(rows_named));
        end loop;
        if exists (select from intervalq.tasks r where r.id = any (plain) and not known ? r.id::text) then
            raise exception 'a plain task became an ordinary one at the same moment' using errcode = '40001';
        end if;
    end if;
    if command -> 'inserts' <> '[]' then
        select known || coalesce(jsonb_object_agg(r.id, 0), '{}') into known from intervalq.tasks r
        where r.id = any (array(select (e ->> 0)::uuid from jsonb_array_elements(command -> 'inserts') as e))
            and not known ? r.id::text;
    end if;
end
$$;


-- intervalq._leave_out: which inserts are left out, because a task with that id or dedupe key is there, and the
-- lines that say so; and the UUIDs of those that may not be there, but are.
create or replace function intervalq._leave_out(
    inserts jsonb, known jsonb, now bigint,
    out left_out boolean[], out lines intervalq.line[], out collisions text[]
)
language plpgsql volatile
set search_path = pg_catalog, pg_temp
as $$
declare
    p jsonb;
    k text;
    there text;                  -- the id of the task that is there
    taken jsonb := '{}';         -- by inserts of this command: queue and dedupe key, and the id
begin
    left_out := '{}';
    lines := '{}';
    collisions := '{}';
    for i in 0 .. jsonb_array_length(inserts) - 1 loop
        p := inserts -> i;
        there := case when known ? (p ->> 0) and (p ->> 9)::boolean then coalesce(p ->> 1, p ->> 0) end;
        if there is null and p ->> 10 is not null then
            k := jsonb_build_array(p -> 2, p -> 10)::text;
            there := taken ->> k;
            if there is null then
                select m.id into there from intervalq.marks m
                where m.queue = p ->> 2 and m.key = p ->> 10 and (m.until is null or m.until > now);
            end if;
            if there is null then
                taken := taken || jsonb_build_object(k, coalesce(p ->> 1, p ->> 0));
            end if;
        end if;
        left_out[i] := there is not null;
        if there is not null then
            lines := lines || row(
                'e', p ->> 0, 0, '', 0, '', there, i, false, '', 0, 0, 0, '', 0, 0, '', 0, false, false
            )::intervalq.line;
        elsif known ? (p ->> 0) then
            collisions := collisions || (p ->> 0);
        end if;
    end loop;
end
$$;


-- intervalq._refused: the line that says why a command can't be carried out; nulls: it can. Everything that it names
-- must be there, at its version, and claimed by nobody else.
--   rows_named, known, plain: of `_named`; collisions: of `_leave_out`; me: the session of the caller
create or replace function intervalq._refused(
    command jsonb, rows_named intervalq.tasks[], known jsonb, plain uuid[], collisions text[], me integer, now bigint
) returns intervalq.line
language plpgsql volatile
set search_path = pg_catalog, pg_temp
as $$
declare
    force constant boolean := (command ->> 'force')::boolean;
    missing_changes text[] := '{}';
    missing_deletes text[] := '{}';
    missing_depends text[] := '{}';
    claimed text[] := '{}';
    part text;
    p jsonb;
    t intervalq.tasks;
    is_mine boolean;
    is_free boolean;
    l intervalq.line;
begin
    for part, p in
        select 'changes', e from jsonb_array_elements(command -> 'changes') as e
        union all select 'deletes', e from jsonb_array_elements(command -> 'deletes') as e
        union all select 'depends', e from jsonb_array_elements(command -> 'depends') as e
    loop
        t := rows_named[(known ->> (p ->> 0))::integer];
        if t.id is null or (t.version <> (p ->> 1)::bigint and not force) then
            case part
                when 'changes' then missing_changes := missing_changes || (p ->> 0);
                when 'deletes' then missing_deletes := missing_deletes || (p ->> 0);
                else missing_depends := missing_depends || (p ->> 0);
            end case;
        elsif part <> 'depends' and not force then
            is_free := t.session is null
                or coalesce(t.until <= now or t.until <= now + intervalq._lag(t.modified, now), false);
            is_mine := not is_free and t.session is not distinct from me;
            if not (is_free or is_mine)
                or (part = 'changes' and (p ->> 8)::boolean and (is_free or t.id = any (plain)))
            then
                claimed := claimed || (p ->> 0);
            end if;
        end if;
    end loop;
    if cardinality(collisions || missing_changes || missing_deletes || missing_depends || claimed) > 0 then
        l.kind := 'D';
        l.json := json_build_object(
            'inserts', collisions, 'changes', missing_changes, 'deletes', missing_deletes,
            'depends', missing_depends, 'claims', claimed
        );
    end if;
    return l;
end
$$;


-- intervalq._carry_out: do what a command says. Gives the lines of its answer, and the queues of tasks that became
-- ready.
--   rows_named, known, plain: of `_named`; left_out: of `_leave_out`
create or replace function intervalq._carry_out(
    command jsonb, rows_named intervalq.tasks[], known jsonb, plain uuid[], named uuid[], left_out boolean[],
    now bigint, out lines intervalq.line[], out woken text[]
)
language plpgsql volatile
set search_path = pg_catalog, pg_temp
as $$
declare
    t intervalq.tasks;
    p jsonb;
    after record;
begin
    lines := '{}';
    woken := '{}';
    if plain <> '{}' then
        perform intervalq._take_plain(array(
            select x from unnest(rows_named) as x where x.id = any (plain) and x.id = any (named)
        ), array(select (e ->> 0)::uuid from jsonb_array_elements(command -> 'changes') as e), now);
        -- Whoever found nothing because of our locks.
        woken := array(select distinct x.queue from unnest(rows_named) as x where x.id = any (plain));
    end if;
    for p in select e from jsonb_array_elements(command -> 'deletes') as e loop
        continue when (p ->> 0)::uuid = any (plain);
        woken := woken || intervalq._remove(rows_named[(known ->> (p ->> 0))::integer], now, true);
    end loop;
    for p in select e from jsonb_array_elements(command -> 'changes') as e loop
        after := intervalq._change(rows_named[(known ->> (p ->> 0))::integer], p, now);
        t := after.t;
        woken := woken || after.fed || case when t.ready <= now + 5000000 then t.queue end;
        lines := lines || intervalq._line('c', t);
    end loop;
    for i in 0 .. jsonb_array_length(command -> 'inserts') - 1 loop
        continue when left_out[i];
        t := intervalq._insert(command -> 'inserts' -> i, now);
        woken := woken || case when t.ready <= now + 5000000 then t.queue end;
        lines := lines || intervalq._line('i', t);
    end loop;
    woken := array_remove(woken, null);
end
$$;


-- intervalq.modify: `rules.Modify`.
--   command: {"session", "force", "inserts": [..], "changes": [..], "deletes": [[uuid, version]..], "depends":
--     [[uuid, version]..]}; see `_insert` and `_change` for the others
-- Answers lines: i, an inserted task; c, a changed one; e, one left out, whose place is that of the insert and
-- whose key is the id of the task that was there before; or one line alone: D, a DependencyError, whose json
-- has the UUIDs; F, InboxFull, with queue, key, and the limit as place.
create or replace function intervalq.modify(command jsonb, now bigint) returns setof intervalq.line
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
    inserts constant jsonb := command -> 'inserts';
    changes constant jsonb := command -> 'changes';
    named constant uuid[] := array(
        select (e ->> 0)::uuid from jsonb_array_elements(changes || (command -> 'deletes')) as e
    );
    locks constant bigint[] := intervalq._locks_of(inserts, changes, named);
    me integer;
    there record;
    others record;
    done record;
    l intervalq.line;
    t intervalq.tasks;
begin
    select s.number into me from intervalq.sessions s
    where s.id = command ->> 'session' and s.gone is null;
    perform intervalq._lock_lines(locks);
    there := intervalq._named(command, named, locks);
    -- The clock is noted by `work` and `beat` only: this may be in a transaction of the user's, who would keep others waiting.
    now := intervalq._now(now);

    others := intervalq._leave_out(inserts, there.known, now);
    l := intervalq._refused(command, there.rows_named, there.known, there.plain, others.collisions, me, now);
    if l.kind is null and locks <> '{}' and jsonb_path_exists(inserts, 'strict $[*] ? (@[12] != null)') then
        l := intervalq._full_inbox(command, there.rows_named, there.known, others.left_out, now);
    end if;
    if l.kind is not null then
        return next l;
        return;
    end if;

    done := intervalq._carry_out(
        command, there.rows_named, there.known, there.plain, named, others.left_out, now
    );
    foreach l in array others.lines || done.lines loop
        if locks <> '{}' and l.kind <> 'e' and l.key is not null then
            -- What went on with a key may have changed it once more: the last of a line may be the first now.
            select r.* into t from intervalq.tasks r where r.id = intervalq._id(l.id);
            if found then
                l := intervalq._line(l.kind, t);
            end if;
        end if;
        return next l;
    end loop;
    if done.woken <> '{}' then
        perform intervalq._wake(done.woken);
    end if;
end
$$;


-- intervalq.insert_plain: many inserts that have nothing but a queue, a value and a time.
--   queues, jsons: joined by the character 31, which no JSON text has; one queue alone is that of all
--   ats: null: now
-- An id that exists is a violation of uniqueness: to look before would cost a third more.
create or replace function intervalq.insert_plain(
    ids uuid[], queues text, jsons text, ats bigint[], now bigint
) returns bigint
language plpgsql volatile
set search_path = pg_catalog, pg_temp
set lock_timeout = '4s'
as $$
declare
    names text[];
    items constant text[] := string_to_array(jsons, chr(31));
    n integer;
begin
    now := intervalq._now(now);
    if ats is null and strpos(queues, chr(31)) = 0 then
        n := intervalq._hand(queues, ids, items, now);
        if n < cardinality(ids) then
            insert into intervalq.tasks (id, ready, at, created, modified, queue, json)
            select u.id, now, now, now, now, queues, u.json from unnest(ids[n + 1 :], items[n + 1 :]) as u (id, json);
        end if;
    else
        names := string_to_array(queues, chr(31));
        insert into intervalq.tasks (id, ready, at, created, modified, queue, json)
        select u.id, coalesce(u.at, now), coalesce(u.at, now), now, now, coalesce(u.queue, queues), u.json
        from unnest(
            ids, items, ats, case when cardinality(names) > 1 then names end
        ) as u (id, json, at, queue);
        names := array(
            select distinct coalesce(u.queue, queues)
            from unnest(ids, ats, case when cardinality(names) > 1 then names end) as u (id, at, queue)
            where coalesce(u.at, now) <= now + 5000000
        );
        perform intervalq._wake(names);
    end if;
    return now;
end
$$;


-- --- plain tasks -------------------------------------------------------------------------------------

-- intervalq.put: insert plain tasks; jsons are joined by the character 31.
create or replace function intervalq.put(q text, jsons text) returns void
language plpgsql volatile
set search_path = pg_catalog, pg_temp
set lock_timeout = '4s'
as $$
declare
    items text[] := string_to_array(jsons, chr(31));
    n integer;
    first constant integer := floor(random() * 16);
    block bigint;
    p integer;
begin
    -- First of all: whoever looks for writers of numbers below some head must see us, from before the first.
    perform pg_advisory_xact_lock_shared(intervalq._queue_lock(q));
    -- Those that go to an idle session at once are ordinary tasks: nobody looks for them below a head.
    n := intervalq._hand(q, null, items, intervalq._now(null));
    items := items[n + 1 :];
    n := cardinality(items);
    for c in 0 .. (n + 999) / 1000 - 1 loop
        block := nextval('intervalq.plain_blocks') * 1024;
        p := (first + c) % 16;
        insert into intervalq.plain (queue, part, number, json)
        select q, p, block + u.i, u.json
        from unnest(items[c * 1000 + 1 : c * 1000 + 1000]) with ordinality as u (json, i);
    end loop;
end
$$;


-- intervalq._make_heads: the rows of a queue that has plain tasks. One has moved, so that a sweep looks at this queue even
-- if nobody gets anything.
--   wait: False: somebody else may be making them in a long transaction; then nothing is done
create or replace function intervalq._make_heads(q text, wait boolean) returns void
language plpgsql volatile
set search_path = pg_catalog, pg_temp
as $$
declare
    mine constant bigint := intervalq._lock('h', q);
begin
    if wait then
        perform pg_advisory_xact_lock(mine);
    else
        for i in 1 .. 20 loop
            exit when pg_try_advisory_xact_lock(mine);
            if i = 20 then
                return;
            end if;
            perform pg_sleep(0.0005);
        end loop;
    end if;
    insert into intervalq.heads (queue, part, moved)
    select q, p, p = 0 from generate_series(0, 15) as p on conflict do nothing;
    insert into intervalq.floors (queue, part) select q, p from generate_series(0, 15) as p on conflict do nothing;
end
$$;


-- intervalq._claim_ranges: claim plain tasks, from as many parts as that takes.
-- The live sessions share the parts by their order, so that they don't want the same; when a session's own
-- have nothing, it takes from the others.
create or replace function intervalq._claim_ranges(q text, wanted integer, me integer, begins integer)
returns setof intervalq.line
language plpgsql volatile
set search_path = pg_catalog, pg_temp
as $$
declare
    left_over integer := wanted;
    mine bigint;
    others bigint;
    h intervalq.heads;
    top bigint;
    n integer;
    seen pg_snapshot;
    l intervalq.line;
    doubt boolean := false;      -- others may have made heads, and removed them, since what this transaction sees
begin
    if not exists (select from intervalq.heads x where x.queue = q) then
        if not exists (select from intervalq.plain p where p.queue = q) then
            return;
        end if;
        perform intervalq._make_heads(q, false);
        doubt := not intervalq._fresh();
    end if;
    select count(*) filter (where s.number < me), count(*) into mine, others
    from intervalq.sessions s where s.gone is null;
    for h in
        select x.* from intervalq.heads x where x.queue = q
        order by (x.part * others / 16 = mine) desc, random()
    loop
        continue when not exists (
            select from intervalq.plain p where p.queue = q and p.part = h.part and p.number > h.head
        );
        select x.head into top from intervalq.heads x
        where x.queue = q and x.part = h.part for update skip locked;
        continue when not found;
        select min(p.number), max(p.number), count(*), string_agg(p.json, chr(31)),
            string_agg(p.number::text, ','), pg_current_snapshot()
        into l.at, l.until, n, l.json, l.key, seen
        from (
            select x.number, x.json from intervalq.plain x
            where x.queue = q and x.part = h.part and x.number > top order by x.number limit left_over
        ) as p;
        continue when n = 0;
        if doubt then
            -- 40001, if one of them is done already.
            perform from intervalq.plain x
            where x.queue = q and x.part = h.part and x.number between l.at and l.until for key share;
        end if;
        update intervalq.heads x set head = l.until, moved = true where x.queue = q and x.part = h.part;
        insert into intervalq.ranges (queue, part, low, high, session, size, begun, seen)
        values (q, h.part, l.at, l.until, me, n, case when begins = 0 then '{}'::bigint[] end, seen);
        l.kind := 'r';
        l.queue := q;
        l.place := h.part;
        l.claims := n;
        return next l;
        left_over := left_over - n;
        exit when left_over <= 0;
    end loop;
end
$$;


-- intervalq._uuid: a new UUID of version 7.
create or replace function intervalq._uuid() returns uuid
language sql volatile
return encode(
    set_byte(
        overlay(uuid_send(gen_random_uuid()) placing substring(
            int8send((extract(epoch from clock_timestamp()) * 1000)::bigint) from 3
        ) from 1 for 6),
        6, 112 + floor(random() * 16)::integer
    ), 'hex'
)::uuid;


-- intervalq._spill: rows of plain tasks become ordinary ones: those of a range, or those that none covers.
--   tries: -1: nobody had them; 0: somebody had, and gives them back; 1: they were lost
--   begun: with which of the lost ones that session had begun; null: all
create or replace function intervalq._spill(
    q text, of smallint, low bigint, high bigint, tries integer, begun bigint[], why text, now bigint
) returns bigint
language plpgsql volatile
set search_path = pg_catalog, pg_temp
as $$
declare
    n bigint;
begin
    with spilt as (
        delete from intervalq.plain p
        where p.queue = q and p.part = of and p.number between low and high and not exists (
            select from intervalq.ranges r
            where r.queue = q and r.part = of and r.low <= p.number and r.high >= p.number
        )
        returning p.number, p.json, tries > 0 and (begun is null or p.number = any (begun)) as tried
    )
    insert into intervalq.tasks
        (id, own, ready, at, created, modified, version, claims, attempt, queue, json, error, alone)
    select intervalq._plain_id(of, s.number), 'plain-' || of || '-' || s.number, now, now, now, now,
        2 * least(1, tries + 1), least(1, tries + 1), s.tried::integer, q, s.json,
        case when s.tried then why else '' end, tries > 0
    from spilt s;
    get diagnostics n = row_count;
    return n;
end
$$;


-- intervalq._saw: whether a snapshot saw a row that is seen now, by the transaction that inserted it.
create or replace function intervalq._saw(seen pg_snapshot, inserted xid) returns boolean
language plpgsql stable
set search_path = pg_catalog, pg_temp
as $$
declare
    latest constant bigint := greatest(
        pg_snapshot_xmax(pg_current_snapshot())::text::bigint, pg_current_xact_id_if_assigned()::text::bigint
    );
begin
    return pg_visible_in_snapshot((
        latest - ((latest - inserted::text::bigint) % 4294967296 + 4294967296) % 4294967296
    )::text::xid8, seen);
end
$$;


-- intervalq._plain_task: a plain task as an ordinary one, which has no times yet. Claimed, if it was handed out.
create or replace function intervalq._plain_task(p intervalq.plain, inserted xid) returns intervalq.tasks
language plpgsql stable
set search_path = pg_catalog, pg_temp
as $$
declare
    r intervalq.ranges;
    t intervalq.tasks;
    held boolean;
begin
    select x.* into r from intervalq.ranges x
    where x.queue = p.queue and x.part = p.part and x.low <= p.number order by x.low desc limit 1;
    held := coalesce(r.high >= p.number and intervalq._saw(r.seen, inserted), false);
    t.id := intervalq._plain_id(p.part, p.number);
    t.own := 'plain-' || p.part || '-' || p.number;
    t.queue := p.queue;
    t.json := p.json;
    t.at := 0;
    t.created := 0;
    t.modified := 0;
    t.dedupe_for := 0;
    t.version := held::integer;
    t.claims := held::integer;
    t.session := case when held then r.session end;
    t.begun := held and (r.begun is null or p.number = any (r.begun));
    t.attempt := t.begun::integer;
    t.place := 0;
    t.waiting := false;
    t.alone := false;
    t.error := '';
    return t;
end
$$;


-- intervalq._find_plain: those of these UUIDs that are plain tasks. Each queue that has any is asked for its own.
create or replace function intervalq._find_plain(ids uuid[])
returns table (queue text, part smallint, number bigint)
language plpgsql stable
set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set enable_hashjoin = off
set enable_mergejoin = off
set enable_bitmapscan = off
as $$
declare
    parts smallint[];
    numbers bigint[];
    q text := '';
    n bigint;
    left_over bigint;
begin
    select array_agg(x.part), array_agg(x.number), count(*) into parts, numbers, left_over from (
        select ('x' || substr(u.u::text, 16, 3))::bit(12)::integer::smallint as part,
            ('x' || substr(u.u::text, 20, 4) || substr(u.u::text, 25))::bit(64)::bigint as number
        from unnest(ids) as u (u) where intervalq._is_plain(u.u)
    ) as x;
    while left_over > 0 loop
        select p.queue into q from intervalq.plain p where p.queue > q order by p.queue limit 1;
        exit when q is null;
        return query select p.queue, p.part, p.number from unnest(parts, numbers) as u (part, number)
        join intervalq.plain p on p.queue = q and p.part = u.part and p.number = u.number;
        get diagnostics n = row_count;
        left_over := left_over - n;
    end loop;
end
$$;


-- intervalq._lock_plain: the plain tasks among these, which nobody claims or finishes until the end of the transaction.
create or replace function intervalq._lock_plain(ids uuid[]) returns setof intervalq.tasks
language plpgsql volatile
set search_path = pg_catalog, pg_temp
as $$
declare
    queues text[];
    parts smallint[];
    numbers bigint[];
    f record;
begin
    select array_agg(x.queue), array_agg(x.part), array_agg(x.number) into queues, parts, numbers
    from intervalq._find_plain(ids) as x;
    for f in
        select u.q, array_agg(distinct u.p) as parts from unnest(queues, parts) as u (q, p) group by 1 order by 1
    loop
        if not exists (select from intervalq.heads h where h.queue = f.q) then
            perform intervalq._make_heads(f.q, true);
        end if;
        perform from intervalq.heads h where h.queue = f.q and h.part = any (f.parts) order by h.part for update;
    end loop;
    perform from intervalq.ranges r join (
        select distinct y.queue, y.part, y.low from unnest(queues, parts, numbers) as u (q, p, n), lateral (
            select x.queue, x.part, x.low from intervalq.ranges x
            where x.queue = u.q and x.part = u.p and x.low <= u.n order by x.low desc limit 1
        ) as y
    ) as z on z.queue = r.queue and z.part = r.part and z.low = r.low
    order by r.queue, r.part, r.low for update of r;
    return query select t.* from unnest(queues, parts, numbers) as u (q, p, n)
    join intervalq.plain y on y.queue = u.q and y.part = u.p and y.number = u.n,
        lateral intervalq._plain_task(y, y.xmin) as t;
end
$$;


-- intervalq._take_plain: these, of `_lock_plain`, are no plain tasks any more; those that are to be changed are
-- ordinary ones from now on.
create or replace function intervalq._take_plain(gone intervalq.tasks[], changed uuid[], now bigint) returns void
language plpgsql volatile
set search_path = pg_catalog, pg_temp
as $$
declare
    t intervalq.tasks;
    n integer;
begin
    delete from intervalq.plain p using unnest(gone) as g
    where p.queue = g.queue and p.part = split_part(g.own, '-', 2)::smallint
        and p.number = split_part(g.own, '-', 3)::bigint;
    get diagnostics n = row_count;
    if n < cardinality(gone) then
        raise exception 'plain tasks were swept at the same moment' using errcode = '40001';
    end if;
    update intervalq.ranges r set size = r.size - x.n, has_gaps = true from (
        select y.queue, y.part, y.low, count(*) as n from unnest(gone) as g, lateral (
            select z.queue, z.part, z.low from intervalq.ranges z
            where z.queue = g.queue and z.part = split_part(g.own, '-', 2)::smallint
                and z.low <= split_part(g.own, '-', 3)::bigint
            order by z.low desc limit 1
        ) as y
        where g.session is not null group by 1, 2, 3
    ) as x where r.queue = x.queue and r.part = x.part and r.low = x.low;
    foreach t in array gone loop
        if t.id = any (changed) then
            t.at := now;
            t.created := now;
            perform intervalq._put(t);
        end if;
    end loop;
end
$$;


-- intervalq._finish: a range is done, but for some that failed; or the first of it. False: it was not the session's.
--   p: [queue, part, low, high, [[number, insert]..], until, count, [number..]]; see `rules.Finished`
create or replace function intervalq._finish(p jsonb, me integer, now bigint) returns boolean
language plpgsql volatile
set search_path = pg_catalog, pg_temp
as $$
declare
    q constant text := p ->> 0;
    of constant smallint := p ->> 1;
    a constant bigint := p ->> 2;
    b constant bigint := p ->> 3;
    r intervalq.ranges;
    upto constant bigint := coalesce((p ->> 5)::bigint, b);
    expected bigint := p ->> 6;
    n bigint;
    x jsonb;
begin
    if p ->> 5 is null then
        delete from intervalq.ranges x where x.queue = q and x.part = of and x.low = a and x.high = b
            and x.session = me
        returning x.* into r;
        expected := r.size;
    else
        update intervalq.ranges x set low = upto + 1, size = x.size - expected, begun = case
            when x.begun is not null then array(
                select u.u from (
                    select unnest(x.begun) union all select e::bigint from jsonb_array_elements_text(p -> 7) as e
                ) as u (u) where u.u > upto
            ) end
        where x.queue = q and x.part = of and x.low = a and x.high = b and x.session = me
        returning x.* into r;
    end if;
    if not found then
        -- It may have been asked for before, and the answer was lost.
        return p ->> 5 is not null and exists (
            select from intervalq.ranges x
            where x.queue = q and x.part = of and x.low = upto + 1 and x.high = b and x.session = me
        );
    end if;
    if upto < a then
        return true;
    end if;
    for x in select e from jsonb_array_elements(p -> 4) as e loop
        -- It may have been taken out of the range.
        if exists (
            select from intervalq.plain y where y.queue = q and y.part = of and y.number = (x ->> 0)::bigint
        ) and not exists (select from intervalq.tasks t where t.id = (x -> 1 ->> 0)::uuid) then
            perform intervalq._insert((x -> 1) || '[2, 1]', now);
        end if;
    end loop;
    begin
        if r.has_gaps then
            raise exception 'their number says nothing' using errcode = 'IQ013';
        end if;
        delete from intervalq.plain y where y.queue = q and y.part = of and y.number between a and upto;
        get diagnostics n = row_count;
        if n <> expected then
            raise exception 'others are among them' using errcode = 'IQ013';
        end if;
    exception when sqlstate 'IQ013' then
        -- What was committed later than the claim was handed out to nobody.
        delete from intervalq.plain y where y.queue = q and y.part = of and y.number between a and upto
            and intervalq._saw(r.seen, y.xmin);
        perform intervalq._spill(q, of, a, upto, -1, null, '', now);
        if r.has_gaps and p ->> 5 is not null then
            update intervalq.ranges x set size = (
                select count(*) from intervalq.plain y where y.queue = q and y.part = of
                    and y.number between upto + 1 and b and intervalq._saw(r.seen, y.xmin)
            ) where x.queue = q and x.part = of and x.low = upto + 1;
        end if;
    end;
    return true;
end
$$;


-- intervalq._writers: transactions that may be inserting to a queue.
create or replace function intervalq._writers(q text) returns text[]
language sql volatile
return array(
    select l.virtualtransaction from pg_locks l
    where l.locktype = 'advisory' and l.mode = 'ShareLock' and l.objsubid = 1
        and l.database = (select d.oid from pg_database d where d.datname = current_database())
        and (l.classid::bigint << 32) | l.objid::bigint = intervalq._queue_lock(q)
        and l.pid is distinct from pg_backend_pid()
);


-- intervalq._sweep: move plain tasks to the others that were committed after the head had passed them. Only heads
-- that have moved are looked at, until nothing is left to be done below them.
create or replace function intervalq._sweep(now bigint) returns void
language plpgsql volatile
set search_path = pg_catalog, pg_temp
as $$
declare
    f intervalq.floors;
    top bigint;
    removed integer := 0;
begin
    for f in
        select x.* from intervalq.heads h join intervalq.floors x on x.queue = h.queue and x.part = h.part
        where h.moved and (now < x.swept or now >= x.swept + 1000000)
        order by x.queue, x.part for update of x skip locked
    loop
        -- The head first, then who could be below it: who comes later gets higher numbers.
        select h.head into top from intervalq.heads h where h.queue = f.queue and h.part = f.part;
        if f.next is not null then
            f.writers := array(
                select unnest(f.writers) intersect select unnest(intervalq._writers(f.queue))
            );
        elsif top > f.floor then
            f.next := top;
            f.writers := intervalq._writers(f.queue);
        end if;
        if f.next is not null and f.writers = '{}' then
            if intervalq._spill(f.queue, f.part, f.floor + 1, f.next, -1, null, '', now) > 0 then
                perform intervalq._wake(array[f.queue]);
            end if;
            f.floor := f.next;
            f.next := null;
        end if;
        update intervalq.floors x set floor = f.floor, next = f.next, writers = f.writers, swept = now
        where x.queue = f.queue and x.part = f.part;
        if f.floor = top and intervalq._rest_head(f.queue, f.part, top) then
            removed := removed + 1;
            exit when removed = 200;  -- each takes a lock, of which a server has some thousands
        end if;
    end loop;
end
$$;


-- intervalq._rest_head: a head that nothing is left to be done below has not moved any more; and if nothing is left
-- of its queue, the rows of that are removed; whether they were, or are to be. It waits for nobody: what is locked
-- is looked at by the next sweep.
create or replace function intervalq._rest_head(q text, of smallint, top bigint) returns boolean
language plpgsql volatile
set search_path = pg_catalog, pg_temp
as $$
begin
    perform from intervalq.heads h where h.queue = q and h.part = of and h.head = top for update skip locked;
    if not found or exists (select from intervalq.ranges r where r.queue = q and r.part = of) then
        return false;
    end if;
    if exists (select from intervalq.plain p where p.queue = q) then
        update intervalq.heads h set moved = false where h.queue = q and h.part = of;
        return false;
    end if;
    -- Without the heads a claim begins at the first number. So nobody may have a range, of which the tasks are still
    -- there; nor be claiming, who has a head locked. And nobody may be inserting: who becomes idle in this moment
    -- finds all heads locked, and would not be told of a task that came before.
    if not pg_try_advisory_xact_lock(intervalq._queue_lock(q))
        or (select count(*) from (
            select from intervalq.heads h where h.queue = q order by h.part for update skip locked
        ) as h) < (select count(*) from intervalq.heads h where h.queue = q)
        or (select count(*) from (
            select from intervalq.floors f where f.queue = q order by f.part for update skip locked
        ) as f) < (select count(*) from intervalq.floors f where f.queue = q)
    then
        return true;
    end if;
    if not exists (select from intervalq.ranges r where r.queue = q)
        and not exists (select from intervalq.plain p where p.queue = q)
    then
        delete from intervalq.heads h where h.queue = q;
        delete from intervalq.floors f where f.queue = q;
    end if;
    return true;
end
$$;


-- --- work --------------------------------------------------------------------------------------------

-- intervalq._settle: settle claims by and by that need more than a delete.
--   parts: in order, [uuid, version] to delete, or as `_change` takes them; a session of null has no claims
-- Gives the UUIDs of those that were lost, and the queues of tasks that became ready.
create or replace function intervalq._settle(
    parts jsonb, me integer, now bigint, out lost uuid[], out woken text[]
)
language plpgsql volatile
set search_path = pg_catalog, pg_temp
as $$
declare
    locks bigint[];
    p jsonb;
    t intervalq.tasks;
    after record;
begin
    lost := '{}';
    woken := '{}';
    select coalesce(array_agg(l.l), '{}') into locks
    from jsonb_array_elements(parts) as e,
        lateral (select x.* from intervalq.tasks x where x.id = (e ->> 0)::uuid limit 1) as r,
        lateral (values (r.queue), (e ->> 2)) as w (queue),
        lateral (select intervalq._lock('k', w.queue, r.key)) as l (l)
    where r.key is not null and r.session = me and w.queue is not null;
    perform intervalq._lock_lines(locks);
    for p in select e from jsonb_array_elements(parts) as e loop
        select r.* into t from intervalq.tasks r
        where r.id = (p ->> 0)::uuid and r.version = (p ->> 1)::bigint and r.session = me for update;
        if not found then
            lost := lost || (p ->> 0)::uuid;
        elsif t.key is not null and intervalq._lock('k', t.queue, t.key) <> all (locks) then
            raise exception 'a task was moved at the same moment' using errcode = '40001';
        elsif jsonb_array_length(p) = 2 then
            woken := woken || intervalq._remove(t, now, true);
        else
            after := intervalq._change(t, p, now);
            t := after.t;
            woken := woken || after.fed || case when t.ready <= now + 5000000 then t.queue end;
        end if;
    end loop;
    woken := array_remove(woken, null);
end
$$;


-- intervalq._read_clock: keep in mind what the clock reads, to the second. `ahead`: as of `since` it was set back by so
-- much, and has not come as far again; 0: not.
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
    -- Where a transaction doesn't see what others have written meanwhile, to write it would end that.
    if intervalq._fresh() and now not between before - 1000000 and before + 1000000 then
        update intervalq.clock x set
            seen = now,
            since = case when now < x.seen then now else x.since end,
            -- What waited since before an earlier step waits for what is left of both.
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


-- intervalq._catch_up: what was written before the clock was set back, and is ready by the clock as it would read else,
-- is ready now: so many tasks of each queue, before they are claimed.
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
            select t.ctid as spot from intervalq.tasks t
            where t.queue = q and t.ready > now and t.ready <= now + ahead
                and (t.modified < since or t.modified > now + 1000000)
            order by t.ready, t.id limit wanted for update skip locked
        )
        update intervalq.tasks t set ready = now, at = least(t.at, now), until = least(t.until, now)
        from late l where t.ctid = l.spot;
    end loop;
end
$$;


-- intervalq._settle_all: settle what `work` is given of claims, see there.
-- Gives what was lost, ranges by their place in `finished`, and the queues of tasks that became ready.
create or replace function intervalq._settle_all(
    ids uuid[], versions integer[], parts jsonb, finished jsonb, me integer, now bigint,
    out lost uuid[], out lost_ranges integer[], out woken text[]
)
language plpgsql volatile
set search_path = pg_catalog, pg_temp
as $$
declare
    done uuid[] := '{}';
    z record;
begin
    lost := '{}';
    lost_ranges := '{}';
    woken := '{}';
    if cardinality(ids) > 0 and me is not null then
        -- Each looked up by its id, whatever the planner believes about the size of the table: else it may
        -- go through all that the session has, for each of them.
        with gone as (
            delete from intervalq.tasks t where t.ctid = any (array(
                select x.ctid from unnest(ids, versions) as d (id, version), lateral (
                    select y.ctid from intervalq.tasks y
                    where y.id = d.id and y.version = d.version and y.session is not distinct from me
                        and y.key is null and y.dedupe is null
                    limit 1
                ) as x
            )) and t.session is not distinct from me
            returning t.id
        )
        select coalesce(array_agg(g.id), '{}') into done from gone g;
    end if;
    if cardinality(ids) > cardinality(done) then
        z := intervalq._settle((
            select jsonb_agg(jsonb_build_array(d.id, d.version) order by d.o)
            from unnest(ids, versions) with ordinality as d (id, version, o) where d.id <> all (done)
        ), me, now);
        lost := z.lost;
        woken := z.woken;
    end if;
    if parts is not null then
        z := intervalq._settle(parts, me, now);
        lost := lost || z.lost;
        woken := woken || z.woken;
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


-- intervalq._room: how many more tasks the sessions of a consumer may claim, of `wanted`, where they may hold `most`.
-- One at a time counts.
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


-- intervalq._first: the line f of the first task of a queue that is ready, from `since` on; nulls: there is none.
create or replace function intervalq._first(q text, since bigint, since_id uuid, now bigint) returns intervalq.line
language plpgsql volatile
set search_path = pg_catalog, pg_temp
as $$
declare
    l intervalq.line;
begin
    select 'f', t.id, q, t.ready into l.kind, l.id, l.queue, l.at from intervalq.tasks t
    where t.queue = q and t.ready <= now
        and (t.ready, t.id) >= (
            coalesce(since, -9223372036854775808), coalesce(since_id, '00000000-0000-0000-0000-000000000000')
        )
    order by t.ready, t.id limit 1;
    return l;
end
$$;


-- intervalq._claim_ready: claim tasks of a queue that are ready: first those from `since` on, then those before.
--   who, me: the session; ends: of the lease; again: when they are ready again, if the session doesn't lapse
create or replace function intervalq._claim_ready(
    q text, wanted integer, since bigint, since_id uuid, who text, me integer, begins integer, ends bigint,
    again bigint, now bigint
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
    if wanted < 16 then
        -- Not always the first: a few tasks that nobody gets done must not hold up the rest.
        select t.ready, t.id into x from intervalq.tasks t
        where t.queue = q and t.ready <= now and (t.ready, t.id) >= (start, start_id)
        order by t.ready, t.id offset floor(random() * 16) limit 1;
        start := coalesce(x.ready, start);
        start_id := coalesce(x.id, start_id);
    end if;
    loop
        return query
        with picked as materialized (
            select t.ctid as spot from intervalq.tasks t
            where t.queue = q and t.ready <= now and (t.ready, t.id) >= (start, start_id)
            order by t.ready, t.id limit left_over for update skip locked
        )
        update intervalq.tasks t set
            version = t.version + 1, session = me, until = ends, ready = again,
            claims = t.claims + 1, attempt = t.attempt + (begins > t.alone::integer)::integer,
            begun = begins > t.alone::integer, modified = now
        from picked p where t.ctid = p.spot
        returning 't', coalesce(t.own, t.id::text), t.version, t.queue, t.at, t.json, t.key,
            t.place, t.waiting, who, t.until, t.claims, t.attempt, t.error, t.created, t.modified,
            t.dedupe, t.dedupe_for, t.begun, t.alone;
        get diagnostics n = row_count;
        left_over := left_over - n;
        -- Then those before: what came back, and what was passed over.
        exit when left_over <= 0 or start = -9223372036854775808;
        start := -9223372036854775808;
        start_id := '00000000-0000-0000-0000-000000000000';
    end loop;
end
$$;


-- intervalq._stand_idle: be woken when a task of these queues is inserted, or be handed up to `wanted` (null: none).
create or replace function intervalq._stand_idle(me integer, queues text[], wanted integer, lease bigint) returns void
language plpgsql volatile
set search_path = pg_catalog, pg_temp
as $$
declare
    q text;
begin
    -- Inserts of this moment don't see us yet, nor we them: wait for them a little; the caller looks again.
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


-- intervalq._next: the line n, which says in how long the next task of these queues is ready; none: there is none.
--   ahead: of `_read_clock`: while the clock catches up, it is looked at again within a second
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
        select t.ready into x from intervalq.tasks t
        where t.queue = q and t.ready > now order by t.ready limit 1;
        l.until := least(l.until, x - now, case when ahead > 0 then 1000000 end);
    end loop;
    if l.until is not null then
        return next l;
    end if;
end
$$;


-- intervalq._claim: claim tasks of several queues, ordinary and plain ones. See `work` for what it is given and
-- answers; me: the number of the session `who`; ahead: of `_read_clock`.
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
    l intervalq.line;
begin
    for look in 1 .. 2 loop
        -- The same share of each queue first, then what else there is.
        for turn in 1 .. least(2, cardinality(queues)) loop
            for i in select u.i from generate_subscripts(queues, 1) as u (i) order by random() loop
                exit when left_over <= 0;
                total := case when turn = 1 then least(share, left_over) else left_over end;
                if plain_first then
                    for l in select c.* from intervalq._claim_ranges(queues[i], total, me, begins) as c loop
                        return next l;
                        total := total - l.claims;
                        left_over := left_over - l.claims;
                    end loop;
                end if;
                if total > 0 then
                    l := null;
                    if total < 16 then
                        l := intervalq._first(queues[i], sinces[i], since_ids[i], now);
                        if l.kind is not null then
                            return next l;
                        end if;
                    end if;
                    return query select c.* from intervalq._claim_ready(
                        queues[i], total, coalesce(l.at, sinces[i]), coalesce(l.id::uuid, since_ids[i]), who, me,
                        begins, now + lease, case when lease > 0 then now + lease end, now
                    ) as c;
                    get diagnostics n = row_count;
                    total := total - n;
                    left_over := left_over - n;
                end if;
                if total > 0 and not plain_first then
                    for l in select c.* from intervalq._claim_ranges(queues[i], total, me, begins) as c loop
                        return next l;
                        left_over := left_over - l.claims;
                    end loop;
                end if;
            end loop;
            exit when left_over <= 0;
        end loop;
        if left_over < wanted then
            delete from intervalq.idle d where d.session = me;
            exit;
        end if;
        exit when look = 2;
        if exists (select from intervalq.heads h where h.queue = any (queues) and h.moved) then
            perform intervalq._sweep(now);
        end if;
        exit when not idle;
        -- A consumer that has a limit counts what it has, and one at a time.
        perform intervalq._stand_idle(me, queues, case when most is null then wanted end, lease);
    end loop;
    if left_over > 0 then
        return query select x.* from intervalq._next(queues, ahead, now) as x;
    end if;
end
$$;


-- intervalq.work: `rules.Work`.
--   ids, versions: tasks to delete
--   parts: of `_settle`, settled one by one; null: none
--   finished: of `_finish`; null: none
--   sinces, since_ids: for each queue where the last claim ended: nearly everything before is claimed, or dead
--     rows. Null: look from the start, which finds everything.
--   begins, begun: see there
-- Answers lines: t, a claimed task; f, which task was the first that was ready, by queue, id and at; r, a range: its
-- part is place, its low and high are at and until, its numbers and values joined in key and json; n, in how long the
-- next task is ready, as until; h, the last: the store's clock as created, and as claims null, 0, the session is
-- gone, or 1, its json has what was lost.
create or replace function intervalq.work(
    who text, ids uuid[], versions integer[], parts jsonb, finished jsonb, queues text[], wanted integer,
    lease bigint, most bigint, idle boolean, sinces bigint[], since_ids uuid[], begins integer, begun uuid[],
    now bigint
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
    -- A call costs more than this look, which mostly says that there is nothing to be done.
    if is_read and not exists (
        select from intervalq.clock c where now between c.seen - 1000000 and c.seen + 1000000 and now >= c.since + c.behind
    ) then
        select c.ahead, c.since into ahead, since from intervalq._read_clock(now) as c;
    end if;

    l.kind := 'h';
    l.created := now;
    l.claims := case when me is null then 0 end;
    if ids is not null or parts is not null or finished is not null then
        settled := intervalq._settle_all(ids, versions, parts, finished, me, now);
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
            -- Ready again at once, but not for this very claim.
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


-- --- sessions ----------------------------------------------------------------------------------------

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


-- intervalq._rest: how long a task rests after its worker was lost; `rest` in `_transitions.py`.
create or replace function intervalq._rest(t intervalq.tasks) returns bigint
language sql immutable
as $$
    select ((case when t.attempt <= 1 then 100000 else least((1 << least(t.attempt - 1, 6)) - 1, 60) * 1000000 end)::bigint
        * ('x' || substr(md5(coalesce(t.own, t.id::text)), 1, 4))::bit(16)::integer) >> 16
$$;


-- intervalq._free: free what a session had claimed, as of one that was lost, or that ended in good order.
-- What somebody works on in this moment is passed over, and freed by a later beat.
create or replace function intervalq._free(s intervalq.sessions, now bigint) returns void
language plpgsql volatile
set search_path = pg_catalog, pg_temp
as $$
declare
    why constant text := case when s.lapsed then s.host || ':' || s.pid || ' was lost' else '' end;
    queues text[];
    r intervalq.ranges;
begin
    with found as materialized (
        select t.ctid as spot, case
            when s.lapsed then now + intervalq._rest(t)
            when t.at > now then t.at - intervalq._lag(t.modified, now) else t.at
        end as at from intervalq.tasks t where t.session = s.number for update skip locked
    ), freed as (
        update intervalq.tasks t set
            version = t.version + 1, session = null, until = null, modified = now,
            at = x.at, ready = x.at,
            error = case when s.lapsed and t.begun then why else t.error end,
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
    if queues is not null then
        perform intervalq._wake(queues);
    end if;
end
$$;


-- intervalq._forget: remove a session: from now on it is none, for anybody.
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


-- intervalq.feed: feed lines whose first has gone in a transaction that could not see who was next.
create or replace function intervalq.feed(now bigint) returns void
language plpgsql volatile
set search_path = pg_catalog, pg_temp
set lock_timeout = '4s'
as $$
declare
    u record;
begin
    now := intervalq._now(now);
    for u in delete from intervalq.unfed x where x.ctid = any (array(
        select y.ctid from intervalq.unfed y order by y.queue, y.key limit 1000 for update skip locked
    )) returning x.queue, x.key
    loop
        perform pg_advisory_xact_lock(intervalq._lock('k', u.queue, u.key));
        if intervalq._feed(u.queue, u.key, now) is not null then
            perform intervalq._wake(array[u.queue]);
        end if;
    end loop;
end
$$;


-- intervalq._lives: whether a session that has not beaten within its expiry is seen to live: its process holds the
-- lock of its guard, so what doesn't go on is its event loop. Five minutes after its last beat that doesn't count any
-- more: it may hang for good, or something on the way keeps a connection open whose client has gone.
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


-- intervalq._forget_lapsed: remove the other sessions that have not beaten within their expiry. Gives their ids.
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


-- intervalq._free_gone: free what was passed over when sessions were removed, and claims that were being made at that
-- moment. The row of a session goes once nothing of it is left.
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


-- intervalq.beat: `rules.Beat`. An array of: is it alive, how much does it hold, who had lapsed; and what `guarded` gives,
-- which would else be a transaction of its own, if the clock is the server's.
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
    -- Whoever removed it has done so before, or waits for what we have just written, and then sees it.
    select x.number into me from intervalq.sessions x where x.id = who and x.gone is null;

    lapsed := intervalq._forget_lapsed(who, now);
    if is_read and me is not null then
        watched := intervalq.guarded(me, now);
    end if;

    perform intervalq._free_gone(now);
    perform intervalq.feed(now);
    delete from intervalq.marks m where (m.queue, m.key) in (
        select y.queue, y.key from intervalq.marks y where y.until <= now order by y.until limit 1000
        for update skip locked
    ) and m.until <= now;
    perform intervalq._sweep(now);

    select (select count(*) from intervalq.tasks t where t.session = me)
        + (select coalesce(sum(r.size), 0) from intervalq.ranges r where r.session = me) into held;
    return jsonb_build_array(me is not null, held, lapsed, watched);
end
$$;


-- intervalq.end_session: `rules.End`. Whether something is left that others had locked in this moment: then it
-- is to be called again, or a beat frees it.
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


-- intervalq.guarding: this connection holds the lock of a session from now on. Gives its number.
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


-- intervalq.unguarded: nobody shall conclude anything from a session's lock any more.
create or replace function intervalq.unguarded(me integer) returns void
language plpgsql volatile
set search_path = pg_catalog, pg_temp
as $$
begin
    update intervalq.sessions s set guarding = null where s.number = me;
    perform pg_advisory_unlock(7310027, me);
end
$$;


-- intervalq.guarded: remove the next session of the ring if its process is dead, and the next then. Gives how
-- many these were; -1: none, and the next one has claimed nothing. Who had its lock on an earlier run of the server may not have come back yet: no judgement.
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


-- --- looks -------------------------------------------------------------------------------------------

create or replace function intervalq.live_sessions() returns table (
    id text, host text, pid bigint, consumer text, expiry bigint, started bigint, beaten bigint
)
language sql stable
set search_path = pg_catalog, pg_temp
as $$
    select s.id, s.host, s.pid, s.consumer, s.expiry, s.started, b.beaten
    from intervalq.sessions s join intervalq.beats b on b.number = s.number
    where s.gone is null order by s.started, s.id;
$$;


-- intervalq._first_of: the first tasks of a queue by time, as spots: so many of the free ones, of those behind others,
-- and of those that each session has claimed.
create or replace function intervalq._first_of(q text, most bigint) returns setof tid
language plpgsql stable
set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set enable_bitmapscan = off
as $$
begin
    return query select t.ctid from intervalq.tasks t
        where t.queue = q and t.ready is not null and t.session is null order by t.ready, t.id limit most;
    return query select t.ctid from intervalq.tasks t
        where t.queue = q and t.waiting order by t.at, t.id limit most;
    return query select c.spot from intervalq.sessions s, lateral (
        select t.ctid as spot from intervalq.tasks t
        where t.session = s.number and hashtextextended(t.queue, 0) = hashtextextended(q, 0) and t.queue = q
        order by t.at limit most
    ) as c;
end
$$;


-- intervalq.tasks_of: `rules.Select`; ids are UUIDs. Plain tasks, which have no times, come last.
create or replace function intervalq.tasks_of(
    q text, ids uuid[], who text, most bigint, with_values boolean
) returns setof intervalq.line
language plpgsql stable
set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_custom_plan
as $$
declare
    n bigint;
begin
    if ids is not null then
        return query
            select 't', coalesce(t.own, t.id::text), t.version, t.queue, t.at,
                case when with_values then t.json else 'null' end, t.key, t.place, t.waiting, s.id, t.until,
                t.claims, t.attempt, t.error, t.created, t.modified, t.dedupe, t.dedupe_for, t.begun, t.alone
            from unnest(ids) with ordinality as u (id, o)
            join (
                select x.* from intervalq.tasks x where x.id = any (ids)
                union all
                select x.* from intervalq._find_plain(ids) as f
                join intervalq.plain p on p.queue = f.queue and p.part = f.part and p.number = f.number,
                    lateral intervalq._plain_task(p, p.xmin) as x
            ) as t on t.id = u.id left join intervalq.sessions s on s.number = t.session
            where (q is null or t.queue = q) and (who is null or s.id = who)
            order by u.o limit most;
    else
        return query execute
            'select ''t'', coalesce(t.own, t.id::text), t.version, t.queue, t.at,
                case when $4 then t.json else ''null'' end, t.key, t.place, t.waiting, s.id, t.until,
                t.claims, t.attempt, t.error, t.created, t.modified, t.dedupe, t.dedupe_for, t.begun, t.alone
            from intervalq.tasks t left join intervalq.sessions s on s.number = t.session where true'
            || case
                when who is not null then
                    ' and t.session = (select x.number from intervalq.sessions x where x.id = $2)'
                when q is not null and most is not null then
                    ' and t.ctid = any (array(select f from intervalq._first_of($1, $3) as f))'
                else '' end
            || case when q is null then '' else ' and t.queue = $1' end
            || ' order by t.at, coalesce(t.own, t.id::text) collate "C" limit $3'
            using q, who, most, with_values;
        get diagnostics n = row_count;
        if who is null and (most is null or n < most) then
            return query select l.* from (
                select p.*, p.xmin as inserted from intervalq.plain p
                where q is null or p.queue = q order by p.queue, p.part, p.number limit most - n
            ) as p, lateral intervalq._line('t', intervalq._plain_task(
                row(p.queue, p.part, p.number, case when with_values then p.json else 'null' end)::intervalq.plain,
                p.inserted
            )) as l;
        end if;
    end if;
end
$$;


-- intervalq._holders: the sessions that have claimed tasks, of whatever queue.
create or replace function intervalq._holders() returns integer[]
language plpgsql stable
set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set enable_hashjoin = off
set enable_mergejoin = off
set enable_bitmapscan = off
as $$
begin
    return array(select s.number from intervalq.sessions s, lateral (
        select from intervalq.tasks t where t.session = s.number limit 1
    ) as t);
end
$$;


-- intervalq._queues: the names of queues that have tasks: these, or those with a prefix; none given: all. Each by
-- one look into an index, however many tasks it has.
create or replace function intervalq._queues(names text[], prefixes text[], holders integer[]) returns setof text
language plpgsql stable
set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set enable_bitmapscan = off
set jit = off
as $$
begin
    return query select u.q from unnest(names) as u (q);
    if cardinality(prefixes) = 0 then
        if cardinality(names) > 0 then
            return;
        end if;
        prefixes := array[''];
    end if;
    return query
    with recursive found (prefix, queue, start) as (
        select u.p, null::text collate "C", u.p collate "C" from unnest(prefixes) as u (p)
        union all
        select f.prefix, n.queue, n.queue || chr(1) from found f, lateral (
            select least(
                (select t.queue from intervalq.tasks t where t.queue >= f.start and t.ready is not null
                    order by t.queue limit 1),
                (select t.queue from intervalq.tasks t where t.queue >= f.start and t.waiting order by t.queue limit 1),
                (select x.queue from intervalq.plain x where x.queue >= f.start order by x.queue limit 1)
            ) as queue
        ) as n where starts_with(n.queue, f.prefix)
    )
    select f.queue from found f where f.queue is not null;
    -- Those of which all tasks are claimed.
    return query
    with recursive held (session, hash, queue) as (
        select u.s, -9223372036854775808, null::text collate "C" from unnest(holders) as u (s)
        union all
        select h.session, n.hash, n.queue from held h, lateral (
            select hashtextextended(t.queue, 0) as hash, t.queue from intervalq.tasks t
            where t.session = h.session and hashtextextended(t.queue, 0) > h.hash
            order by hashtextextended(t.queue, 0) limit 1
        ) as n
    )
    select h.queue from held h where exists (select from unnest(prefixes) as u (p) where starts_with(h.queue, u.p));
end
$$;


-- intervalq._counts: how many tasks each of these queues has, of those whose number may be a million: `found` has how
-- many are ready, for later, behind others, plain and claimed. Each is counted up to its bound; `seen` is above that
-- where there are more. Claims that end by themselves are between those for later, and those that have ended are
-- between the claims: so many of these are passed over, too.
create or replace function intervalq._counts(names text[], bounds bigint[], holders integer[], now bigint)
returns table (queue text, seen bigint[], found bigint[], ranged bigint, most_claims integer)
language plpgsql stable
set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set enable_hashjoin = off
set enable_mergejoin = off
set enable_bitmapscan = off
set jit = off
as $$
begin
    return query
    select u.queue, array[
            past.n, greatest(coming.free, coming.n - least(bounds[2], bounds[5])), inbox.n, plain.n,
            greatest(held.claimed, held.n - least(bounds[1], bounds[5]))
        ],
        array[past.n, coming.free, inbox.n, plain.n, held.claimed], ranged.n,
        greatest(again.claims, (held.n > 0)::integer, ranged.claims)
    from unnest(names) as u (queue), lateral (
        select count(*) as n from (
            select from intervalq.tasks t where t.queue = u.queue and t.ready <= now limit bounds[1] + 1
        ) as x
    ) as past, lateral (
        select count(*) as n, count(*) filter (where x.session is null) as free from (
            select t.session from intervalq.tasks t where t.queue = u.queue and t.ready > now
            limit bounds[2] + least(bounds[2], bounds[5]) + 1
        ) as x
    ) as coming, lateral (
        select count(*) as n from (
            select from intervalq.tasks t where t.queue = u.queue and t.waiting limit bounds[3] + 1
        ) as x
    ) as inbox, lateral (
        select count(*) as n from (select from intervalq.plain p where p.queue = u.queue limit bounds[4] + 1) as x
    ) as plain, lateral (
        select count(*) as n, count(*) filter (where x.until is null or x.until > now) as claimed from (
            select t.until from unnest(holders) as h (session) join intervalq.tasks t on t.session = h.session
                and hashtextextended(t.queue, 0) = hashtextextended(u.queue, 0) and t.queue = u.queue
            limit bounds[5] + least(bounds[1], bounds[5]) + 1
        ) as x
    ) as held, lateral (
        select coalesce(sum(r.size), 0)::bigint as n, max(least(r.size, 1)) as claims
        from intervalq.ranges r where r.queue = u.queue
    ) as ranged, lateral (
        select max(x.claims) as claims from (
            select t.claims from intervalq.tasks t
            where t.queue = u.queue and (t.claims > 1 or t.claims > 0 and t.session is null)
            order by t.claims desc limit 1
        ) as x
    ) as again order by u.queue collate "C";
end
$$;


-- intervalq._sampled: about how many tasks there are, by what about a hundred pages have, which are equally far from
-- each other: for each queue an array as `found` of `_counts`.
create or replace function intervalq._sampled(now bigint) returns jsonb
language plpgsql volatile
set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set enable_bitmapscan = off
set jit = off
as $$
declare
    pages constant bigint := pg_relation_size('intervalq.tasks') / current_setting('block_size')::integer;
    plain_pages constant bigint := pg_relation_size('intervalq.plain') / current_setting('block_size')::integer;
    step constant bigint := greatest(1, pages / 100);
    plain_step constant bigint := greatest(1, plain_pages / 100);
begin
    return (select jsonb_object_agg(z.queue, z.counts) from (
        select y.queue, jsonb_build_array(
            sum(y.past), sum(y.future), sum(y.inbox), sum(y.plain), sum(y.claimed)
        ) as counts from (
            select x.queue, step * count(*) filter (where x.ready <= now) as past,
                step * count(*) filter (where x.ready > now and x.session is null) as future,
                step * count(*) filter (where x.waiting) as inbox, 0 as plain,
                step * count(*) filter (where x.session is not null and (x.until is null or x.until > now)) as claimed
            from generate_series(floor(random() * step)::bigint, pages - 1, step) as p (page), lateral (
                select t.queue, t.ready, t.waiting, t.session, t.until from intervalq.tasks t
                where t.ctid >= ('(' || p.page || ',0)')::tid and t.ctid < ('(' || p.page + 1 || ',0)')::tid offset 0
            ) as x group by x.queue
            union all
            select x.queue, 0, 0, 0, plain_step * count(*), 0
            from generate_series(floor(random() * plain_step)::bigint, plain_pages - 1, plain_step) as p (page), lateral (
                select t.queue from intervalq.plain t
                where t.ctid >= ('(' || p.page || ',0)')::tid and t.ctid < ('(' || p.page + 1 || ',0)')::tid offset 0
            ) as x group by x.queue
        ) as y group by y.queue
    ) as z);
end
$$;


-- intervalq.stats: `rules.Count`; plain tasks are among the ready and the claimed ones. Beside more than ten thousand
-- claims that end by themselves, what is for later is estimated even if it is few, and so are claims beside as many
-- that have ended.
create or replace function intervalq.stats(names text[], prefixes text[], most bigint, now bigint)
returns table (
    name text, size bigint, claimed bigint, ready bigint, future bigint, inbox bigint, most_claims integer,
    exact boolean
)
language plpgsql volatile
set search_path = pg_catalog, pg_temp
as $$
declare
    bound constant bigint := 10000;
    few constant bigint := 2000;
    holders constant integer[] := intervalq._holders();
    queues constant text[] := array(
        select distinct u.q collate "C" from intervalq._queues(names, prefixes, holders) as u (q) order by 1
    );
    at_once constant integer := greatest(1, least(most, 1000));
    bounds bigint[];
    c record;
    about jsonb;
    guess bigint[];
    told bigint := 0;
begin
    now := intervalq._now(now);
    for i in 1 .. cardinality(queues) by at_once loop
        for c in
            select x.* from intervalq._counts(
                queues[i : i + at_once - 1], array_fill(few, array[5]), holders, now
            ) as x
        loop
            exit when told >= most;
            exact := few >= all (c.seen);
            if not exact then
                about := coalesce(about, intervalq._sampled(now));
                guess := array(select coalesce((about -> c.queue ->> n)::bigint, 0) from generate_series(0, 4) as n);
                -- To count up to the bound takes longer than all the rest: not those of which there surely are more.
                bounds := array(
                    select case when u.n <= few then few when u.g > 4 * bound then 0 else bound end
                    from unnest(c.seen, guess) with ordinality as u (n, g, o) order by u.o
                );
                select x.* into c from intervalq._counts(array[c.queue], bounds, holders, now) as x;
                select array_agg(case when u.n <= u.most then u.f else greatest(u.f, u.g) end order by u.o),
                    bool_and(u.n <= u.most)
                into c.found, exact
                from unnest(c.seen, c.found, bounds, guess) with ordinality as u (n, f, most, g, o);
            end if;
            name := c.queue;
            ready := c.found[1] + greatest(0, c.found[4] - c.ranged);
            future := c.found[2];
            inbox := c.found[3];
            claimed := c.found[5] + c.ranged;
            most_claims := coalesce(c.most_claims, 0);
            size := ready + future + inbox + claimed;
            if size > 0 then
                told := told + 1;
                return next;
            end if;
        end loop;
    end loop;
end
$$;


-- --- for everybody -----------------------------------------------------------------------------------

-- intervalq.enqueue: insert a task, out of any SQL, in the caller's transaction. Gives its id; with a dedupe key
-- that is taken, the id of the task that has it.
--   id: your own; null: a new UUID
--   key: tasks of a key never run at the same time; `inbox`: so many may wait; `replace`: only the newest does
--   at, delay: not before this time, or so long from now
--   dedupe_key, dedupe_for: no second task of this key while the first is there, and so long after
create or replace function intervalq.enqueue(
    queue text, value jsonb, id text default null, key text default null, at timestamptz default null,
    dedupe_key text default null, dedupe_for interval default '5 minutes', delay interval default '0',
    inbox integer default null, replace boolean default false
) returns text
language plpgsql volatile
set search_path = pg_catalog, pg_temp
as $$
declare
    uuid constant uuid := case when enqueue.id is null then intervalq._uuid() else intervalq._id(enqueue.id) end;
    l intervalq.line;
begin
    if queue is null or queue = '' or value is null then
        raise exception 'a task has a queue and a value: give both' using errcode = '22004';
    elsif starts_with(id, 'plain-') then
        raise exception 'ids that begin with plain- are those of plain tasks: give another one' using errcode = 'IQ010';
    end if;
    for l in
        select m.* from intervalq.modify(jsonb_build_object(
            'session', '', 'force', false, 'changes', '[]'::jsonb, 'deletes', '[]'::jsonb, 'depends', '[]'::jsonb,
            'inserts', jsonb_build_array(jsonb_build_array(
                uuid, case when uuid::text <> enqueue.id then enqueue.id end, queue, value::text, key,
                (extract(epoch from at) * 1000000)::bigint, (extract(epoch from delay) * 1000000)::bigint, 0, '',
                false, dedupe_key,
                case when dedupe_key is null then 0 else (extract(epoch from dedupe_for) * 1000000)::bigint end,
                inbox, replace
            ))
        ), null) as m
    loop
        if l.kind = 'D' then
            raise exception 'task % exists already', enqueue.id using errcode = 'IQ010';
        elsif l.kind = 'F' then
            raise exception 'the inbox of key % of queue % is full', key, queue using errcode = 'IQ011';
        end if;
        return case when l.kind = 'e' then l.key else l.id end;
    end loop;
end
$$;


insert into intervalq.tasks_version (number) values (2)
on conflict (one) do update set number = excluded.number where tasks_version.number < excluded.number;

commit;
