-- The tables of tasks, brought up to their version, and the type of a line of an answer.

-- Many processes may start at the same moment: the first one creates the schema, the others find it. The other
-- parts of this schema take the same lock.
do $$
declare
    found integer;
begin
    perform pg_advisory_xact_lock(7310027118246817121);
    if to_regclass('intervalq.tasks_version') is not null then
        select max(v.number) into found from intervalq.tasks_version v;
    end if;
    if found > 8 then
        raise exception 'the tasks of schema intervalq are newer than this file, which makes version 8'
            using errcode = 'IQ002';
    elsif found is null and to_regclass('intervalq.tasks') is not null then
        raise exception '%', 'schema intervalq has tasks of a version that is not known, and nothing was done: insert '
            'the version of the release that made them into intervalq.tasks_version' using errcode = 'IQ001';
    elsif found = 1 then
        -- Parameters and results of these functions have changed. No `cascade`: users' own objects may depend on them.
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
        -- Replaced by an index that queries use, too.
        drop index intervalq.tasks_session;
        -- In version 1, each claim was an attempt.
        alter table intervalq.tasks add column begun boolean not null default false,
            add column alone boolean not null default false;
        update intervalq.tasks t set begun = true where t.session is not null;
        alter table intervalq.ranges add column begun bigint[], add column has_gaps boolean not null default false;
        -- Drained queues have left rows.
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
    if found <= 2 then
        -- The order of their parameters has changed, because their lines have: older clients don't find them any more.
        drop function if exists intervalq.modify(jsonb, bigint),
            intervalq.tasks_of(text, uuid[], text, bigint, boolean),
            intervalq.work(
                text, uuid[], integer[], jsonb, jsonb, text[], integer, bigint, bigint, boolean, bigint[], uuid[],
                integer, uuid[], bigint
            );
        alter table intervalq.tasks add column cancelled boolean not null default false,
            add column progress text not null default '';
    end if;
    if found <= 3 then
        -- The same again. `enqueue` has one more parameter, and calls without it must not fit two functions.
        drop function if exists intervalq.modify(bigint, jsonb),
            intervalq.tasks_of(boolean, text, uuid[], text, bigint),
            intervalq._claim_ready(text, integer, bigint, uuid, text, integer, integer, bigint, bigint, bigint),
            intervalq.work(
                text, uuid[], integer[], jsonb, jsonb, text[], integer, bigint, bigint, boolean, integer, uuid[],
                bigint[], uuid[], bigint
            ),
            intervalq.enqueue(
                text, jsonb, text, text, timestamptz, text, interval, interval, integer, boolean
            );
        alter table intervalq.tasks add column priority smallint not null default 0;
        drop index intervalq.tasks_ready;
    end if;
    if found <= 4 then
        -- The same again.
        drop function if exists intervalq.modify(text, jsonb, bigint),
            intervalq.tasks_of(text, boolean, uuid[], text, bigint),
            intervalq._settle_all(uuid[], integer[], jsonb, jsonb, integer, bigint),
            intervalq._carry_out(jsonb, intervalq.tasks[], jsonb, uuid[], uuid[], boolean[], bigint),
            intervalq._change(intervalq.tasks, jsonb, bigint),
            intervalq._remove(intervalq.tasks, bigint, boolean),
            intervalq.work(
                text, uuid[], integer[], jsonb, jsonb, text[], integer, bigint, bigint, boolean, uuid[], integer,
                bigint[], uuid[], bigint
            ),
            intervalq.enqueue(
                text, jsonb, text, text, timestamptz, text, interval, interval, integer, boolean, integer
            );
        alter table intervalq.tasks add column keep_for bigint not null default 0,
            add column errors text not null default '';
    end if;
    if found <= 5 then
        -- The same again; others return more than one queue now.
        drop function if exists intervalq.modify(jsonb, text, bigint),
            intervalq.tasks_of(text, uuid[], boolean, text, bigint),
            intervalq._done(uuid[], integer[], bigint[], bigint[], text, integer, bigint),
            intervalq._settle(jsonb, integer, bigint),
            intervalq._settle_all(
                uuid[], integer[], bigint[], bigint[], text, jsonb, jsonb, integer, bigint
            ),
            intervalq._change(intervalq.tasks, jsonb, integer, bigint),
            intervalq._remove(intervalq.tasks, text, jsonb, integer, bigint, boolean),
            intervalq.work(
                text, uuid[], integer[], bigint[], bigint[], text, jsonb, jsonb, text[], integer, bigint, bigint,
                boolean, uuid[], integer, bigint[], uuid[], bigint
            ),
            intervalq.enqueue(
                text, jsonb, text, text, timestamptz, text, interval, interval, integer, boolean, integer, interval
            );
        alter table intervalq.tasks add column per_key smallint, add column lane smallint,
            add column follow_up text collate "C", add column awaits integer;
        update intervalq.tasks t set lane = 0 where t.key is not null and not t.waiting;
        drop index intervalq.tasks_first;
    end if;
    if found <= 6 then
        if found > 1 then
            alter table intervalq.clock rename column seen to last_now;
        end if;
        alter table intervalq.ranges rename column seen to snapshot;
        if found > 4 then
            alter table intervalq.outcomes add column number bigint not null default 0,
                add column together uuid[], add column queues text[] collate "C";
            drop index intervalq.outcomes_ended;
        end if;
    end if;
    if found <= 7 then
        -- `work` gets and returns other things, so the order of its parameters has changed again.
        drop function if exists intervalq._claim_ranges(text, integer, integer, integer),
            intervalq._note_periods(bigint[], bigint),
            intervalq.work(
                text, uuid[], integer[], bigint[], bigint[], text, jsonb, jsonb, text[], integer, bigint, bigint,
                boolean, integer, uuid[], bigint[], uuid[], bigint
            );
    end if;
    if found = 2 then
        alter type intervalq.line add attribute cancelled boolean, add attribute progress text;
    end if;
    if found in (2, 3) then
        alter type intervalq.line add attribute priority smallint;
    end if;
    if found in (2, 3, 4) then
        alter type intervalq.line add attribute keep_for bigint, add attribute errors text;
    end if;
    if found in (2, 3, 4, 5) then
        alter type intervalq.line add attribute per_key integer, add attribute follow_up text,
            add attribute awaits integer;
    end if;
end
$$;

create schema if not exists intervalq;

-- The version of all tables, types and functions of tasks. A release that changes any of them increments it: above,
-- in tasks.sql, and in `SCHEMA` of tasks.py. What `create ... if not exists` and `create or replace` can't do to an
-- older version is done above. When an older client can't work with the new functions, give them other parameters:
-- clients that are connected then fail with "undefined function", look at the version, and report it.
create table if not exists intervalq.tasks_version (
    one boolean primary key default true check (one),
    number integer not null
);

-- One row per session. It is written when a session begins and ends, and read by all its commands; its heartbeats
-- write to another table. A session that is `gone` has ended for everybody; its row stays until it has no claims
-- left, and can't get any.
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

-- One row per task; the columns are the fields of `rules.Row`. An id that is not a UUID, or is one of version 8, is
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
    alone boolean not null default false,
    cancelled boolean not null default false,
    progress text not null default '',
    priority smallint not null default 0,
    keep_for bigint not null default 0,
    errors text not null default '',
    -- Nulls take no space, and nearly all of these are null.
    per_key smallint,            -- null: 1
    lane smallint,               -- which of the places of its key it has, from 0; null: it waits, or has no key
    follow_up text collate "C",
    awaits integer               -- null: 0
) with (autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_insert_scale_factor = 0.2);

create index if not exists tasks_ready on intervalq.tasks (queue, priority, ready, id) where ready is not null;
-- The queues that have priorities; each claim looks here. Usually it is empty.
create index if not exists tasks_ranked on intervalq.tasks (queue) where priority <> 0 and ready is not null;
-- For the claims of a session, and for looks at a queue by time. It has a hash of the queue's name, because every claim
-- writes this index: the name itself would make a claim 6 % slower, the hash has no measurable cost.
create index if not exists tasks_session on intervalq.tasks (session, hashtextextended(queue, 0), at)
    where session is not null;
create index if not exists tasks_line on intervalq.tasks (queue, key, place) where key is not null;
-- Whatever goes wrong, there are never more tasks of a key that could run than it has places.
create unique index if not exists tasks_first on intervalq.tasks (queue, key, lane)
    where key is not null and not waiting;

-- The queues in which several tasks of a key may run; each end of a task with a key looks here. Usually it is empty.
create index if not exists tasks_shared on intervalq.tasks (queue, key) where per_key is not null;

-- For looks: tasks behind others by time, and tasks that have been claimed before. Few tasks are in these indexes, and
-- a first claim adds none.
create index if not exists tasks_waiting on intervalq.tasks (queue, at, id) where waiting;
create index if not exists tasks_again on intervalq.tasks (queue, claims)
    where claims > 1 or claims > 0 and session is null;

-- Claims that were cancelled: there are few.
create index if not exists tasks_cancelled on intervalq.tasks (session) where cancelled;

create table if not exists intervalq.marks (
    queue text collate "C",
    key text collate "C",
    id text collate "C" not null,
    until bigint,                -- null: as long as the task exists
    primary key (queue, key)
);
create index if not exists marks_until on intervalq.marks (until) where until is not null;

-- Exclusive locks: who holds one until when, and those that were released or let expire within a day.
create table if not exists intervalq.locks (
    name text collate "C" primary key,
    owner text collate "C" not null,  -- empty: it was released
    fence bigint not null,
    until bigint not null,
    expiry bigint not null
) with (fillfactor = 50);
create index if not exists locks_until on intervalq.locks (until);

-- Lines of keys whose first task was removed in a transaction that could not see the next one.
create table if not exists intervalq.unfed (
    queue text collate "C" not null,
    key text collate "C" not null
);

-- Sessions that found nothing to claim, and want to be woken. Losing it in a crash costs one poll.
create unlogged table if not exists intervalq.idle (
    session integer primary key,
    queues text[] not null,
    wanted integer,              -- how many tasks a wake-up may hand to it; null: it claims by itself
    lease bigint
) with (fillfactor = 50);

-- The latest reading of the server's clock, roughly; and when it was last set back, and by how much: tasks that began
-- to wait before that go by the clock as it would read without the step. One row; if it is locked, it is not written.
create table if not exists intervalq.clock (
    one boolean primary key default true check (one),
    last_now bigint not null default 0,
    since bigint not null default 0,
    behind bigint not null default 0
) with (fillfactor = 50);
insert into intervalq.clock default values on conflict do nothing;

-- Plain tasks are never updated: one that is changed becomes an ordinary task with the same id. `heads` has a row for
-- each part: nobody has claimed the tasks beyond `head` yet. Claims lock that row, and so do changes and deletes of
-- tasks of the part. A queue without plain tasks has no heads: a claim creates them, a sweep removes them. The order of
-- locks is: heads, then ranges.
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
    moved boolean not null default true,  -- since a sweep found nothing to do below it
    primary key (queue, part)
) with (fillfactor = 30);
create index if not exists heads_moved on intervalq.heads (queue, part) where moved;

-- Plain tasks that are committed late may lie below the head. Once all transactions that could bring any (`writers`,
-- as virtual transactions) have ended, those up to `next` that no range covers become ordinary tasks, and `floor`
-- moves up to `next`: nothing can appear below it any more.
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
    snapshot pg_snapshot not null,  -- tells which of the rows between low and high were handed out
    has_gaps boolean not null default false,  -- some of them were taken out of it later
    primary key (queue, part, low)
);
create index if not exists ranges_session on intervalq.ranges (session);

-- Outcomes; the columns are the fields of `rules.OutcomeRow`. They are never updated or deleted one by one: a slot has
-- those of one period, see `_slot`, and is emptied after it. All slots are there from the start, so that nobody needs
-- the right to create tables, and no end of a task waits for a new one. Without dead rows, there is nothing to vacuum,
-- and no look depends on statistics.
create table if not exists intervalq.outcomes (
    created bigint not null,
    started bigint not null,
    ended bigint not null,
    until bigint not null,
    pid bigint not null,
    id uuid not null,
    attempts integer not null,
    slot smallint not null,
    own text collate "C",
    queue text collate "C" not null,
    key text collate "C",
    state text not null,
    host text not null,
    json text not null,
    result text not null,
    errors text not null,
    number bigint not null default 0,   -- rises from statement to statement; 0: it is of an older version
    together uuid[],             -- of the first of those that one statement left in a slot: the ids of all
    queues text[] collate "C"    -- of the same one: their queues; null: all are in its own
) partition by list (slot);
create sequence if not exists intervalq.outcome_numbers;
do $$
declare
    role text;
begin
    -- Older versions had no such sequence: who may write outcomes may number them.
    for role in
        select case when a.grantee = 0 then 'public' else a.grantee::regrole::text end
        from pg_class c, aclexplode(c.relacl) a
        where c.oid = 'intervalq.outcomes'::regclass and a.privilege_type = 'INSERT'
    loop
        execute format('grant usage on sequence intervalq.outcome_numbers to %s', role);
    end loop;
    for n in 0 .. 29 loop
        execute format(
            'create table if not exists intervalq.outcomes_%s partition of intervalq.outcomes for values in (%s) '
            'with (autovacuum_enabled = off)', n, n
        );
    end loop;
end
$$;
create index if not exists outcomes_id on intervalq.outcomes (id);
-- For the latest ones: what one statement left is found by its first one, because an entry for each would cost more.
create index if not exists outcomes_number on intervalq.outcomes (number) where together is not null;
create index if not exists outcomes_old on intervalq.outcomes (ended) where number = 0;

-- The periods of which a slot may have outcomes, and when they are over.
create table if not exists intervalq.outcome_periods (
    slot smallint not null,
    over bigint not null
);

-- Who waits for the outcome of a task, until it is there, and at most until then. Nobody reads or writes it but them,
-- and the ends of kept tasks while there are any.
create table if not exists intervalq.awaited (
    id uuid not null,
    until bigint not null,
    who text collate "C" not null
);
create index if not exists awaited_id on intervalq.awaited (id);
create index if not exists awaited_until on intervalq.awaited (until);

-- What the functions return: the fields of `rules.Row`, after a letter for the kind of the line.
do $$
begin
    if to_regtype('intervalq.line') is null then
        create type intervalq.line as (
            kind text, id text, version integer, queue text, at bigint, json text, key text, place integer,
            waiting boolean, session text, until bigint, claims integer, attempt integer, error text,
            created bigint, modified bigint, dedupe text, dedupe_for bigint, begun boolean, alone boolean,
            cancelled boolean, progress text, priority smallint, keep_for bigint, errors text,
            per_key integer, follow_up text, awaits integer
        );
    end if;
end
$$;
