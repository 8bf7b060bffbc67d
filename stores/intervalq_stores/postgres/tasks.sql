-- The rules of `intervalq/tasks/rules.py` in PL/pgSQL: one row per task, one statement per command.
--
-- Public, called by the store:
--   intervalq.modify(who, now, command)                      `rules.Modify`
--   intervalq.cancel(ids, now)                               `rules.Cancel`
--   intervalq.insert_plain(ids, queues, jsons, ats, now)     inserts without key, dedupe key or own id
--   intervalq.work(...)                                      `rules.Work`
--   intervalq.begin_session, beat, end_session               sessions
--   intervalq.guarding, unguarded, guarded                   guards of sessions
--   intervalq.acquire_lock, release_lock                     exclusive locks
--   intervalq.feed(now)                                      lines of keys, after serializable transactions
--   intervalq.put(queue, jsons)                              plain tasks, claimed in ranges
--   intervalq.tasks_of, outcomes_of, stats, live_sessions    looks
--   intervalq.await_outcomes, leave_outcomes                 to be notified of outcomes
--   intervalq.drop_outcomes(now)                             outcomes whose time is over
-- Public, for everybody:
--   intervalq.enqueue(queue, value, ...)                     inserts a task from any SQL: triggers, other drivers
-- Private: what begins with an underscore.
--
-- This file and its parts in sql/ create what is missing in schema `intervalq`, or upgrade an older one, all in one
-- transaction. They may be run again. The store runs them on first use. Where its role may not create schemas, an
-- administrator runs `psql -f tasks.sql`, and then, for that role:
--   grant usage on schema intervalq to some_role;
--   grant select on intervalq.tasks_version to some_role;
--   grant select, insert, update, delete on intervalq.tasks, intervalq.sessions, intervalq.beats to some_role;
--   grant select, insert, update, delete on intervalq.marks, intervalq.idle, intervalq.unfed to some_role;
--   grant select, insert, update, delete on intervalq.locks, intervalq.awaited to some_role;
--   grant select, insert, update, delete on intervalq.heads, intervalq.ranges, intervalq.floors to some_role;
--   grant select, update on intervalq.clock to some_role;
--   grant select, insert, delete on intervalq.plain to some_role;
--   grant select, insert on intervalq.outcomes, intervalq.outcome_periods to some_role;
--   grant usage on sequence intervalq.plain_blocks, intervalq.outcome_numbers to some_role;
--   grant execute on function intervalq.drop_outcomes(bigint) to some_role;
--
-- All times are whole microseconds in bigint. SQLSTATEs raised here: IQ001 tables of an unknown version, IQ002
-- something of a newer version, IQ010 tasks that can't be changed in this way, IQ011 a full inbox (both by `enqueue`
-- only: the store gets them as answers, so that its caller's transaction can continue), 40001 another transaction was
-- faster: retry.
--
-- Advisory locks, held to the end of the transaction except for those of guards, and taken in this order:
--   (7310027, number of a session)     a guard's: its process is alive
--   hash of [queue, key]               the line of an exclusive key, exclusive, in the order of the hashes
--   hash of [queue, dedupe key]        a mark, likewise
--   hash of [consumer]                 claims of a consumer that has a limit
--   another hash of the queue          creating the queue's heads
--   hash of the queue                  shared by inserts; a session that becomes idle tries to lock it exclusively
--
-- Rows are locked after the lines of their keys, and in this order: tasks that wait for no other one, then those that do
-- (`_lock_tasks`), both by their ids; heads; ranges. Heartbeats and claims skip what others have locked.

begin;

set local search_path = pg_catalog, pg_temp;
set local client_min_messages = warning;
set local check_function_bodies = on;

\ir sql/tasks_tables.sql
\ir sql/tasks_basics.sql
\ir sql/tasks_outcomes.sql
\ir sql/tasks_rows.sql
\ir sql/tasks_checks.sql
\ir sql/tasks_modify.sql
\ir sql/tasks_cancel.sql
\ir sql/tasks_ranges.sql
\ir sql/tasks_plain.sql
\ir sql/tasks_settle.sql
\ir sql/tasks_order.sql
\ir sql/tasks_work.sql
\ir sql/tasks_sessions.sql
\ir sql/tasks_locks.sql
\ir sql/tasks_looks.sql
\ir sql/tasks_enqueue.sql

insert into intervalq.tasks_version (number) values (8)
on conflict (one) do update set number = excluded.number where tasks_version.number < excluded.number;

commit;
