-- Schedules: see `Scheduling` of `intervalq/store.py`. The text of each is replaced by compare-and-swap.
--
-- Public, called by the store, each in one transaction:
--   intervalq.schedule_texts(names, given)                               a look
--   intervalq.schedule_swap(name, known, text, earliest, given)          a change
--
-- This file creates what is missing in schema `intervalq`, and may be run again. The store runs it when it first uses
-- schedules. Where its role may not create schemas, an administrator runs `psql -f schedules.sql`, and then, for that
-- role:
--   grant usage on schema intervalq to some_role;
--   grant select on intervalq.schedules_version to some_role;
--   grant select, insert, update, delete on intervalq.schedules to some_role;
--
-- All times are whole microseconds in bigint. SQLSTATEs raised here: IQ002 something of a newer version.

begin;

set local search_path = pg_catalog, pg_temp;
set local client_min_messages = warning;
set local check_function_bodies = on;

-- Many processes may start at the same moment: the first one creates all, the others find it. The other parts of this
-- schema take the same lock.
do $$
begin
    perform pg_advisory_xact_lock(7310027118246817121);
    if to_regclass('intervalq.schedules_version') is not null then
        if (select max(v.number) from intervalq.schedules_version v) > 1 then
            raise exception 'the schedules of schema intervalq are newer than this file, which makes version 1'
                using errcode = 'IQ002';
        end if;
    end if;
    if to_regnamespace('intervalq') is null then
        execute 'create schema if not exists intervalq';
    end if;
end
$$;

-- The version of the table and the functions. A release that changes any of them increments it: above, below, and in
-- `SCHEMA` of schedules.py.
create table if not exists intervalq.schedules_version (
    one boolean primary key default true check (one),
    number integer not null
);

create table if not exists intervalq.schedules (
    name text collate "C" primary key,
    text text not null
);


create or replace function intervalq._schedule_now(given bigint) returns bigint
language sql volatile
return coalesce(given, (extract(epoch from clock_timestamp()) * 1000000)::bigint);


-- intervalq.schedule_texts: a row with the clock, then one for each schedule of these names, or (null) of all.
create or replace function intervalq.schedule_texts(names text[], given bigint)
returns table (now bigint, name text, text text)
language sql volatile
set search_path = pg_catalog, pg_temp
as $$
    select intervalq._schedule_now(given), null, null
    union all
    select null, s.name, s.text from intervalq.schedules s where names is null or s.name = any(names);
$$;


-- intervalq.schedule_swap: replace the text of schedule `n` by `new` (null: remove it) if it is `known` (null: there is
-- none) and the clock has reached `earliest`. The clock is read once the row is locked. Of two that create a schedule at
-- the same moment, one waits for the other and finds its text.
create or replace function intervalq.schedule_swap(
    n text, known text, new text, earliest bigint, given bigint, out done boolean, out now bigint, out stored text
)
language plpgsql volatile
set search_path = pg_catalog, pg_temp
as $$
begin
    select s.text into stored from intervalq.schedules s where s.name = n for update;
    now := intervalq._schedule_now(given);
    done := stored is not distinct from known and now >= earliest;
    if not done then
        return;
    end if;
    if new is null then
        delete from intervalq.schedules s where s.name = n;
    elsif known is not null then
        update intervalq.schedules s set text = new where s.name = n;
    else
        insert into intervalq.schedules (name, text) values (n, new) on conflict do nothing;
        if not found then
            select false, s.text into done, stored from intervalq.schedules s where s.name = n;
            return;
        end if;
    end if;
    stored := new;
end
$$;

insert into intervalq.schedules_version (number) values (1)
on conflict (one) do update set number = excluded.number where schedules_version.number <> excluded.number;

commit;
