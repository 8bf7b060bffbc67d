SET check_function_bodies = false;

CREATE SCHEMA intervalq;

CREATE TYPE intervalq.line AS (
	kind text,
	id text,
	version integer,
	queue text,
	at bigint,
	"json" text,
	key text,
	place integer,
	waiting boolean,
	session text,
	until bigint,
	claims integer,
	attempt integer,
	error text,
	created bigint,
	modified bigint,
	dedupe text,
	dedupe_for bigint,
	begun boolean,
	alone boolean,
	cancelled boolean,
	progress text,
	priority smallint,
	keep_for bigint,
	errors text,
	per_key integer,
	follow_up text,
	awaits integer
);

CREATE TABLE intervalq.tasks (
    id uuid NOT NULL,
    ready bigint,
    at bigint NOT NULL,
    created bigint NOT NULL,
    modified bigint NOT NULL,
    until bigint,
    dedupe_for bigint DEFAULT 0 NOT NULL,
    version integer DEFAULT 0 NOT NULL,
    claims integer DEFAULT 0 NOT NULL,
    attempt integer DEFAULT 0 NOT NULL,
    place integer DEFAULT 0 NOT NULL,
    session integer,
    waiting boolean DEFAULT false NOT NULL,
    queue text NOT NULL COLLATE pg_catalog."C",
    "json" text NOT NULL,
    error text DEFAULT ''::text NOT NULL,
    own text COLLATE pg_catalog."C",
    key text COLLATE pg_catalog."C",
    dedupe text COLLATE pg_catalog."C",
    begun boolean DEFAULT false NOT NULL,
    alone boolean DEFAULT false NOT NULL,
    cancelled boolean DEFAULT false NOT NULL,
    progress text DEFAULT ''::text NOT NULL,
    priority smallint DEFAULT 0 NOT NULL,
    keep_for bigint DEFAULT 0 NOT NULL,
    errors text DEFAULT ''::text NOT NULL,
    per_key smallint,
    lane smallint,
    follow_up text COLLATE pg_catalog."C",
    awaits integer
)
WITH (autovacuum_vacuum_scale_factor='0.02', autovacuum_vacuum_insert_scale_factor='0.2');

CREATE FUNCTION intervalq._carry_out(command jsonb, rows_named intervalq.tasks[], known jsonb, plain uuid[], named uuid[], left_out boolean[], me integer, now bigint, OUT lines intervalq.line[], OUT woken text[]) RETURNS record
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$$$;

CREATE FUNCTION intervalq._catch_up(queues text[], wanted integer, now bigint, ahead bigint, since bigint) RETURNS void
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$$$;

CREATE FUNCTION intervalq._change(INOUT t intervalq.tasks, p jsonb, me integer, now bigint, OUT woken text[]) RETURNS record
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$$$;

CREATE FUNCTION intervalq._claim(who text, me integer, queues text[], wanted integer, lease bigint, most bigint, idle boolean, sinces bigint[], since_ids uuid[], begins integer, ahead bigint, now bigint) RETURNS SETOF intervalq.line
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$$$;

CREATE FUNCTION intervalq._claim_ranges(q text, wanted integer, me integer, begins integer) RETURNS SETOF intervalq.line
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$$$;

CREATE FUNCTION intervalq._claim_ranked(q text, wanted integer, who text, me integer, begins integer, ends bigint, again bigint, now bigint) RETURNS SETOF intervalq.line
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$$$;

CREATE FUNCTION intervalq._claim_ready(q text, wanted integer, since bigint, since_id uuid, who text, me integer, begins integer, ends bigint, again bigint, is_ranked boolean, now bigint) RETURNS SETOF intervalq.line
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$$$;

CREATE FUNCTION intervalq._claim_up_to(q text, wanted integer, levels smallint[], low bigint, high bigint, who text, me integer, begins integer, ends bigint, again bigint, now bigint) RETURNS SETOF intervalq.line
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$$$;

CREATE FUNCTION intervalq._close_ranks(q text, k text) RETURNS void
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$$$;

CREATE FUNCTION intervalq._coming(command jsonb, rows_named intervalq.tasks[], known jsonb, OUT coming jsonb, OUT gone uuid[]) RETURNS record
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$$$;

CREATE FUNCTION intervalq._counts(names text[], bounds bigint[], holders integer[], now bigint) RETURNS TABLE(queue text, seen bigint[], found bigint[], ranged bigint, most_claims integer)
    LANGUAGE plpgsql STABLE
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET plan_cache_mode TO 'force_generic_plan'
    SET enable_seqscan TO 'off'
    SET enable_hashjoin TO 'off'
    SET enable_mergejoin TO 'off'
    SET enable_bitmapscan TO 'off'
    SET jit TO 'off'
    AS $$$$;

CREATE FUNCTION intervalq._done(ids uuid[], versions integer[], keep_fors bigint[], durations bigint[], results text, me integer, now bigint, OUT done uuid[], OUT ended text[]) RETURNS record
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET enable_hashjoin TO 'on'
    AS $$$$;

CREATE TABLE intervalq.sessions (
    number integer NOT NULL,
    id text NOT NULL COLLATE pg_catalog."C",
    host text NOT NULL,
    pid bigint NOT NULL,
    consumer text NOT NULL COLLATE pg_catalog."C",
    expiry bigint NOT NULL,
    started bigint NOT NULL,
    guarding timestamp with time zone,
    gone xid8,
    lapsed boolean DEFAULT false NOT NULL
);

CREATE FUNCTION intervalq._drop_cancelled(s intervalq.sessions, now bigint) RETURNS text[]
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$$$;

CREATE FUNCTION intervalq._errors_of(errors text, keep_for bigint, error text, attempt integer, begun boolean) RETURNS text
    LANGUAGE sql IMMUTABLE
    RETURN CASE WHEN ((errors <> ''::text) OR (keep_for > 0) OR (error = ''::text)) THEN errors ELSE ((('0 '::text || ((attempt - (begun)::integer))::text) || ' '::text) || error) END;

CREATE FUNCTION intervalq._feed(q text, k text, now bigint) RETURNS text
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$$$;

CREATE FUNCTION intervalq._find_plain(ids uuid[]) RETURNS TABLE(queue text, part smallint, number bigint)
    LANGUAGE plpgsql STABLE
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET plan_cache_mode TO 'force_generic_plan'
    SET enable_seqscan TO 'off'
    SET enable_hashjoin TO 'off'
    SET enable_mergejoin TO 'off'
    SET enable_bitmapscan TO 'off'
    AS $$$$;

CREATE FUNCTION intervalq._finish(p jsonb, me integer, now bigint) RETURNS boolean
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$$$;

CREATE FUNCTION intervalq._finish_all(finished jsonb, me integer, now bigint, OUT lost_ranges integer[], OUT woken text[]) RETURNS record
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$$$;

CREATE FUNCTION intervalq._first(q text, since bigint, since_id uuid, now bigint) RETURNS intervalq.line
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$$$;

CREATE FUNCTION intervalq._first_of(q text, most bigint) RETURNS SETOF tid
    LANGUAGE plpgsql STABLE
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET plan_cache_mode TO 'force_generic_plan'
    SET enable_seqscan TO 'off'
    SET enable_bitmapscan TO 'off'
    AS $$$$;

CREATE FUNCTION intervalq._forget(n integer, by_itself boolean, now bigint) RETURNS text
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$$$;

CREATE FUNCTION intervalq._forget_lapsed(who text, now bigint) RETURNS jsonb
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$$$;

CREATE FUNCTION intervalq._free(s intervalq.sessions, now bigint) RETURNS void
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$$$;

CREATE FUNCTION intervalq._free_gone(now bigint) RETURNS void
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$$$;

CREATE FUNCTION intervalq._free_lanes(q text, k text, most integer) RETURNS smallint[]
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$$$;

CREATE FUNCTION intervalq._free_orphans(now bigint) RETURNS void
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$$$;

CREATE FUNCTION intervalq._fresh() RETURNS boolean
    LANGUAGE sql STABLE
    RETURN (current_setting('transaction_isolation'::text) = ANY (ARRAY['read committed'::text, 'read uncommitted'::text]));

CREATE FUNCTION intervalq._full_inbox(command jsonb, rows_named intervalq.tasks[], known jsonb, left_out boolean[], now bigint) RETURNS intervalq.line
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$$$;

CREATE FUNCTION intervalq._hand(q text, ids uuid[], jsons text[], now bigint) RETURNS integer
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$$$;

CREATE FUNCTION intervalq._held_of(q text, k text, gone uuid[], now bigint) RETURNS bigint
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$$$;

CREATE FUNCTION intervalq._holders() RETURNS integer[]
    LANGUAGE plpgsql STABLE
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET plan_cache_mode TO 'force_generic_plan'
    SET enable_seqscan TO 'off'
    SET enable_hashjoin TO 'off'
    SET enable_mergejoin TO 'off'
    SET enable_bitmapscan TO 'off'
    AS $$$$;

CREATE FUNCTION intervalq._plain_id(part integer, number bigint) RETURNS uuid
    LANGUAGE sql IMMUTABLE
    RETURN ((('0000000000008'::text || lpad(to_hex(part), 3, '0'::text)) || lpad(to_hex(number), 16, '0'::text)))::uuid;

CREATE FUNCTION intervalq._id(id text) RETURNS uuid
    LANGUAGE sql IMMUTABLE
    RETURN CASE WHEN (id ~ '^[0-9a-f]{8}-[0-9a-f]{4}-[0-79a-f][0-9a-f]{3}-[0-9a-f]{4}-[0-9a-f]{12}$'::text) THEN (id)::uuid WHEN (id ~ '^plain-(0|[1-9][0-9]{0,2})-[1-9][0-9]{0,17}$'::text) THEN intervalq._plain_id((split_part(id, '-'::text, 2))::integer, (split_part(id, '-'::text, 3))::bigint) ELSE (OVERLAY("left"(encode(sha256(convert_to(id, 'UTF8'::name)), 'hex'::text), 32) PLACING '8'::text FROM 13))::uuid END;

CREATE FUNCTION intervalq._in_line(t intervalq.tasks) RETURNS intervalq.tasks
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$$$;

CREATE FUNCTION intervalq._insert(p jsonb, now bigint) RETURNS intervalq.tasks
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$$$;

CREATE FUNCTION intervalq._is_dead(queue text) RETURNS boolean
    LANGUAGE sql IMMUTABLE
    RETURN ("right"(queue, 5) = '.dead'::text);

CREATE FUNCTION intervalq._is_plain(id uuid) RETURNS boolean
    LANGUAGE sql IMMUTABLE
    RETURN ((id >= '00000000-0000-8000-0000-000000000000'::uuid) AND (id <= '00000000-0000-8fff-ffff-ffffffffffff'::uuid));

CREATE FUNCTION intervalq._lag(modified bigint, now bigint) RETURNS bigint
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$$$;

CREATE FUNCTION intervalq._leave(t intervalq.tasks, ended_as text, kept jsonb, now bigint, me integer) RETURNS void
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$$$;

CREATE FUNCTION intervalq._leave_out(inserts jsonb, known jsonb, now bigint, OUT left_out boolean[], OUT lines intervalq.line[], OUT collisions text[]) RETURNS record
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$$$;

CREATE FUNCTION intervalq._less_to_await(ended text[], now bigint) RETURNS text[]
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$$$;

CREATE FUNCTION intervalq._levels(q text) RETURNS smallint[]
    LANGUAGE plpgsql STABLE
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$$$;

CREATE FUNCTION intervalq._line(kind text, t intervalq.tasks) RETURNS intervalq.line
    LANGUAGE plpgsql STABLE
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$$$;

CREATE FUNCTION intervalq._lives(n integer, now bigint) RETURNS boolean
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$$$;

CREATE FUNCTION intervalq._lock(VARIADIC parts text[]) RETURNS bigint
    LANGUAGE sql STABLE
    RETURN (('7310027118246900000'::bigint + (ascii((parts)[1]) << 9)) + (hashtextextended((parts)::text, '7310027118246817121'::bigint) & (511)::bigint));

CREATE FUNCTION intervalq._lock_by_id(named uuid[], depends uuid[], every boolean) RETURNS void
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$$$;

CREATE FUNCTION intervalq._lock_claims(ids uuid[], parts jsonb, me integer) RETURNS bigint[]
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$$$;

CREATE FUNCTION intervalq._lock_lines(locks bigint[]) RETURNS void
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$$$;

CREATE FUNCTION intervalq._lock_plain(ids uuid[]) RETURNS SETOF intervalq.tasks
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$$$;

CREATE FUNCTION intervalq._lock_tasks(named uuid[], depends uuid[]) RETURNS void
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$$$;

CREATE TABLE intervalq.locks (
    name text NOT NULL COLLATE pg_catalog."C",
    owner text NOT NULL COLLATE pg_catalog."C",
    fence bigint NOT NULL,
    until bigint NOT NULL,
    expiry bigint NOT NULL
)
WITH (fillfactor='50');

CREATE FUNCTION intervalq._locked(name text) RETURNS intervalq.locks
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$$$;

CREATE FUNCTION intervalq._locks_of(inserts jsonb, changes jsonb, named uuid[]) RETURNS bigint[]
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$$$;

CREATE FUNCTION intervalq._make_heads(q text, wait boolean) RETURNS void
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$$$;

CREATE FUNCTION intervalq._mark(q text, k text, task text, ends bigint) RETURNS void
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$$$;

CREATE FUNCTION intervalq._named(command jsonb, named uuid[], locks bigint[], OUT rows_named intervalq.tasks[], OUT known jsonb, OUT plain uuid[]) RETURNS record
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$$$;

CREATE FUNCTION intervalq._next(queues text[], ahead bigint, now bigint) RETURNS SETOF intervalq.line
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$$$;

CREATE FUNCTION intervalq._next_idle(q text, OUT who text, OUT session integer, OUT wanted integer, OUT lease bigint) RETURNS record
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$$$;

CREATE FUNCTION intervalq._note_periods(keep_fors bigint[], now bigint) RETURNS void
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$$$;

CREATE FUNCTION intervalq._now(given bigint) RETURNS bigint
    LANGUAGE sql
    RETURN COALESCE(given, ((EXTRACT(epoch FROM clock_timestamp()) * (1000000)::numeric))::bigint);

CREATE TABLE intervalq.plain (
    queue text NOT NULL COLLATE pg_catalog."C",
    part smallint NOT NULL,
    number bigint NOT NULL,
    "json" text NOT NULL
);

CREATE FUNCTION intervalq._plain_task(p intervalq.plain, inserted xid) RETURNS intervalq.tasks
    LANGUAGE plpgsql STABLE
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$$$;

CREATE FUNCTION intervalq._put(t intervalq.tasks) RETURNS intervalq.tasks
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$$$;

CREATE FUNCTION intervalq._queue_lock(queue text) RETURNS bigint
    LANGUAGE sql IMMUTABLE
    RETURN hashtextextended(queue, '7310027118246817122'::bigint);

CREATE FUNCTION intervalq._queues(names text[], prefixes text[], holders integer[]) RETURNS SETOF text
    LANGUAGE plpgsql STABLE
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET plan_cache_mode TO 'force_generic_plan'
    SET enable_seqscan TO 'off'
    SET enable_bitmapscan TO 'off'
    SET jit TO 'off'
    AS $$$$;

CREATE FUNCTION intervalq._read_clock(now bigint, OUT ahead bigint, OUT since bigint) RETURNS record
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$$$;

CREATE FUNCTION intervalq._refused(command jsonb, rows_named intervalq.tasks[], known jsonb, plain uuid[], collisions text[], me integer, now bigint) RETURNS intervalq.line
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$$$;

CREATE FUNCTION intervalq._remove(t intervalq.tasks, ended_as text, kept jsonb, me integer, now bigint, feed boolean) RETURNS text[]
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$$$;

CREATE FUNCTION intervalq._rest(t intervalq.tasks) RETURNS bigint
    LANGUAGE sql IMMUTABLE
    AS $$$$;

CREATE FUNCTION intervalq._rest_head(q text, of smallint, top bigint) RETURNS boolean
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$$$;

CREATE FUNCTION intervalq._room(mine text, most bigint, wanted integer) RETURNS integer
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$$$;

CREATE FUNCTION intervalq._sampled(now bigint) RETURNS jsonb
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET plan_cache_mode TO 'force_generic_plan'
    SET enable_seqscan TO 'off'
    SET enable_bitmapscan TO 'off'
    SET jit TO 'off'
    AS $$$$;

CREATE FUNCTION intervalq._saw(seen pg_snapshot, inserted xid) RETURNS boolean
    LANGUAGE plpgsql STABLE
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$$$;

CREATE FUNCTION intervalq._settle(parts jsonb, locks bigint[], me integer, now bigint, OUT lost uuid[], OUT woken text[]) RETURNS record
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$$$;

CREATE FUNCTION intervalq._settle_all(ids uuid[], versions integer[], keep_fors bigint[], durations bigint[], results text, parts jsonb, finished jsonb, begun uuid[], me integer, now bigint, OUT lost uuid[], OUT lost_ranges integer[], OUT woken text[]) RETURNS record
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$$$;

CREATE FUNCTION intervalq._width(keep_for bigint) RETURNS bigint
    LANGUAGE sql IMMUTABLE
    RETURN CASE WHEN (keep_for <= '691200000000'::bigint) THEN '86400000000'::bigint WHEN (keep_for <= '5529600000000'::bigint) THEN '691200000000'::bigint ELSE '5529600000000'::bigint END;

CREATE FUNCTION intervalq._slot(keep_for bigint, until bigint) RETURNS smallint
    LANGUAGE sql IMMUTABLE
    RETURN ((CASE WHEN (keep_for <= '691200000000'::bigint) THEN 0 WHEN (keep_for <= '5529600000000'::bigint) THEN 10 ELSE 20 END + ((until / intervalq._width(keep_for)) % (10)::bigint)))::smallint;

CREATE FUNCTION intervalq._spill(q text, of smallint, low bigint, high bigint, tries integer, begun bigint[], why text, now bigint) RETURNS bigint
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$$$;

CREATE FUNCTION intervalq._stand_idle(me integer, queues text[], wanted integer, lease bigint) RETURNS void
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$$$;

CREATE FUNCTION intervalq._sweep(now bigint) RETURNS void
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$$$;

CREATE FUNCTION intervalq._take_plain(gone intervalq.tasks[], changed uuid[], now bigint) RETURNS void
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$$$;

CREATE FUNCTION intervalq._tell(ids uuid[]) RETURNS void
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET enable_seqscan TO 'off'
    SET enable_bitmapscan TO 'off'
    AS $$$$;

CREATE FUNCTION intervalq._tell_cancelled(ids uuid[]) RETURNS void
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$$$;

CREATE FUNCTION intervalq._try_follow_up(follow_up text) RETURNS boolean
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$$$;

CREATE FUNCTION intervalq._uuid() RETURNS uuid
    LANGUAGE sql
    RETURN (encode(set_byte(OVERLAY(uuid_send(gen_random_uuid()) PLACING SUBSTRING(int8send(((EXTRACT(epoch FROM clock_timestamp()) * (1000)::numeric))::bigint) FROM 3) FROM 1 FOR 6), 6, (112 + (floor((random() * (16)::double precision)))::integer)), 'hex'::text))::uuid;

CREATE FUNCTION intervalq._wake(queues text[]) RETURNS void
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$$$;

CREATE FUNCTION intervalq._with_attempt(t intervalq.tasks, p jsonb, keeps boolean, now bigint) RETURNS intervalq.tasks
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$$$;

CREATE FUNCTION intervalq._with_error(errors text, error text, attempt integer, now bigint) RETURNS text
    LANGUAGE sql IMMUTABLE
    RETURN CASE WHEN (length(errors) >= 32000) THEN errors ELSE ((((((errors || CASE WHEN (errors = ''::text) THEN ''::text ELSE chr(30) END) || (now)::text) || ' '::text) || (attempt)::text) || ' '::text) || error) END;

CREATE FUNCTION intervalq._writers(q text) RETURNS text[]
    LANGUAGE sql
    RETURN ARRAY(SELECT l.virtualtransaction FROM pg_locks l WHERE ((l.locktype = 'advisory'::text) AND (l.mode = 'ShareLock'::text) AND (l.objsubid = 1) AND (l.database = (SELECT d.oid FROM pg_database d WHERE (d.datname = current_database()))) AND ((((l.classid)::bigint << 32) | (l.objid)::bigint) = intervalq._queue_lock(_writers.q)) AND (l.pid IS DISTINCT FROM pg_backend_pid())));

CREATE FUNCTION intervalq.acquire_lock(name text, owner text, expiry bigint, refresh boolean, now bigint, OUT fence bigint, OUT wait bigint) RETURNS record
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET lock_timeout TO '4s'
    AS $$$$;

CREATE FUNCTION intervalq.await_outcomes(who text, ids uuid[], now bigint) RETURNS void
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$$$;

CREATE FUNCTION intervalq.beat(who text, now bigint) RETURNS jsonb
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET lock_timeout TO '4s'
    SET plan_cache_mode TO 'force_generic_plan'
    SET enable_seqscan TO 'off'
    SET enable_hashjoin TO 'off'
    SET enable_mergejoin TO 'off'
    SET enable_bitmapscan TO 'off'
    AS $$$$;

CREATE FUNCTION intervalq.begin_session(who text, host text, pid bigint, consumer text, expiry bigint, now bigint) RETURNS void
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET lock_timeout TO '4s'
    AS $$$$;

CREATE FUNCTION intervalq.cancel(ids uuid[], now bigint) RETURNS jsonb
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET lock_timeout TO '4s'
    SET plan_cache_mode TO 'force_generic_plan'
    SET enable_seqscan TO 'off'
    SET enable_hashjoin TO 'off'
    SET enable_mergejoin TO 'off'
    SET enable_bitmapscan TO 'off'
    AS $$$$;

CREATE FUNCTION intervalq.drop_outcomes(now bigint) RETURNS void
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$$$;

CREATE FUNCTION intervalq.end_session(who text, now bigint) RETURNS boolean
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET lock_timeout TO '4s'
    SET enable_seqscan TO 'off'
    AS $$$$;

CREATE FUNCTION intervalq.enqueue(queue text, value jsonb, id text DEFAULT NULL::text, key text DEFAULT NULL::text, at timestamp with time zone DEFAULT NULL::timestamp with time zone, dedupe_key text DEFAULT NULL::text, dedupe_for interval DEFAULT '00:05:00'::interval, delay interval DEFAULT '00:00:00'::interval, inbox integer DEFAULT NULL::integer, replace boolean DEFAULT false, priority integer DEFAULT 0, keep interval DEFAULT NULL::interval, concurrency_per_key integer DEFAULT 1) RETURNS text
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$$$;

CREATE FUNCTION intervalq.feed(now bigint) RETURNS void
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET lock_timeout TO '4s'
    AS $$$$;

CREATE FUNCTION intervalq.guarded(me integer, now bigint) RETURNS integer
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET lock_timeout TO '4s'
    SET enable_seqscan TO 'off'
    AS $$$$;

CREATE FUNCTION intervalq.guarding(who text) RETURNS integer
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$$$;

CREATE FUNCTION intervalq.insert_plain(ids uuid[], queues text, jsons text, ats bigint[], now bigint) RETURNS bigint
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET lock_timeout TO '4s'
    AS $$$$;

CREATE FUNCTION intervalq.leave_outcomes(who text, ids uuid[]) RETURNS void
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET enable_seqscan TO 'off'
    SET enable_bitmapscan TO 'off'
    AS $$$$;

CREATE FUNCTION intervalq.live_sessions() RETURNS TABLE(id text, host text, pid bigint, consumer text, expiry bigint, started bigint, beaten bigint)
    LANGUAGE sql STABLE
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$$$;

CREATE FUNCTION intervalq.modify(who text, now bigint, command jsonb) RETURNS SETOF intervalq.line
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET lock_timeout TO '4s'
    SET plan_cache_mode TO 'force_generic_plan'
    SET enable_seqscan TO 'off'
    SET enable_hashjoin TO 'off'
    SET enable_mergejoin TO 'off'
    SET enable_bitmapscan TO 'off'
    AS $$$$;

CREATE FUNCTION intervalq.outcomes_of(ids uuid[], q text, ended_as text, most bigint, now bigint) RETURNS TABLE(id text, queue text, key text, state text, value text, result text, attempts integer, errors text, created bigint, started bigint, ended bigint, host text, pid bigint, until bigint)
    LANGUAGE plpgsql STABLE
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET plan_cache_mode TO 'force_custom_plan'
    SET enable_seqscan TO 'off'
    SET enable_bitmapscan TO 'off'
    AS $$$$;

CREATE FUNCTION intervalq.put(q text, jsons text) RETURNS void
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET lock_timeout TO '4s'
    AS $$$$;

CREATE FUNCTION intervalq.release_lock(name text, owner text, waiters text, now bigint) RETURNS boolean
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET lock_timeout TO '4s'
    AS $$$$;

CREATE FUNCTION intervalq.stats(names text[], prefixes text[], most bigint, now bigint) RETURNS TABLE(name text, size bigint, claimed bigint, ready bigint, future bigint, inbox bigint, most_claims integer, exact boolean)
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$$$;

CREATE FUNCTION intervalq.tasks_of(q text, ids uuid[], who text, with_values boolean, most bigint) RETURNS SETOF intervalq.line
    LANGUAGE plpgsql STABLE
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET plan_cache_mode TO 'force_custom_plan'
    AS $$$$;

CREATE FUNCTION intervalq.unguarded(me integer) RETURNS void
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$$$;

CREATE FUNCTION intervalq.work(who text, ids uuid[], versions integer[], keep_fors bigint[], durations bigint[], results text, parts jsonb, finished jsonb, queues text[], wanted integer, lease bigint, most bigint, idle boolean, begins integer, begun uuid[], sinces bigint[], since_ids uuid[], now bigint) RETURNS SETOF intervalq.line
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET lock_timeout TO '4s'
    SET plan_cache_mode TO 'force_generic_plan'
    SET enable_seqscan TO 'off'
    SET enable_hashjoin TO 'off'
    SET enable_mergejoin TO 'off'
    SET enable_bitmapscan TO 'off'
    AS $$$$;

CREATE TABLE intervalq.awaited (
    id uuid NOT NULL,
    until bigint NOT NULL,
    who text NOT NULL COLLATE pg_catalog."C"
);

CREATE TABLE intervalq.beats (
    number integer NOT NULL,
    beaten bigint NOT NULL
)
WITH (fillfactor='50');

CREATE TABLE intervalq.clock (
    one boolean DEFAULT true NOT NULL,
    last_now bigint DEFAULT 0 NOT NULL,
    since bigint DEFAULT 0 NOT NULL,
    behind bigint DEFAULT 0 NOT NULL,
    CONSTRAINT clock_one_check CHECK (one)
)
WITH (fillfactor='50');

CREATE TABLE intervalq.floors (
    queue text NOT NULL COLLATE pg_catalog."C",
    part smallint NOT NULL,
    floor bigint DEFAULT 0 NOT NULL,
    next bigint,
    writers text[],
    swept bigint DEFAULT 0 NOT NULL
)
WITH (fillfactor='30');

CREATE TABLE intervalq.heads (
    queue text NOT NULL COLLATE pg_catalog."C",
    part smallint NOT NULL,
    head bigint DEFAULT 0 NOT NULL,
    moved boolean DEFAULT true NOT NULL
)
WITH (fillfactor='30');

CREATE UNLOGGED TABLE intervalq.idle (
    session integer NOT NULL,
    queues text[] NOT NULL,
    wanted integer,
    lease bigint
)
WITH (fillfactor='50');

CREATE TABLE intervalq.marks (
    queue text NOT NULL COLLATE pg_catalog."C",
    key text NOT NULL COLLATE pg_catalog."C",
    id text NOT NULL COLLATE pg_catalog."C",
    until bigint
);

CREATE SEQUENCE intervalq.outcome_numbers
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1;

CREATE TABLE intervalq.outcome_periods (
    slot smallint NOT NULL,
    over bigint NOT NULL
);

CREATE TABLE intervalq.outcomes (
    created bigint NOT NULL,
    started bigint NOT NULL,
    ended bigint NOT NULL,
    until bigint NOT NULL,
    pid bigint NOT NULL,
    id uuid NOT NULL,
    attempts integer NOT NULL,
    slot smallint NOT NULL,
    own text COLLATE pg_catalog."C",
    queue text NOT NULL COLLATE pg_catalog."C",
    key text COLLATE pg_catalog."C",
    state text NOT NULL,
    host text NOT NULL,
    "json" text NOT NULL,
    result text NOT NULL,
    errors text NOT NULL,
    number bigint DEFAULT 0 NOT NULL,
    together uuid[],
    queues text[] COLLATE pg_catalog."C"
)
PARTITION BY LIST (slot);

CREATE TABLE intervalq.outcomes_0 PARTITION OF intervalq.outcomes FOR VALUES IN ('0') WITH (autovacuum_enabled=off);
CREATE TABLE intervalq.outcomes_1 PARTITION OF intervalq.outcomes FOR VALUES IN ('1') WITH (autovacuum_enabled=off);
CREATE TABLE intervalq.outcomes_10 PARTITION OF intervalq.outcomes FOR VALUES IN ('10') WITH (autovacuum_enabled=off);
CREATE TABLE intervalq.outcomes_11 PARTITION OF intervalq.outcomes FOR VALUES IN ('11') WITH (autovacuum_enabled=off);
CREATE TABLE intervalq.outcomes_12 PARTITION OF intervalq.outcomes FOR VALUES IN ('12') WITH (autovacuum_enabled=off);
CREATE TABLE intervalq.outcomes_13 PARTITION OF intervalq.outcomes FOR VALUES IN ('13') WITH (autovacuum_enabled=off);
CREATE TABLE intervalq.outcomes_14 PARTITION OF intervalq.outcomes FOR VALUES IN ('14') WITH (autovacuum_enabled=off);
CREATE TABLE intervalq.outcomes_15 PARTITION OF intervalq.outcomes FOR VALUES IN ('15') WITH (autovacuum_enabled=off);
CREATE TABLE intervalq.outcomes_16 PARTITION OF intervalq.outcomes FOR VALUES IN ('16') WITH (autovacuum_enabled=off);
CREATE TABLE intervalq.outcomes_17 PARTITION OF intervalq.outcomes FOR VALUES IN ('17') WITH (autovacuum_enabled=off);
CREATE TABLE intervalq.outcomes_18 PARTITION OF intervalq.outcomes FOR VALUES IN ('18') WITH (autovacuum_enabled=off);
CREATE TABLE intervalq.outcomes_19 PARTITION OF intervalq.outcomes FOR VALUES IN ('19') WITH (autovacuum_enabled=off);
CREATE TABLE intervalq.outcomes_2 PARTITION OF intervalq.outcomes FOR VALUES IN ('2') WITH (autovacuum_enabled=off);
CREATE TABLE intervalq.outcomes_20 PARTITION OF intervalq.outcomes FOR VALUES IN ('20') WITH (autovacuum_enabled=off);
CREATE TABLE intervalq.outcomes_21 PARTITION OF intervalq.outcomes FOR VALUES IN ('21') WITH (autovacuum_enabled=off);
CREATE TABLE intervalq.outcomes_22 PARTITION OF intervalq.outcomes FOR VALUES IN ('22') WITH (autovacuum_enabled=off);
CREATE TABLE intervalq.outcomes_23 PARTITION OF intervalq.outcomes FOR VALUES IN ('23') WITH (autovacuum_enabled=off);
CREATE TABLE intervalq.outcomes_24 PARTITION OF intervalq.outcomes FOR VALUES IN ('24') WITH (autovacuum_enabled=off);
CREATE TABLE intervalq.outcomes_25 PARTITION OF intervalq.outcomes FOR VALUES IN ('25') WITH (autovacuum_enabled=off);
CREATE TABLE intervalq.outcomes_26 PARTITION OF intervalq.outcomes FOR VALUES IN ('26') WITH (autovacuum_enabled=off);
CREATE TABLE intervalq.outcomes_27 PARTITION OF intervalq.outcomes FOR VALUES IN ('27') WITH (autovacuum_enabled=off);
CREATE TABLE intervalq.outcomes_28 PARTITION OF intervalq.outcomes FOR VALUES IN ('28') WITH (autovacuum_enabled=off);
CREATE TABLE intervalq.outcomes_29 PARTITION OF intervalq.outcomes FOR VALUES IN ('29') WITH (autovacuum_enabled=off);
CREATE TABLE intervalq.outcomes_3 PARTITION OF intervalq.outcomes FOR VALUES IN ('3') WITH (autovacuum_enabled=off);
CREATE TABLE intervalq.outcomes_4 PARTITION OF intervalq.outcomes FOR VALUES IN ('4') WITH (autovacuum_enabled=off);
CREATE TABLE intervalq.outcomes_5 PARTITION OF intervalq.outcomes FOR VALUES IN ('5') WITH (autovacuum_enabled=off);
CREATE TABLE intervalq.outcomes_6 PARTITION OF intervalq.outcomes FOR VALUES IN ('6') WITH (autovacuum_enabled=off);
CREATE TABLE intervalq.outcomes_7 PARTITION OF intervalq.outcomes FOR VALUES IN ('7') WITH (autovacuum_enabled=off);
CREATE TABLE intervalq.outcomes_8 PARTITION OF intervalq.outcomes FOR VALUES IN ('8') WITH (autovacuum_enabled=off);
CREATE TABLE intervalq.outcomes_9 PARTITION OF intervalq.outcomes FOR VALUES IN ('9') WITH (autovacuum_enabled=off);

CREATE SEQUENCE intervalq.plain_blocks
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1;

CREATE TABLE intervalq.ranges (
    queue text NOT NULL COLLATE pg_catalog."C",
    part smallint NOT NULL,
    low bigint NOT NULL,
    high bigint NOT NULL,
    session integer NOT NULL,
    size integer NOT NULL,
    begun bigint[],
    snapshot pg_snapshot NOT NULL,
    has_gaps boolean DEFAULT false NOT NULL
);

ALTER TABLE intervalq.sessions ALTER COLUMN number ADD GENERATED BY DEFAULT AS IDENTITY (
    SEQUENCE NAME intervalq.sessions_number_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);

CREATE TABLE intervalq.tasks_version (
    one boolean DEFAULT true NOT NULL,
    number integer NOT NULL,
    CONSTRAINT tasks_version_one_check CHECK (one)
);

CREATE TABLE intervalq.unfed (
    queue text NOT NULL COLLATE pg_catalog."C",
    key text NOT NULL COLLATE pg_catalog."C"
);

INSERT INTO intervalq.beats VALUES (1, 1700000000000000);
INSERT INTO intervalq.beats VALUES (2, 1700000000000000);

INSERT INTO intervalq.clock VALUES (true, 0, 0, 0);

INSERT INTO intervalq.floors VALUES ('plain', 0, 0, NULL, NULL, 0);
INSERT INTO intervalq.floors VALUES ('plain', 1, 0, NULL, NULL, 0);
INSERT INTO intervalq.floors VALUES ('plain', 2, 0, NULL, NULL, 0);
INSERT INTO intervalq.floors VALUES ('plain', 3, 0, NULL, NULL, 0);
INSERT INTO intervalq.floors VALUES ('plain', 4, 0, NULL, NULL, 0);
INSERT INTO intervalq.floors VALUES ('plain', 5, 0, NULL, NULL, 0);
INSERT INTO intervalq.floors VALUES ('plain', 6, 0, NULL, NULL, 0);
INSERT INTO intervalq.floors VALUES ('plain', 7, 0, NULL, NULL, 0);
INSERT INTO intervalq.floors VALUES ('plain', 8, 0, NULL, NULL, 0);
INSERT INTO intervalq.floors VALUES ('plain', 9, 0, NULL, NULL, 0);
INSERT INTO intervalq.floors VALUES ('plain', 10, 0, NULL, NULL, 0);
INSERT INTO intervalq.floors VALUES ('plain', 11, 0, NULL, NULL, 0);
INSERT INTO intervalq.floors VALUES ('plain', 12, 0, NULL, NULL, 0);
INSERT INTO intervalq.floors VALUES ('plain', 13, 0, NULL, NULL, 0);
INSERT INTO intervalq.floors VALUES ('plain', 14, 0, NULL, NULL, 0);
INSERT INTO intervalq.floors VALUES ('plain', 15, 0, NULL, NULL, 0);

INSERT INTO intervalq.heads VALUES ('plain', 0, 0, true);
INSERT INTO intervalq.heads VALUES ('plain', 2, 0, false);
INSERT INTO intervalq.heads VALUES ('plain', 4, 0, false);
INSERT INTO intervalq.heads VALUES ('plain', 5, 0, false);
INSERT INTO intervalq.heads VALUES ('plain', 6, 0, false);
INSERT INTO intervalq.heads VALUES ('plain', 8, 0, false);
INSERT INTO intervalq.heads VALUES ('plain', 9, 0, false);
INSERT INTO intervalq.heads VALUES ('plain', 10, 0, false);
INSERT INTO intervalq.heads VALUES ('plain', 11, 0, false);
INSERT INTO intervalq.heads VALUES ('plain', 12, 0, false);
INSERT INTO intervalq.heads VALUES ('plain', 13, 0, false);
INSERT INTO intervalq.heads VALUES ('plain', 14, 0, false);
INSERT INTO intervalq.heads VALUES ('plain', 15, 0, false);
INSERT INTO intervalq.heads VALUES ('plain', 3, 5121, true);
INSERT INTO intervalq.heads VALUES ('plain', 1, 3073, true);
INSERT INTO intervalq.heads VALUES ('plain', 7, 22529, true);

INSERT INTO intervalq.marks VALUES ('q', 'd', 'once', NULL);
INSERT INTO intervalq.marks VALUES ('q', 'e', 'twice', 1700000060000005);

INSERT INTO intervalq.outcome_periods VALUES (6, 1700092800000000);

INSERT INTO intervalq.outcomes_6 VALUES (1700000000000002, 1700000000000004, 1700000000000005, 1700086400000005, 7, '79f076ab-dd19-8752-db72-67bfff2f9022', 1, 6, 'kept', 'kept', NULL, 'done', 'host', '[1]', '"first"', '', 1, '{79f076ab-dd19-8752-db72-67bfff2f9022}', '{kept}');

INSERT INTO intervalq.plain VALUES ('plain', 15, 1025, '0');
INSERT INTO intervalq.plain VALUES ('plain', 9, 2049, '1');
INSERT INTO intervalq.plain VALUES ('plain', 1, 3073, '2');
INSERT INTO intervalq.plain VALUES ('plain', 6, 4097, '3');
INSERT INTO intervalq.plain VALUES ('plain', 3, 5121, '4');
INSERT INTO intervalq.plain VALUES ('plain', 13, 6145, '5');
INSERT INTO intervalq.plain VALUES ('plain', 1, 7169, '6');
INSERT INTO intervalq.plain VALUES ('plain', 1, 8193, '7');
INSERT INTO intervalq.plain VALUES ('plain', 13, 9217, '8');
INSERT INTO intervalq.plain VALUES ('plain', 1, 10241, '9');
INSERT INTO intervalq.plain VALUES ('plain', 7, 11265, '10');
INSERT INTO intervalq.plain VALUES ('plain', 7, 12289, '11');
INSERT INTO intervalq.plain VALUES ('plain', 1, 13313, '12');
INSERT INTO intervalq.plain VALUES ('plain', 11, 14337, '13');
INSERT INTO intervalq.plain VALUES ('plain', 15, 15361, '14');
INSERT INTO intervalq.plain VALUES ('plain', 6, 16385, '15');
INSERT INTO intervalq.plain VALUES ('plain', 12, 17409, '16');
INSERT INTO intervalq.plain VALUES ('plain', 12, 18433, '17');
INSERT INTO intervalq.plain VALUES ('plain', 14, 19457, '18');
INSERT INTO intervalq.plain VALUES ('plain', 6, 20481, '19');
INSERT INTO intervalq.plain VALUES ('plain', 7, 21505, '20');
INSERT INTO intervalq.plain VALUES ('plain', 7, 22529, '21');
INSERT INTO intervalq.plain VALUES ('plain', 13, 23553, '22');
INSERT INTO intervalq.plain VALUES ('plain', 12, 24577, '23');

INSERT INTO intervalq.ranges VALUES ('plain', 7, 11265, 11265, 1, 1, NULL, '790:790:', false);
INSERT INTO intervalq.ranges VALUES ('plain', 7, 12289, 12289, 1, 1, NULL, '791:791:', false);
INSERT INTO intervalq.ranges VALUES ('plain', 7, 21505, 21505, 1, 1, NULL, '792:792:', false);
INSERT INTO intervalq.ranges VALUES ('plain', 3, 5121, 5121, 1, 1, NULL, '793:793:', false);
INSERT INTO intervalq.ranges VALUES ('plain', 1, 3073, 3073, 1, 1, NULL, '794:794:', false);
INSERT INTO intervalq.ranges VALUES ('plain', 7, 22529, 22529, 1, 1, NULL, '795:795:', false);

INSERT INTO intervalq.sessions VALUES (1, 'old', 'host', 7, 'workers', 3600000000, 1700000000000000, NULL, NULL, false);
INSERT INTO intervalq.sessions VALUES (2, 'lost', 'host', 8, '', 1000000, 1700000000000000, NULL, NULL, false);

INSERT INTO intervalq.tasks VALUES ('c20dea4d-876b-8b8f-b0a1-814b43017030', NULL, 1700000000000000, 1700000000000000, 1700000000000001, NULL, 0, 1, 1, 1, 0, 1, false, 'held', '{"n":1}', '', 'held', NULL, NULL, true, false, false, '', 0, 0, '', NULL, NULL, NULL, NULL);
INSERT INTO intervalq.tasks VALUES ('1ef001c4-4773-8da3-4af4-534af34dfedf', 1700000030000001, 1700000000000000, 1700000000000000, 1700000000000001, 1700000030000001, 0, 1, 1, 1, 0, 1, false, 'leased', '2', '', 'leased', NULL, NULL, true, false, false, '', 0, 0, '', NULL, NULL, NULL, NULL);
INSERT INTO intervalq.tasks VALUES ('88f6811a-b5d8-8c6d-3177-f9b7609ae0fc', NULL, 1700000000000000, 1700000000000000, 1700000000000001, NULL, 0, 1, 1, 1, 0, 2, false, 'orphans', '"ü"', '', 'orphan', NULL, NULL, true, false, false, '', 0, 0, '', NULL, NULL, NULL, NULL);
INSERT INTO intervalq.tasks VALUES ('015f7e6b-c5ae-8f48-3724-089e9252cc13', NULL, 1700000000000002, 1700000000000002, 1700000000000002, NULL, 0, 0, 0, 0, 2, NULL, true, 'line', 'null', '', 'k2', 'k', NULL, false, false, false, '', 0, 0, '', NULL, NULL, NULL, NULL);
INSERT INTO intervalq.tasks VALUES ('2f5052c9-fd15-819a-18c5-84d013635681', NULL, 1700000000000002, 1700000000000002, 1700000000000002, NULL, 0, 0, 0, 0, 3, NULL, true, 'line', 'null', '', 'k3', 'k', NULL, false, false, false, '', 0, 0, '', NULL, NULL, NULL, NULL);
INSERT INTO intervalq.tasks VALUES ('6ab9f1eb-8f7d-8388-f4f9-d586f66e99fd', NULL, 1700000000000002, 1700000000000002, 1700000000000003, NULL, 0, 1, 1, 1, 1, 1, false, 'line', 'null', '', 'k1', 'k', NULL, true, false, false, '', 0, 0, '', NULL, 0, NULL, NULL);
INSERT INTO intervalq.tasks VALUES ('0190a5c2-1111-7abc-8def-000000000000', 1700000000000004, 1700000000000004, 1700000000000004, 1700000000000004, NULL, 0, 0, 0, 0, 0, NULL, false, 'q', '[1]', '', NULL, NULL, NULL, false, false, false, '', 0, 0, '', NULL, NULL, NULL, NULL);
INSERT INTO intervalq.tasks VALUES ('200651a8-b2d5-812f-692d-b89468a7d47d', 1700000000000004, 1700000000000004, 1700000000000004, 1700000000000004, NULL, 60000000, 0, 0, 0, 0, NULL, false, 'q', '4', '', 'once', NULL, 'd', false, false, false, '', 0, 0, '', NULL, NULL, NULL, NULL);
INSERT INTO intervalq.tasks VALUES ('b90bc939-0bcd-8bad-9331-60c81fb4d701', 1700000000000004, 1700000000000004, 1700000000000004, 1700000000000004, NULL, 0, 0, 0, 2, 0, NULL, false, 'q', '3', 'ValueError: boom', 'tried', NULL, NULL, false, false, false, '', 0, 0, '', NULL, NULL, NULL, NULL);
INSERT INTO intervalq.tasks VALUES ('1d9283d8-48ea-841a-ce1f-e0d2378ef8b7', 1700000060000000, 1700000060000000, 1700000000000004, 1700000000000004, NULL, 0, 0, 0, 0, 0, NULL, false, 'q', '2', '', 'later', NULL, NULL, false, false, false, '', 0, 0, '', NULL, NULL, NULL, NULL);

INSERT INTO intervalq.tasks_version VALUES (true, 7);

SELECT pg_catalog.setval('intervalq.outcome_numbers', 1, true);

SELECT pg_catalog.setval('intervalq.plain_blocks', 24, true);

SELECT pg_catalog.setval('intervalq.sessions_number_seq', 2, true);

ALTER TABLE ONLY intervalq.beats
    ADD CONSTRAINT beats_pkey PRIMARY KEY (number);

ALTER TABLE ONLY intervalq.clock
    ADD CONSTRAINT clock_pkey PRIMARY KEY (one);

ALTER TABLE ONLY intervalq.floors
    ADD CONSTRAINT floors_pkey PRIMARY KEY (queue, part);

ALTER TABLE ONLY intervalq.heads
    ADD CONSTRAINT heads_pkey PRIMARY KEY (queue, part);

ALTER TABLE ONLY intervalq.idle
    ADD CONSTRAINT idle_pkey PRIMARY KEY (session);

ALTER TABLE ONLY intervalq.locks
    ADD CONSTRAINT locks_pkey PRIMARY KEY (name);

ALTER TABLE ONLY intervalq.marks
    ADD CONSTRAINT marks_pkey PRIMARY KEY (queue, key);

ALTER TABLE ONLY intervalq.plain
    ADD CONSTRAINT plain_pkey PRIMARY KEY (queue, part, number);

ALTER TABLE ONLY intervalq.ranges
    ADD CONSTRAINT ranges_pkey PRIMARY KEY (queue, part, low);

ALTER TABLE ONLY intervalq.sessions
    ADD CONSTRAINT sessions_id_key UNIQUE (id);

ALTER TABLE ONLY intervalq.sessions
    ADD CONSTRAINT sessions_pkey PRIMARY KEY (number);

ALTER TABLE ONLY intervalq.tasks
    ADD CONSTRAINT tasks_pkey PRIMARY KEY (id);

ALTER TABLE ONLY intervalq.tasks_version
    ADD CONSTRAINT tasks_version_pkey PRIMARY KEY (one);

CREATE INDEX awaited_id ON intervalq.awaited USING btree (id);

CREATE INDEX awaited_until ON intervalq.awaited USING btree (until);

CREATE INDEX heads_moved ON intervalq.heads USING btree (queue, part) WHERE moved;

CREATE INDEX locks_until ON intervalq.locks USING btree (until);

CREATE INDEX marks_until ON intervalq.marks USING btree (until) WHERE (until IS NOT NULL);

CREATE INDEX outcomes_old ON intervalq.outcomes USING btree (ended) WHERE (number = 0);

CREATE INDEX outcomes_id ON intervalq.outcomes USING btree (id);

CREATE INDEX outcomes_number ON intervalq.outcomes USING btree (number) WHERE (together IS NOT NULL);

CREATE INDEX ranges_session ON intervalq.ranges USING btree (session);

CREATE INDEX tasks_again ON intervalq.tasks USING btree (queue, claims) WHERE ((claims > 1) OR ((claims > 0) AND (session IS NULL)));

CREATE INDEX tasks_cancelled ON intervalq.tasks USING btree (session) WHERE cancelled;

CREATE UNIQUE INDEX tasks_first ON intervalq.tasks USING btree (queue, key, lane) WHERE ((key IS NOT NULL) AND (NOT waiting));

CREATE INDEX tasks_line ON intervalq.tasks USING btree (queue, key, place) WHERE (key IS NOT NULL);

CREATE INDEX tasks_ranked ON intervalq.tasks USING btree (queue) WHERE ((priority <> 0) AND (ready IS NOT NULL));

CREATE INDEX tasks_ready ON intervalq.tasks USING btree (queue, priority, ready, id) WHERE (ready IS NOT NULL);

CREATE INDEX tasks_session ON intervalq.tasks USING btree (session, hashtextextended(queue, (0)::bigint), at) WHERE (session IS NOT NULL);

CREATE INDEX tasks_shared ON intervalq.tasks USING btree (queue, key) WHERE (per_key IS NOT NULL);

CREATE INDEX tasks_waiting ON intervalq.tasks USING btree (queue, at, id) WHERE waiting;

