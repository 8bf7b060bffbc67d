-- The tables of queues, brought up to their version, and the type of an answer.

-- Many processes may start at the same moment: the first one creates the schema, the others find it.
do $$
begin
    perform pg_advisory_xact_lock(7310027118246817121);  -- an arbitrary number, which is used only here
    if to_regclass('intervalq.version') is not null then
        if (select max(v.number) from intervalq.version v) > 16 then
            raise exception 'schema intervalq is newer than this file, which makes version 16'
                using errcode = 'IQ002';
        end if;
    end if;
end
$$;

create schema if not exists intervalq;

-- The version of all tables, types and functions of queues. A release that changes any of them increments it:
-- above, in queues.sql, and in `SCHEMA` of queues.py. What `create ... if not exists` and `create or replace`
-- can't do to an older version is added below as `alter ... if exists`. When an older client can't work with the
-- new functions, as with a new layout of records, `apply` takes another `layout`: clients that are connected then
-- fail with "undefined function", look at the version, and report it.
create table if not exists intervalq.version (
    one boolean primary key default true check (one),
    number integer not null
);

-- A limit beside the interval, with the units that still count, in cells: flat lists, sorted by the ends of the
-- cells. The names are those of `rules.State.to_dict()`.
do $$
begin
    if to_regtype('intervalq._limit') is null then
        create type intervalq._limit as (
            most bigint,
            "window" bigint,
            unit text,
            jitter bigint,
            -- Of slots that have passed: the end on the store's clock without its backward steps, the units,
            -- and the end on the queue's clock, in case that is set back. -9007199254740991: see `_fix`.
            used bigint[],
            -- Of slots that may still be used: the end on the queue's clock, and the units.
            ahead bigint[],
            edge bigint  -- null: the limit holds in any window
        );
    elsif not exists (
        select from pg_attribute a
        where a.attrelid = to_regclass('intervalq._limit') and a.attname = 'edge' and not a.attisdropped
    ) then
        alter type intervalq._limit add attribute edge bigint;  -- from version 3
    end if;
end
$$;

-- One row per queue; the columns are the fields of `rules.State.to_dict()`. There is no index beside the primary key,
-- and pages are filled sparsely, so that each step is an update within its page (HOT) that writes no index.
create table if not exists intervalq.queues (
    name text collate "C" primary key,
    version integer not null,
    generation text not null,
    interval bigint not null,
    burst bigint not null,
    max_running bigint not null,
    tolerance bigint not null,
    ephemeral boolean not null,
    ticket bigint not null,
    due bigint not null,
    current bigint not null,
    current_due bigint not null,
    revoked_through bigint not null,
    held_total bigint not null,
    held_since bigint,
    held_until bigint not null,
    last_now bigint not null,
    running bigint[] not null,  -- tickets, each once
    leases bigint[] not null,   -- when the lease of each of them lapses
    late_total bigint not null default 0,
    error bigint not null default 0,
    error_until bigint not null default 0,
    limits intervalq._limit[],  -- null: there are none
    stepped bigint,             -- null without limits
    auto bigint[],              -- null: the interval doesn't find a limit by itself
    weight bigint               -- null: each handle of a key has its own
) with (fillfactor = 50);

-- Upgrades from versions up to 8, in which some columns had other names: see `rules.RENAMED`. Rows keep the number of
-- their layout until their next step.
do $$
declare
    renamed record;
begin
    for renamed in
        select a.attname as before, n.name
        from pg_attribute a
        join (values
            ('at', 'current_due'), ('void', 'revoked_through'), ('held', 'held_total'), ('late', 'late_total'),
            ('seen', 'last_now')
        ) as n (before, name) on n.before = a.attname
        where a.attrelid = to_regclass('intervalq.queues') and not a.attisdropped
    loop
        execute format('alter table intervalq.queues rename column %I to %I', renamed.before, renamed.name);
    end loop;
end
$$;
alter table if exists intervalq.queues
    add column if not exists late_total bigint not null default 0,
    add column if not exists error bigint not null default 0,
    add column if not exists error_until bigint not null default 0,
    add column if not exists limits intervalq._limit[],
    add column if not exists stepped bigint,
    add column if not exists auto bigint[],
    add column if not exists weight bigint;
drop function if exists intervalq.apply(text, jsonb, bigint);
drop function if exists intervalq._usable(intervalq.queues, jsonb, bigint);
drop function if exists intervalq._shown(intervalq.queues);
drop function if exists intervalq._leases(bigint[], bigint[]);
drop function if exists intervalq._set_back_for(intervalq.queues, jsonb, bigint, bigint);
drop function if exists intervalq._set_back(intervalq.queues, bigint);
drop function if exists intervalq._bring_back(intervalq.queues, jsonb);
drop function if exists intervalq._cell(intervalq._limit);
drop function if exists intervalq._cell_end(bigint, bigint);
drop function if exists intervalq._moved(intervalq.queues, intervalq.queues, jsonb, jsonb);
drop function if exists intervalq._moved(intervalq.queues, intervalq.queues, jsonb, jsonb, jsonb);
drop function if exists intervalq._waited(intervalq.queues, bigint);
drop function if exists intervalq._may_come_sooner(intervalq.queues, jsonb, jsonb, bigint);
drop function if exists intervalq._told(intervalq.queues, jsonb);
drop function if exists intervalq._counting(intervalq._limit, bigint);
drop function if exists intervalq._layout_of(intervalq._limit[]);
drop function if exists intervalq._expiry(bigint, bigint, bigint, bigint, bigint, bigint);
drop function if exists intervalq._turn(jsonb, bigint, bigint, bigint, bigint);

-- What a step did, `rules.Answer`: a function that returns a named type costs far less than one with several output
-- parameters. All functions with this type are created anew below.
drop type if exists intervalq._answer cascade;
create type intervalq._answer as (
    state intervalq.queues,  -- null: there is none
    now bigint,
    refused boolean,
    healed boolean,
    granted bigint[],
    missed bigint[],
    at_once boolean,
    first bigint[],          -- ticket, due, cost
    count bigint,
    costs bigint[],
    dues bigint[],
    units jsonb,
    begun bigint,
    woken boolean
);

-- Limits beside the interval, as in `intervalq/_spec/windows.py`: the functions from here to `_sound`, except
-- `_given`, are called only for records that have limits.
