-- The rules of `intervalq/ledger/rules.py` in PL/pgSQL: one row per row of a ledger, one statement per command.
--
-- Public, called by the store; each is a command of the rules, all of it in one transaction:
--   intervalq.ledger_claim, ledger_start, ledger_record, ledger_release, ledger_forget    rows
--   intervalq.ledger_beat, ledger_leave                                                   sessions
--   intervalq.ledger_set, ledger_drop                                                     the ledger itself
--   intervalq.ledger_look, ledger_count, ledger_names                                     looks
--   intervalq.ledger_sweep(most)                                   removes what is left of dropped ledgers
-- Private: what begins with an underscore.
--
-- This file and its parts in sql/ create what is missing in schema `intervalq`, all in one transaction. They may be
-- run again. The store runs them on first use. Where its role may not create schemas, an administrator runs
-- `psql -f ledgers.sql`, and then, for that role:
--   grant usage on schema intervalq to some_role;
--   grant select on intervalq.ledgers_version to some_role;
--   grant select, insert, update, delete on intervalq.ledgers, intervalq.ledger_sessions to some_role;
--   grant select, insert, update, delete on intervalq.ledger_rows to some_role;
--
-- Commands on one ledger run concurrently, and wait for each other only if they name the same rows. Locks are taken
-- in this order, to avoid deadlocks: rows by their keys, sessions, the ledger. The statement that checks which sessions
-- are alive comes after the one that locks the rows, so that it sees what their earlier holders wrote. (One rare
-- deadlock remains, if a row is removed and created again between two steps: the server then ends one of the two, and
-- the store retries.)
--
-- All times are whole microseconds in bigint. SQLSTATEs raised here: IQ002 something of a newer version, 40001
-- another transaction was faster: retry.

begin;

set local search_path = pg_catalog, pg_temp;
set local client_min_messages = warning;
set local check_function_bodies = on;

\ir sql/ledgers_tables.sql
\ir sql/ledgers_rows.sql
\ir sql/ledgers_sessions.sql
\ir sql/ledgers_looks.sql

insert into intervalq.ledgers_version (number) values (1)
on conflict (one) do update set number = excluded.number where ledgers_version.number <> excluded.number;

commit;
