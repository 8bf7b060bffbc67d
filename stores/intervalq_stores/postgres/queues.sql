-- The rules of `intervalq/rules.py` in PL/pgSQL: one row per queue, one statement per step.
--
-- Public, called by the store:
--   intervalq.apply(queue, command, now_override, layout)   one step on one record
--   intervalq.apply_keyed(queue, command, now_override, shared, known, layout)
--                                                           one step on the records of a key and of its queue
--   intervalq.names()                                       the queues that have a record
--   intervalq.apply_all(steps, layout)                      one step on each of several records
-- Private: what begins with an underscore; only these call it, and set the search path for all of it.
--
-- This file and its parts in sql/ create schema `intervalq`, or upgrade an older one, all in one transaction. They
-- may be run again. The store runs them on first use. Where its role may not create schemas, an administrator runs
-- `psql -f queues.sql`, and then, for that role:
--   grant usage on schema intervalq to some_role;
--   grant select on intervalq.version to some_role;
--   grant select, insert, update, delete on intervalq.queues to some_role;
--
-- All times are whole microseconds in bigint. 9007199254740991 (2**53 - 1) is FOREVER of the rules.
-- SQLSTATEs raised here: IQ001 a damaged record, IQ002 something of a newer version, 22003 a number beyond FOREVER
-- (as for Postgres's own overflow), 25006 a replica.

begin;

-- Names are resolved when the functions below are created, never by the search path of a later caller.
set local search_path = pg_catalog, pg_temp;
set local client_min_messages = warning;

\ir sql/queues_tables.sql
\ir sql/queues_limits.sql
\ir sql/queues_counting.sql
\ir sql/queues_edges.sql
\ir sql/queues_auto.sql
\ir sql/queues_record.sql
\ir sql/queues_slots.sql
\ir sql/queues_advance.sql
\ir sql/queues_apply.sql
\ir sql/queues_keyed.sql
\ir sql/queues_keyed_limits.sql

insert into intervalq.version (number) values (16)
on conflict (one) do update set number = excluded.number where version.number <> excluded.number;

commit;
