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
	dedupe_for bigint
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
    dedupe text COLLATE pg_catalog."C"
)
WITH (autovacuum_vacuum_scale_factor='0.02', autovacuum_vacuum_insert_scale_factor='0.2');

CREATE FUNCTION intervalq._change(INOUT t intervalq.tasks, p jsonb, now bigint, OUT fed text) RETURNS record
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
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
    t.at := coalesce(now + (p ->> 5)::bigint, (p ->> 4)::bigint, t.at);
    t.attempt := coalesce((p ->> 6)::integer, t.attempt);
    t.error := coalesce(p ->> 7, t.error);
    if not keep then
        t.session := null;
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
        dedupe_for = t.dedupe_for, ready = t.ready
    where x.id = t.id;
end
$$;

CREATE FUNCTION intervalq._claim_ranges(q text, wanted integer, me integer) RETURNS SETOF intervalq.line
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
declare
    left_over integer := wanted;
    mine bigint;
    others bigint;
    h intervalq.heads;
    top bigint;
    n integer;
    seen pg_snapshot;
    l intervalq.line;
begin
    if not exists (select from intervalq.heads x where x.queue = q) then
        if not exists (select from intervalq.plain p where p.queue = q) then
            return;
        end if;
        -- Not by `put`: it may be part of a long transaction, for which others would have to wait.
        insert into intervalq.heads (queue, part) select q, p from generate_series(0, 15) as p on conflict do nothing;
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
        update intervalq.heads x set head = l.until where x.queue = q and x.part = h.part;
        insert into intervalq.ranges (queue, part, low, high, session, size, seen)
        values (q, h.part, l.at, l.until, me, n, seen);
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

CREATE FUNCTION intervalq._feed(q text, k text, now bigint) RETURNS text
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
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

CREATE FUNCTION intervalq._finish(p jsonb, me integer, now bigint) RETURNS boolean
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
declare
    q constant text := p ->> 0;
    of constant smallint := p ->> 1;
    a constant bigint := p ->> 2;
    b constant bigint := p ->> 3;
    r intervalq.ranges;
    n bigint;
    x jsonb;
    latest constant bigint := pg_current_xact_id()::text::bigint;
begin
    delete from intervalq.ranges x where x.queue = q and x.part = of and x.low = a and x.high = b
        and x.session = me
    returning x.* into r;
    if not found then
        return false;
    end if;
    for x in select e from jsonb_array_elements(p -> 4) as e loop
        if not exists (select from intervalq.tasks t where t.id = (x -> 1 ->> 0)::uuid) then
            perform intervalq._insert(x -> 1, now);
        end if;
    end loop;
    begin
        delete from intervalq.plain y where y.queue = q and y.part = of and y.number between a and b;
        get diagnostics n = row_count;
        if n <> r.size then
            raise exception 'others are among them' using errcode = 'IQ013';
        end if;
    exception when sqlstate 'IQ013' then
        -- What was committed later than the claim was handed out to nobody.
        delete from intervalq.plain y where y.queue = q and y.part = of and y.number between a and b
            and pg_visible_in_snapshot((
                latest - ((latest - y.xmin::text::bigint) % 4294967296 + 4294967296) % 4294967296
            )::text::xid8, r.seen);
        perform intervalq._spill(q, of, a, b, -1, '', now);
    end;
    return true;
end
$$;

CREATE FUNCTION intervalq._forget(n integer, by_itself boolean, now bigint) RETURNS text
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
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

CREATE FUNCTION intervalq._free(s intervalq.sessions, now bigint) RETURNS void
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
declare
    why constant text := case when s.lapsed then s.host || ':' || s.pid || ' was lost' else '' end;
    queues text[];
    r intervalq.ranges;
begin
    with found as materialized (
        select t.ctid as spot from intervalq.tasks t where t.session = s.number for update skip locked
    ), freed as (
        update intervalq.tasks t set
            version = t.version + 1, session = null, until = null, modified = now,
            at = case when s.lapsed then now + intervalq._rest(t) else t.at end,
            ready = case when s.lapsed then now + intervalq._rest(t) else t.at end,
            error = case when s.lapsed then why else t.error end,
            attempt = case when s.lapsed then t.attempt else greatest(0, t.attempt - 1) end
        from found f where t.ctid = f.spot
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
        perform intervalq._spill(r.queue, r.part, r.low, r.high, s.lapsed::integer, why, now);
        queues := queues || r.queue;
    end loop;
    delete from intervalq.idle i where i.session = s.number;
    if queues is not null then
        perform intervalq._wake(queues);
    end if;
end
$$;

CREATE FUNCTION intervalq._fresh() RETURNS boolean
    LANGUAGE sql STABLE
    RETURN (current_setting('transaction_isolation'::text) = ANY (ARRAY['read committed'::text, 'read uncommitted'::text]));

CREATE FUNCTION intervalq._id(id text) RETURNS uuid
    LANGUAGE sql IMMUTABLE
    RETURN CASE WHEN (id ~ '^[0-9a-f]{8}-[0-9a-f]{4}-[0-79a-f][0-9a-f]{3}-[0-9a-f]{4}-[0-9a-f]{12}$'::text) THEN (id)::uuid ELSE (OVERLAY("left"(encode(sha256(convert_to(id, 'UTF8'::name)), 'hex'::text), 32) PLACING '8'::text FROM 13))::uuid END;

CREATE FUNCTION intervalq._in_line(t intervalq.tasks) RETURNS intervalq.tasks
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
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

CREATE FUNCTION intervalq._insert(p jsonb, now bigint) RETURNS intervalq.tasks
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
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
    t.version := 0;
    t.claims := 0;
    t.place := 0;
    t.waiting := false;
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
                if other.session is null or other.until <= now then
                    perform intervalq._remove(other, now, false);
                end if;
            end loop;
        end if;
        t := intervalq._in_line(t);
    end if;
    return intervalq._put(t);
end
$$;

CREATE FUNCTION intervalq._line(kind text, t intervalq.tasks) RETURNS intervalq.line
    LANGUAGE plpgsql STABLE
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
begin
    return row(
        kind, coalesce(t.own, t.id::text), t.version, t.queue, t.at, t.json, t.key, t.place, t.waiting,
        case when t.session is not null then (select s.id from intervalq.sessions s where s.number = t.session) end,
        t.until, t.claims, t.attempt, t.error, t.created, t.modified, t.dedupe, t.dedupe_for
    )::intervalq.line;
end
$$;

CREATE FUNCTION intervalq._lock(VARIADIC parts text[]) RETURNS bigint
    LANGUAGE sql STABLE
    RETURN (('7310027118246900000'::bigint + (ascii((parts)[1]) << 9)) + (hashtextextended((parts)::text, '7310027118246817121'::bigint) & (511)::bigint));

CREATE FUNCTION intervalq._lock_lines(locks bigint[]) RETURNS void
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
declare
    l bigint;
begin
    for l in select distinct u.l from unnest(locks) as u (l) order by 1 loop
        perform pg_advisory_xact_lock(l);
    end loop;
end
$$;

CREATE FUNCTION intervalq._mark(q text, k text, task text, ends bigint) RETURNS void
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
begin
    insert into intervalq.marks (queue, key, id, until) values (q, k, task, ends)
    on conflict (queue, key) do update set id = excluded.id, until = excluded.until;
end
$$;

CREATE FUNCTION intervalq._now(given bigint) RETURNS bigint
    LANGUAGE sql
    RETURN COALESCE(given, ((EXTRACT(epoch FROM clock_timestamp()) * (1000000)::numeric))::bigint);

CREATE FUNCTION intervalq._put(t intervalq.tasks) RETURNS intervalq.tasks
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
begin
    t.ready := case when t.waiting then null when t.session is null then t.at else t.until end;
    insert into intervalq.tasks
        (id, ready, at, created, modified, until, dedupe_for, version, claims, attempt, place, session, waiting,
        queue, json, error, own, key, dedupe)
    values (t.id, t.ready, t.at, t.created, t.modified, t.until, t.dedupe_for, t.version, t.claims, t.attempt,
        t.place, t.session, t.waiting, t.queue, t.json, t.error, t.own, t.key, t.dedupe)
    on conflict do nothing;
    if not found then
        raise exception 'task % was inserted at the same moment', coalesce(t.own, t.id::text)
            using errcode = '40001';
    end if;
    return t;
end
$$;

CREATE FUNCTION intervalq._queue_lock(queue text) RETURNS bigint
    LANGUAGE sql IMMUTABLE
    RETURN hashtextextended(queue, '7310027118246817122'::bigint);

CREATE FUNCTION intervalq._remove(t intervalq.tasks, now bigint, feed boolean) RETURNS text
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
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

CREATE FUNCTION intervalq._rest(t intervalq.tasks) RETURNS bigint
    LANGUAGE sql IMMUTABLE
    AS $$
    select ((case when t.attempt <= 1 then 100000 else least((1 << least(t.attempt - 1, 6)) - 1, 60) * 1000000 end)::bigint
        * ('x' || substr(md5(coalesce(t.own, t.id::text)), 1, 4))::bit(16)::integer) >> 16
$$;

CREATE FUNCTION intervalq._settle(parts jsonb, me integer, now bigint, OUT lost uuid[], OUT woken text[]) RETURNS record
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
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
            woken := woken || after.fed || case when t.ready <= now + 1000000 then t.queue end;
        end if;
    end loop;
    woken := array_remove(woken, null);
end
$$;

CREATE FUNCTION intervalq._spill(q text, of smallint, low bigint, high bigint, tries integer, why text, now bigint) RETURNS bigint
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
declare
    n bigint;
begin
    with spilt as (
        delete from intervalq.plain p
        where p.queue = q and p.part = of and p.number between low and high and not exists (
            select from intervalq.ranges r
            where r.queue = q and r.part = of and r.low <= p.number and r.high >= p.number
        )
        returning p.json
    )
    insert into intervalq.tasks (id, ready, at, created, modified, claims, attempt, queue, json, error)
    select intervalq._uuid(), now, now, now, now, least(1, tries + 1), greatest(tries, 0), q, s.json, why
    from spilt s;
    get diagnostics n = row_count;
    return n;
end
$$;

CREATE FUNCTION intervalq._sweep(now bigint) RETURNS void
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
declare
    f intervalq.floors;
    top bigint;
begin
    insert into intervalq.floors (queue, part)
    select h.queue, h.part from intervalq.heads h
    where not exists (select from intervalq.floors x where x.queue = h.queue and x.part = h.part)
    on conflict do nothing;
    for f in
        select x.* from intervalq.floors x
        where (now < x.swept or now >= x.swept + 1000000) and exists (
            select from intervalq.heads h where h.queue = x.queue and h.part = x.part and h.head > x.floor
        )
        order by x.queue, x.part for update skip locked
    loop
        if f.next is null then
            -- The head first, then who could be below it: who comes later gets higher numbers.
            select h.head into f.next from intervalq.heads h where h.queue = f.queue and h.part = f.part;
            f.writers := intervalq._writers(f.queue);
        else
            f.writers := array(
                select unnest(f.writers) intersect select unnest(intervalq._writers(f.queue))
            );
        end if;
        if f.writers = '{}' then
            if intervalq._spill(f.queue, f.part, f.floor + 1, f.next, -1, '', now) > 0 then
                perform intervalq._wake(array[f.queue]);
            end if;
            f.floor := f.next;
            f.next := null;
        end if;
        update intervalq.floors x set floor = f.floor, next = f.next, writers = f.writers, swept = now
        where x.queue = f.queue and x.part = f.part;
    end loop;
end
$$;

CREATE FUNCTION intervalq._uuid() RETURNS uuid
    LANGUAGE sql
    RETURN (encode(set_byte(OVERLAY(uuid_send(gen_random_uuid()) PLACING SUBSTRING(int8send(((EXTRACT(epoch FROM clock_timestamp()) * (1000)::numeric))::bigint) FROM 3) FROM 1 FOR 6), 6, (112 + (floor((random() * (16)::double precision)))::integer)), 'hex'::text))::uuid;

CREATE FUNCTION intervalq._wake(queues text[]) RETURNS void
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
declare
    q text;
    woken text;
begin
    for q in select distinct u.q from unnest(queues) as u (q) order by 1 loop
        -- Whoever becomes idle in this moment has either seen what we insert, or is seen here.
        perform pg_advisory_xact_lock_shared(intervalq._queue_lock(q));
        if intervalq._fresh() then
            delete from intervalq.idle i where i.session = (
                select j.session from intervalq.idle j where q = any (j.queues) limit 1 for update skip locked
            ) returning (select s.id from intervalq.sessions s where s.number = i.session) into woken;
            if woken is not null then
                perform pg_notify('intervalq_tasks', woken);
            end if;
        elsif exists (select from intervalq.idle j where q = any (j.queues)) then
            -- To take one out that was woken just now would end the caller's transaction: tell them all.
            perform pg_notify('intervalq_tasks', '*');
        end if;
    end loop;
end
$$;

CREATE FUNCTION intervalq._writers(q text) RETURNS text[]
    LANGUAGE sql
    RETURN ARRAY(SELECT l.virtualtransaction FROM pg_locks l WHERE ((l.locktype = 'advisory'::text) AND (l.mode = 'ShareLock'::text) AND (l.objsubid = 1) AND (l.database = (SELECT d.oid FROM pg_database d WHERE (d.datname = current_database()))) AND ((((l.classid)::bigint << 32) | (l.objid)::bigint) = intervalq._queue_lock(_writers.q)) AND (l.pid IS DISTINCT FROM pg_backend_pid())));

CREATE FUNCTION intervalq.beat(who text, now bigint) RETURNS jsonb
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET lock_timeout TO '4s'
    SET plan_cache_mode TO 'force_generic_plan'
    SET enable_seqscan TO 'off'
    SET enable_hashjoin TO 'off'
    SET enable_mergejoin TO 'off'
    SET enable_bitmapscan TO 'off'
    AS $$
declare
    me integer;
    s intervalq.sessions;
    lapsed jsonb := '[]';
    n integer;
    id text;
    held bigint;
begin
    now := intervalq._now(now);
    update intervalq.beats b set beaten = now
    where b.number = (select x.number from intervalq.sessions x where x.id = who and x.gone is null);
    -- Whoever removed it has done so before, or waits for what we have just written, and then sees it.
    select x.number into me from intervalq.sessions x where x.id = who and x.gone is null;

    for n in
        select b.number from intervalq.beats b join intervalq.sessions x on x.number = b.number
        where x.id <> who and x.gone is null and b.beaten + x.expiry < now
        order by x.started, x.id for update of b skip locked
    loop
        id := intervalq._forget(n, false, now);
        if id is not null then
            lapsed := lapsed || to_jsonb(id);
        end if;
    end loop;

    -- What was passed over then, and claims that were being made while their session was removed.
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

    perform intervalq.feed(now);
    delete from intervalq.marks m where (m.queue, m.key) in (
        select y.queue, y.key from intervalq.marks y where y.until <= now order by y.until limit 1000
        for update skip locked
    ) and m.until <= now;
    perform intervalq._sweep(now);

    select (select count(*) from intervalq.tasks t where t.session = me)
        + (select coalesce(sum(r.size), 0) from intervalq.ranges r where r.session = me) into held;
    return jsonb_build_array(me is not null, held, lapsed);
end
$$;

CREATE FUNCTION intervalq.begin_session(who text, host text, pid bigint, consumer text, expiry bigint, now bigint) RETURNS void
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET lock_timeout TO '4s'
    AS $$
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

CREATE FUNCTION intervalq.end_session(who text, now bigint) RETURNS boolean
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET lock_timeout TO '4s'
    SET enable_seqscan TO 'off'
    AS $$
declare
    s intervalq.sessions;
begin
    now := intervalq._now(now);
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

CREATE FUNCTION intervalq.enqueue(queue text, value jsonb, id text DEFAULT NULL::text, key text DEFAULT NULL::text, at timestamp with time zone DEFAULT NULL::timestamp with time zone, dedupe_key text DEFAULT NULL::text, dedupe_for interval DEFAULT '00:05:00'::interval, delay interval DEFAULT '00:00:00'::interval, inbox integer DEFAULT NULL::integer, replace boolean DEFAULT false) RETURNS text
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
declare
    uuid constant uuid := case when enqueue.id is null then intervalq._uuid() else intervalq._id(enqueue.id) end;
    l intervalq.line;
begin
    if queue is null or queue = '' or value is null then
        raise exception 'a task has a queue and a value: give both' using errcode = '22004';
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

CREATE FUNCTION intervalq.feed(now bigint) RETURNS void
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET lock_timeout TO '4s'
    AS $$
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

CREATE FUNCTION intervalq.guarded(me integer, now bigint) RETURNS integer
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET lock_timeout TO '4s'
    SET enable_seqscan TO 'off'
    AS $$
declare
    next integer;
    n integer := 0;
begin
    loop
        select s.number into next from intervalq.sessions s
        where s.gone is null and s.guarding = pg_postmaster_start_time() and s.number <> me
        order by s.number < me, s.number limit 1;
        exit when next is null or not pg_try_advisory_xact_lock(7310027, next);
        perform from intervalq.beats b where b.number = next for update skip locked;
        exit when not found;
        if intervalq._forget(next, false, intervalq._now(now)) is not null then
            n := n + 1;
        end if;
    end loop;
    return n;
end
$$;

CREATE FUNCTION intervalq.guarding(who text) RETURNS integer
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
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

CREATE FUNCTION intervalq.insert_plain(ids uuid[], queues text, jsons text, ats bigint[], now bigint) RETURNS bigint
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET lock_timeout TO '4s'
    AS $$
declare
    names text[];
begin
    now := intervalq._now(now);
    if ats is null and strpos(queues, chr(31)) = 0 then
        insert into intervalq.tasks (id, ready, at, created, modified, queue, json)
        select u.id, now, now, now, now, queues, u.json
        from unnest(ids, string_to_array(jsons, chr(31))) as u (id, json);
        names := array[queues];
    else
        names := string_to_array(queues, chr(31));
        insert into intervalq.tasks (id, ready, at, created, modified, queue, json)
        select u.id, coalesce(u.at, now), coalesce(u.at, now), now, now, coalesce(u.queue, queues), u.json
        from unnest(
            ids, string_to_array(jsons, chr(31)), ats, case when cardinality(names) > 1 then names end
        ) as u (id, json, at, queue);
        names := array(
            select distinct coalesce(u.queue, queues)
            from unnest(ids, ats, case when cardinality(names) > 1 then names end) as u (id, at, queue)
            where coalesce(u.at, now) <= now + 1000000
        );
    end if;
    perform intervalq._wake(names);
    return now;
end
$$;

CREATE FUNCTION intervalq.live_sessions() RETURNS TABLE(id text, host text, pid bigint, consumer text, expiry bigint, started bigint, beaten bigint)
    LANGUAGE sql STABLE
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
    select s.id, s.host, s.pid, s.consumer, s.expiry, s.started, b.beaten
    from intervalq.sessions s join intervalq.beats b on b.number = s.number
    where s.gone is null order by s.started, s.id;
$$;

CREATE FUNCTION intervalq.modify(command jsonb, now bigint) RETURNS SETOF intervalq.line
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET lock_timeout TO '4s'
    SET plan_cache_mode TO 'force_generic_plan'
    SET enable_seqscan TO 'off'
    SET enable_hashjoin TO 'off'
    SET enable_mergejoin TO 'off'
    SET enable_bitmapscan TO 'off'
    AS $_$
declare
    force constant boolean := (command ->> 'force')::boolean;
    inserts constant jsonb := command -> 'inserts';
    changes constant jsonb := command -> 'changes';
    named constant uuid[] := array(
        select (e ->> 0)::uuid from jsonb_array_elements(changes || (command -> 'deletes')) as e
    );
    me integer;
    locks bigint[] := '{}';
    known jsonb := '{}';         -- uuid: the task as it was; only its keys matter where it is an insert's
    t intervalq.tasks;
    p jsonb;
    k text;
    n bigint;
    lines intervalq.line[] := '{}';
    l intervalq.line;
    woken text[] := '{}';
    fed text;
    taken jsonb := '{}';
    coming jsonb := '{}';
    left_out boolean[] := '{}';
    collisions text[] := '{}';
    missing_changes text[] := '{}';
    missing_deletes text[] := '{}';
    missing_depends text[] := '{}';
    claimed text[] := '{}';
    rows_named intervalq.tasks[] := '{}';
    keyed boolean := false;
    after record;
    i integer;
begin
    select s.number into me from intervalq.sessions s
    where s.id = command ->> 'session' and s.gone is null;

    -- The lines and marks of everything that may be touched.
    select coalesce(array_agg(x.l), '{}') into locks from (
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
    ) as x (l);
    if locks <> '{}' then
        perform intervalq._lock_lines(locks);
        keyed := true;
    end if;

    for t in select r.* from intervalq.tasks r where r.id = any (named) order by r.id for update loop
        if t.key is not null and intervalq._lock('k', t.queue, t.key) <> all (locks) then
            raise exception 'a task was moved at the same moment' using errcode = '40001';
        end if;
        rows_named := rows_named || t;
        known := known || jsonb_build_object(t.id, cardinality(rows_named));
    end loop;
    if command -> 'depends' <> '[]' then
        for t in
            select r.* from intervalq.tasks r
            where r.id = any (array(
                select (e ->> 0)::uuid from jsonb_array_elements(command -> 'depends') as e
            )) order by r.id for share
        loop
            rows_named := rows_named || t;
            known := known || jsonb_build_object(t.id, cardinality(rows_named));
        end loop;
    end if;
    if inserts <> '[]' then
        select known || coalesce(jsonb_object_agg(r.id, 0), '{}') into known from intervalq.tasks r
        where r.id = any (array(select (e ->> 0)::uuid from jsonb_array_elements(inserts) as e))
            and not known ? r.id::text;
    end if;
    now := intervalq._now(now);

    -- What is left out.
    for i in 0 .. jsonb_array_length(inserts) - 1 loop
        p := inserts -> i;
        left_out[i] := true;
        if known ? (p ->> 0) and (p ->> 9)::boolean then
            lines := lines || row(
                'e', p ->> 0, 0, '', 0, '', coalesce(p ->> 1, p ->> 0), i, false, '', 0, 0, 0, '', 0, 0, '', 0
            )::intervalq.line;
            continue;
        end if;
        if p ->> 10 is not null then
            k := jsonb_build_array(p -> 2, p -> 10)::text;
            fed := taken ->> k;
            if fed is null then
                select m.id into fed from intervalq.marks m
                where m.queue = p ->> 2 and m.key = p ->> 10 and (m.until is null or m.until > now);
            end if;
            if fed is not null then
                lines := lines || row(
                    'e', p ->> 0, 0, '', 0, '', fed, i, false, '', 0, 0, 0, '', 0, 0, '', 0
                )::intervalq.line;
                continue;
            end if;
            taken := taken || jsonb_build_object(k, coalesce(p ->> 1, p ->> 0));
        end if;
        if known ? (p ->> 0) then
            collisions := collisions || (p ->> 0);
        end if;
        left_out[i] := false;
    end loop;

    -- Everything there, at its version, and nobody else's.
    for k, p in
        select 'c', e from jsonb_array_elements(changes) as e
        union all select 'd', e from jsonb_array_elements(command -> 'deletes') as e
        union all select 'p', e from jsonb_array_elements(command -> 'depends') as e
    loop
        t := rows_named[(known ->> (p ->> 0))::integer];
        if t.id is null or (t.version <> (p ->> 1)::bigint and not force) then
            if k = 'c' then
                missing_changes := missing_changes || (p ->> 0);
            elsif k = 'd' then
                missing_deletes := missing_deletes || (p ->> 0);
            else
                missing_depends := missing_depends || (p ->> 0);
            end if;
        elsif k = 'p' or force then
            continue;
        else
            -- Held, by the caller or by others?
            n := case when t.session is null or t.until <= now then 0 when t.session = me then 1 else 2 end;
            if n = 2 or (n = 0 and k = 'c' and (p ->> 8)::boolean) then
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
        return next l;
        return;
    end if;

    -- No inbox gets more than its limit; tasks that this command takes away make room. `coming` has the tasks
    -- of each line that is looked at.
    if keyed and jsonb_path_exists(inserts, 'strict $[*] ? (@[12] != null)') then
        for k in
            select distinct jsonb_build_array(e -> 2, e -> 4)::text from jsonb_array_elements(inserts) as e
            where e ->> 4 is not null
        loop
            select coming || jsonb_build_object(k, coalesce(jsonb_object_agg(r.id, true), '{}')) into coming
            from intervalq.tasks r where r.queue = k::jsonb ->> 0 and r.key = k::jsonb ->> 1;
        end loop;
        for p in
            select e from jsonb_array_elements(command -> 'deletes') as e
            union all select e from jsonb_array_elements(changes) as e where e ->> 2 is not null
        loop
            t := rows_named[(known ->> (p ->> 0))::integer];
            continue when t.key is null;
            k := jsonb_build_array(t.queue, t.key)::text;
            if coming ? k then
                coming := coming || jsonb_build_object(k, (coming -> k) - t.id::text);
            end if;
            k := jsonb_build_array(p ->> 2, t.key)::text;
            if jsonb_array_length(p) > 2 and coming ? k then
                coming := coming || jsonb_build_object(k, (coming -> k) || jsonb_build_object(t.id, true));
            end if;
        end loop;
        for i in 0 .. jsonb_array_length(inserts) - 1 loop
            p := inserts -> i;
            continue when left_out[i] or p ->> 4 is null;
            k := jsonb_build_array(p -> 2, p -> 4)::text;
            if (p ->> 13)::boolean then
                select coming || jsonb_build_object(k, coalesce(jsonb_object_agg(r.id, true), '{}')) into coming
                from intervalq.tasks r
                where r.queue = p ->> 2 and r.key = p ->> 4 and coming -> k ? r.id::text
                    and r.session is not null and (r.until is null or r.until > now);
            elsif (select count(*) from jsonb_object_keys(coming -> k)) > (p ->> 12)::bigint then
                l.kind := 'F';
                l.queue := p ->> 2;
                l.key := p ->> 4;
                l.place := (p ->> 12)::integer;
                return next l;
                return;
            end if;
            coming := coming || jsonb_build_object(k, (coming -> k) || jsonb_build_object(p ->> 0, true));
        end loop;
    end if;

    -- All is well.
    for p in select e from jsonb_array_elements(command -> 'deletes') as e loop
        woken := woken || intervalq._remove(rows_named[(known ->> (p ->> 0))::integer], now, true);
    end loop;
    for p in select e from jsonb_array_elements(changes) as e loop
        after := intervalq._change(rows_named[(known ->> (p ->> 0))::integer], p, now);
        t := after.t;
        woken := woken || after.fed || case when t.ready <= now + 1000000 then t.queue end;
        lines := lines || intervalq._line('c', t);
    end loop;
    for i in 0 .. jsonb_array_length(inserts) - 1 loop
        continue when left_out[i];
        t := intervalq._insert(inserts -> i, now);
        woken := woken || case when t.ready <= now + 1000000 then t.queue end;
        lines := lines || intervalq._line('i', t);
    end loop;
    foreach l in array lines loop
        if keyed and l.kind <> 'e' and l.key is not null then
            -- What went on with a key may have changed it once more: the last of a line may be the first now.
            select r.* into t from intervalq.tasks r where r.id = intervalq._id(l.id);
            if found then
                l := intervalq._line(l.kind, t);
            end if;
        end if;
        return next l;
    end loop;
    if array_remove(woken, null) <> '{}' then
        perform intervalq._wake(array_remove(woken, null));
    end if;
end
$_$;

CREATE FUNCTION intervalq.put(q text, jsons text) RETURNS void
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET lock_timeout TO '4s'
    AS $$
declare
    items constant text[] := string_to_array(jsons, chr(31));
    n constant integer := cardinality(items);
    first constant integer := floor(random() * 16);
    block bigint;
    p integer;
begin
    -- First of all: whoever looks for writers of numbers below some head must see us, from before the first.
    perform pg_advisory_xact_lock_shared(intervalq._queue_lock(q));
    for c in 0 .. (n - 1) / 1000 loop
        block := nextval('intervalq.plain_blocks') * 1024;
        p := (first + c) % 16;
        insert into intervalq.plain (queue, part, number, json)
        select q, p, block + u.i, u.json
        from unnest(items[c * 1000 + 1 : c * 1000 + 1000]) with ordinality as u (json, i);
    end loop;
    perform intervalq._wake(array[q]);
end
$$;

CREATE FUNCTION intervalq.stats(names text[], prefixes text[], most bigint, now bigint) RETURNS TABLE(name text, size bigint, claimed bigint, ready bigint, future bigint, inbox bigint, most_claims integer)
    LANGUAGE sql
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
    with clock (now) as materialized (select intervalq._now(now)),
    counted as (
        select t.queue, count(*) as size,
            count(*) filter (where t.session is not null and (t.until is null or t.until > c.now)) as claimed,
            count(*) filter (where t.ready <= c.now) as ready,
            count(*) filter (where t.session is null and not t.waiting and t.at > c.now) as future,
            count(*) filter (where t.waiting) as inbox,
            max(t.claims) as most_claims
        from intervalq.tasks t, clock c
        where cardinality(names) + cardinality(prefixes) = 0 or t.queue = any (names)
            or exists (select from unnest(prefixes) as x (p) where starts_with(t.queue, x.p))
        group by t.queue
        union all
        select p.queue, count(*), 0, count(*), 0, 0, 0
        from intervalq.plain p
        where cardinality(names) + cardinality(prefixes) = 0 or p.queue = any (names)
            or exists (select from unnest(prefixes) as x (p) where starts_with(p.queue, x.p))
        group by p.queue
        union all
        select r.queue, 0, sum(r.size), -sum(r.size), 0, 0, 1
        from intervalq.ranges r
        where cardinality(names) + cardinality(prefixes) = 0 or r.queue = any (names)
            or exists (select from unnest(prefixes) as x (p) where starts_with(r.queue, x.p))
        group by r.queue
    )
    select d.queue, sum(d.size)::bigint, sum(d.claimed)::bigint, sum(d.ready)::bigint, sum(d.future)::bigint,
        sum(d.inbox)::bigint, max(d.most_claims)
    from counted d group by d.queue having sum(d.size) > 0 order by d.queue limit most;
$$;

CREATE FUNCTION intervalq.tasks_of(q text, ids uuid[], who text, most bigint, with_values boolean) RETURNS SETOF intervalq.line
    LANGUAGE plpgsql STABLE
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $_$
begin
    if ids is not null then
        return query
            select 't', coalesce(t.own, t.id::text), t.version, t.queue, t.at,
                case when with_values then t.json else 'null' end, t.key, t.place, t.waiting, s.id, t.until,
                t.claims, t.attempt, t.error, t.created, t.modified, t.dedupe, t.dedupe_for
            from unnest(ids) with ordinality as u (id, o)
            join intervalq.tasks t on t.id = u.id left join intervalq.sessions s on s.number = t.session
            where (q is null or t.queue = q) and (who is null or s.id = who)
            order by u.o limit most;
    else
        return query execute
            'select ''t'', coalesce(t.own, t.id::text), t.version, t.queue, t.at,
                case when $4 then t.json else ''null'' end, t.key, t.place, t.waiting, s.id, t.until,
                t.claims, t.attempt, t.error, t.created, t.modified, t.dedupe, t.dedupe_for
            from intervalq.tasks t left join intervalq.sessions s on s.number = t.session where true'
            || case when q is null then '' else ' and t.queue = $1' end
            || case when who is null then '' else
                ' and t.session = (select x.number from intervalq.sessions x where x.id = $2)' end
            || ' order by t.at, coalesce(t.own, t.id::text) collate "C" limit $3'
            using q, who, most, with_values;
    end if;
end
$_$;

CREATE FUNCTION intervalq.unguarded(me integer) RETURNS void
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
begin
    update intervalq.sessions s set guarding = null where s.number = me;
    perform pg_advisory_unlock(7310027, me);
end
$$;

CREATE FUNCTION intervalq.work(who text, ids uuid[], versions integer[], parts jsonb, finished jsonb, queues text[], wanted integer, lease bigint, most bigint, idle boolean, sinces bigint[], since_ids uuid[], now bigint) RETURNS SETOF intervalq.line
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET lock_timeout TO '4s'
    SET plan_cache_mode TO 'force_generic_plan'
    SET enable_seqscan TO 'off'
    SET enable_hashjoin TO 'off'
    SET enable_mergejoin TO 'off'
    SET enable_bitmapscan TO 'off'
    AS $$
declare
    me integer;
    mine text;
    done uuid[];
    lost uuid[] := '{}';
    lost_ranges integer[] := '{}';
    more uuid[];
    woken text[] := '{}';
    again text[];
    ends bigint;
    again_at bigint;
    share integer;
    total integer;
    left_over integer;
    q text;
    i integer;
    n integer;
    plain boolean;
    start bigint;
    start_id uuid;
    soon bigint;
    heads jsonb;
    l intervalq.line;
    x bigint;
    y uuid;
begin
    select s.number, s.consumer into me, mine from intervalq.sessions s where s.id = who and s.gone is null;
    now := intervalq._now(now);

    if ids is not null then
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
            select array_agg(g.id) into done from gone g;
        end if;
        if cardinality(ids) > coalesce(cardinality(done), 0) then
            select z.lost, z.woken into lost, woken from intervalq._settle((
                select jsonb_agg(jsonb_build_array(d.id, d.version) order by d.o)
                from unnest(ids, versions) with ordinality as d (id, version, o)
                where done is null or d.id <> all (done)
            ), me, now) as z;
        end if;
    end if;
    if parts is not null then
        select z.lost, z.woken into more, again from intervalq._settle(parts, me, now) as z;
        lost := lost || more;
        woken := woken || again;
    end if;
    if finished is not null then
        for i in 0 .. jsonb_array_length(finished) - 1 loop
            if me is null or not intervalq._finish(finished -> i, me, now) then
                lost_ranges := lost_ranges || i;
            else
                select woken || coalesce(array_agg(distinct e -> 1 ->> 2), '{}') into woken
                from jsonb_array_elements(finished -> i -> 4) as e
                where (e -> 1 ->> 6)::bigint <= 0 and e -> 1 ->> 5 is null;
            end if;
        end loop;
    end if;

    wanted := case when me is null or cardinality(queues) = 0 then 0 else wanted end;
    if most is not null and wanted > 0 then
        perform pg_advisory_xact_lock(intervalq._lock('c', mine));
        select count(*) + (
            select coalesce(sum(r.size), 0) from intervalq.ranges r
            join intervalq.sessions s on s.number = r.session where s.consumer = mine and s.gone is null
        ) into x
        from intervalq.sessions s join intervalq.tasks t on t.session = s.number
        where s.consumer = mine and s.gone is null;
        wanted := greatest(0, least(wanted, most - x));
    end if;
    left_over := wanted;
    if wanted > 0 then
        ends := now + lease;
        again_at := case when lease > 0 then ends end;
        share := (wanted + cardinality(queues) - 1) / cardinality(queues);
        plain := random() < 0.5;
        for look in 1 .. 2 loop
            -- The same share of each queue first, then what else there is.
            for turn in 1 .. least(2, cardinality(queues)) loop
                for i in select u.i from generate_subscripts(queues, 1) as u (i) order by random() loop
                    exit when left_over <= 0;
                    q := queues[i];
                    total := case when turn = 1 then least(share, left_over) else left_over end;
                    if plain then
                        for l in select c.* from intervalq._claim_ranges(q, total, me) as c loop
                            return next l;
                            total := total - l.claims;
                            left_over := left_over - l.claims;
                        end loop;
                    end if;
                    start := coalesce(sinces[i], -9223372036854775808);
                    start_id := coalesce(since_ids[i], '00000000-0000-0000-0000-000000000000');
                    if total between 1 and 15 then
                        -- Not always the first: a few tasks that nobody gets done must not hold up the rest.
                        select t.ready, t.id into x, y from intervalq.tasks t
                        where t.queue = q and t.ready <= now and (t.ready, t.id) >= (start, start_id)
                        order by t.ready, t.id limit 1;
                        if x is not null then
                            heads := coalesce(heads, '{}') || jsonb_build_object(q, jsonb_build_array(x, y));
                            start := x;
                            start_id := y;
                            select t.ready, t.id into x, y from intervalq.tasks t
                            where t.queue = q and t.ready <= now and (t.ready, t.id) >= (start, start_id)
                            order by t.ready, t.id offset floor(random() * 16) limit 1;
                            if x is not null then
                                start := x;
                                start_id := y;
                            end if;
                        end if;
                    end if;
                    while total > 0 loop
                        return query
                        with picked as materialized (
                            select t.ctid as spot from intervalq.tasks t
                            where t.queue = q and t.ready <= now and (t.ready, t.id) >= (start, start_id)
                            order by t.ready, t.id limit total for update skip locked
                        )
                        update intervalq.tasks t set
                            version = t.version + 1, session = me, until = ends, ready = again_at,
                            claims = t.claims + 1, attempt = t.attempt + 1, modified = now
                        from picked p where t.ctid = p.spot
                        returning 't', coalesce(t.own, t.id::text), t.version, t.queue, t.at, t.json, t.key,
                            t.place, t.waiting, who, t.until, t.claims, t.attempt, t.error, t.created, t.modified,
                            t.dedupe, t.dedupe_for;
                        get diagnostics n = row_count;
                        total := total - n;
                        left_over := left_over - n;
                        -- Then those before: what came back, and what was passed over.
                        exit when start = -9223372036854775808;
                        start := -9223372036854775808;
                        start_id := '00000000-0000-0000-0000-000000000000';
                    end loop;
                    if total > 0 and not plain then
                        for l in select c.* from intervalq._claim_ranges(q, total, me) as c loop
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
            if exists (select from intervalq.heads h where h.queue = any (queues)) then
                perform intervalq._sweep(now);
            end if;
            exit when not idle;
            -- Inserts of this moment don't see us yet, nor we them: wait for them a little, and look again.
            foreach q in array queues loop
                for i in 1 .. 20 loop
                    exit when pg_try_advisory_xact_lock(intervalq._queue_lock(q));
                    perform pg_sleep(0.0005);
                end loop;
            end loop;
            insert into intervalq.idle (session, queues) values (me, queues)
            on conflict (session) do update set queues = excluded.queues;
        end loop;
        if lease <= 0 then
            -- Ready again at once, but not for this very claim.
            update intervalq.tasks t set ready = ends
            where t.session = me and t.ready is null and t.until = ends and t.modified = now;
        end if;
        if left_over > 0 then
            foreach q in array queues loop
                select t.ready into x from intervalq.tasks t
                where t.queue = q and t.ready > now order by t.ready limit 1;
                soon := least(soon, x);
            end loop;
        end if;
    end if;

    if woken <> '{}' then
        perform intervalq._wake(woken);
    end if;
    l := null;
    l.kind := 'h';
    l.created := now;
    if me is null then
        l.claims := 0;
    elsif lost <> '{}' or lost_ranges <> '{}' or heads is not null then
        l.claims := 1;
    end if;
    l.until := soon - now;
    if l.claims is not null then
        l.json := json_build_object('lost', lost, 'ranges', lost_ranges, 'heads', heads);
    end if;
    return next l;
end
$$;

CREATE TABLE intervalq.beats (
    number integer NOT NULL,
    beaten bigint NOT NULL
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
    head bigint DEFAULT 0 NOT NULL
)
WITH (fillfactor='30');

CREATE UNLOGGED TABLE intervalq.idle (
    session integer NOT NULL,
    queues text[] NOT NULL
)
WITH (fillfactor='50');

CREATE TABLE intervalq.marks (
    queue text NOT NULL COLLATE pg_catalog."C",
    key text NOT NULL COLLATE pg_catalog."C",
    id text NOT NULL COLLATE pg_catalog."C",
    until bigint
);

CREATE TABLE intervalq.plain (
    queue text NOT NULL COLLATE pg_catalog."C",
    part smallint NOT NULL,
    number bigint NOT NULL,
    "json" text NOT NULL
);

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
    seen pg_snapshot NOT NULL
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

INSERT INTO intervalq.beats VALUES (2, 1700000000000000);
INSERT INTO intervalq.beats VALUES (1, 1700000000000009);

INSERT INTO intervalq.floors VALUES ('drained', 0, 0, NULL, NULL, 0);
INSERT INTO intervalq.floors VALUES ('drained', 1, 0, NULL, NULL, 0);
INSERT INTO intervalq.floors VALUES ('drained', 2, 0, NULL, NULL, 0);
INSERT INTO intervalq.floors VALUES ('drained', 3, 0, NULL, NULL, 0);
INSERT INTO intervalq.floors VALUES ('drained', 4, 0, NULL, NULL, 0);
INSERT INTO intervalq.floors VALUES ('drained', 5, 0, NULL, NULL, 0);
INSERT INTO intervalq.floors VALUES ('drained', 6, 0, NULL, NULL, 0);
INSERT INTO intervalq.floors VALUES ('drained', 7, 0, NULL, NULL, 0);
INSERT INTO intervalq.floors VALUES ('drained', 8, 0, NULL, NULL, 0);
INSERT INTO intervalq.floors VALUES ('drained', 10, 0, NULL, NULL, 0);
INSERT INTO intervalq.floors VALUES ('drained', 11, 0, NULL, NULL, 0);
INSERT INTO intervalq.floors VALUES ('drained', 12, 0, NULL, NULL, 0);
INSERT INTO intervalq.floors VALUES ('drained', 13, 0, NULL, NULL, 0);
INSERT INTO intervalq.floors VALUES ('drained', 14, 0, NULL, NULL, 0);
INSERT INTO intervalq.floors VALUES ('drained', 15, 0, NULL, NULL, 0);
INSERT INTO intervalq.floors VALUES ('plain', 1, 0, NULL, NULL, 0);
INSERT INTO intervalq.floors VALUES ('plain', 6, 0, NULL, NULL, 0);
INSERT INTO intervalq.floors VALUES ('plain', 8, 0, NULL, NULL, 0);
INSERT INTO intervalq.floors VALUES ('plain', 9, 0, NULL, NULL, 0);
INSERT INTO intervalq.floors VALUES ('plain', 10, 0, NULL, NULL, 0);
INSERT INTO intervalq.floors VALUES ('plain', 11, 0, NULL, NULL, 0);
INSERT INTO intervalq.floors VALUES ('plain', 12, 0, NULL, NULL, 0);
INSERT INTO intervalq.floors VALUES ('plain', 13, 0, NULL, NULL, 0);
INSERT INTO intervalq.floors VALUES ('plain', 14, 0, NULL, NULL, 0);
INSERT INTO intervalq.floors VALUES ('plain', 15, 0, NULL, NULL, 0);
INSERT INTO intervalq.floors VALUES ('drained', 9, 25601, NULL, '{}', 1700000000000009);
INSERT INTO intervalq.floors VALUES ('plain', 0, 18433, NULL, '{}', 1700000000000009);
INSERT INTO intervalq.floors VALUES ('plain', 2, 3073, NULL, '{}', 1700000000000009);
INSERT INTO intervalq.floors VALUES ('plain', 3, 11265, NULL, '{}', 1700000000000009);
INSERT INTO intervalq.floors VALUES ('plain', 4, 12289, NULL, '{}', 1700000000000009);
INSERT INTO intervalq.floors VALUES ('plain', 5, 6145, NULL, '{}', 1700000000000009);
INSERT INTO intervalq.floors VALUES ('plain', 7, 10241, NULL, '{}', 1700000000000009);

INSERT INTO intervalq.heads VALUES ('plain', 1, 0);
INSERT INTO intervalq.heads VALUES ('plain', 6, 0);
INSERT INTO intervalq.heads VALUES ('plain', 8, 0);
INSERT INTO intervalq.heads VALUES ('plain', 9, 0);
INSERT INTO intervalq.heads VALUES ('plain', 10, 0);
INSERT INTO intervalq.heads VALUES ('plain', 11, 0);
INSERT INTO intervalq.heads VALUES ('plain', 12, 0);
INSERT INTO intervalq.heads VALUES ('plain', 13, 0);
INSERT INTO intervalq.heads VALUES ('plain', 14, 0);
INSERT INTO intervalq.heads VALUES ('plain', 15, 0);
INSERT INTO intervalq.heads VALUES ('plain', 4, 12289);
INSERT INTO intervalq.heads VALUES ('plain', 5, 6145);
INSERT INTO intervalq.heads VALUES ('plain', 3, 11265);
INSERT INTO intervalq.heads VALUES ('plain', 2, 3073);
INSERT INTO intervalq.heads VALUES ('plain', 7, 10241);
INSERT INTO intervalq.heads VALUES ('plain', 0, 18433);
INSERT INTO intervalq.heads VALUES ('drained', 0, 0);
INSERT INTO intervalq.heads VALUES ('drained', 1, 0);
INSERT INTO intervalq.heads VALUES ('drained', 2, 0);
INSERT INTO intervalq.heads VALUES ('drained', 3, 0);
INSERT INTO intervalq.heads VALUES ('drained', 4, 0);
INSERT INTO intervalq.heads VALUES ('drained', 5, 0);
INSERT INTO intervalq.heads VALUES ('drained', 6, 0);
INSERT INTO intervalq.heads VALUES ('drained', 7, 0);
INSERT INTO intervalq.heads VALUES ('drained', 8, 0);
INSERT INTO intervalq.heads VALUES ('drained', 10, 0);
INSERT INTO intervalq.heads VALUES ('drained', 11, 0);
INSERT INTO intervalq.heads VALUES ('drained', 12, 0);
INSERT INTO intervalq.heads VALUES ('drained', 13, 0);
INSERT INTO intervalq.heads VALUES ('drained', 14, 0);
INSERT INTO intervalq.heads VALUES ('drained', 15, 0);
INSERT INTO intervalq.heads VALUES ('drained', 9, 25601);

INSERT INTO intervalq.marks VALUES ('q', 'd', 'once', NULL);
INSERT INTO intervalq.marks VALUES ('q', 'e', 'twice', 1700000060000005);

INSERT INTO intervalq.plain VALUES ('plain', 5, 1025, '0');
INSERT INTO intervalq.plain VALUES ('plain', 5, 2049, '1');
INSERT INTO intervalq.plain VALUES ('plain', 2, 3073, '2');
INSERT INTO intervalq.plain VALUES ('plain', 12, 4097, '3');
INSERT INTO intervalq.plain VALUES ('plain', 11, 5121, '4');
INSERT INTO intervalq.plain VALUES ('plain', 5, 6145, '5');
INSERT INTO intervalq.plain VALUES ('plain', 13, 7169, '6');
INSERT INTO intervalq.plain VALUES ('plain', 13, 8193, '7');
INSERT INTO intervalq.plain VALUES ('plain', 7, 9217, '8');
INSERT INTO intervalq.plain VALUES ('plain', 7, 10241, '9');
INSERT INTO intervalq.plain VALUES ('plain', 3, 11265, '10');
INSERT INTO intervalq.plain VALUES ('plain', 10, 13313, '12');
INSERT INTO intervalq.plain VALUES ('plain', 12, 14337, '13');
INSERT INTO intervalq.plain VALUES ('plain', 12, 15361, '14');
INSERT INTO intervalq.plain VALUES ('plain', 11, 16385, '15');
INSERT INTO intervalq.plain VALUES ('plain', 13, 17409, '16');
INSERT INTO intervalq.plain VALUES ('plain', 0, 18433, '17');
INSERT INTO intervalq.plain VALUES ('plain', 8, 19457, '18');
INSERT INTO intervalq.plain VALUES ('plain', 0, 20481, '19');
INSERT INTO intervalq.plain VALUES ('plain', 13, 21505, '20');
INSERT INTO intervalq.plain VALUES ('plain', 0, 22529, '21');
INSERT INTO intervalq.plain VALUES ('plain', 8, 23553, '22');
INSERT INTO intervalq.plain VALUES ('plain', 9, 24577, '23');

INSERT INTO intervalq.ranges VALUES ('plain', 5, 1025, 6145, 1, 3, '789:789:');
INSERT INTO intervalq.ranges VALUES ('plain', 3, 11265, 11265, 1, 1, '789:789:');
INSERT INTO intervalq.ranges VALUES ('plain', 2, 3073, 3073, 1, 1, '789:789:');
INSERT INTO intervalq.ranges VALUES ('plain', 7, 9217, 10241, 1, 2, '789:789:');
INSERT INTO intervalq.ranges VALUES ('plain', 0, 18433, 18433, 1, 1, '789:789:');

INSERT INTO intervalq.sessions VALUES (1, 'old', 'host', 7, 'workers', 3600000000, 1700000000000000, NULL, NULL, false);
INSERT INTO intervalq.sessions VALUES (2, 'lost', 'host', 8, '', 1000000, 1700000000000000, NULL, NULL, false);

INSERT INTO intervalq.tasks VALUES ('c20dea4d-876b-8b8f-b0a1-814b43017030', NULL, 1700000000000000, 1700000000000000, 1700000000000001, NULL, 0, 1, 1, 1, 0, 1, false, 'held', '{"n":1}', '', 'held', NULL, NULL);
INSERT INTO intervalq.tasks VALUES ('1ef001c4-4773-8da3-4af4-534af34dfedf', 1700000030000001, 1700000000000000, 1700000000000000, 1700000000000001, 1700000030000001, 0, 1, 1, 1, 0, 1, false, 'leased', '2', '', 'leased', NULL, NULL);
INSERT INTO intervalq.tasks VALUES ('88f6811a-b5d8-8c6d-3177-f9b7609ae0fc', NULL, 1700000000000000, 1700000000000000, 1700000000000001, NULL, 0, 1, 1, 1, 0, 2, false, 'orphans', '"ü"', '', 'orphan', NULL, NULL);
INSERT INTO intervalq.tasks VALUES ('015f7e6b-c5ae-8f48-3724-089e9252cc13', NULL, 1700000000000002, 1700000000000002, 1700000000000002, NULL, 0, 0, 0, 0, 2, NULL, true, 'line', 'null', '', 'k2', 'k', NULL);
INSERT INTO intervalq.tasks VALUES ('2f5052c9-fd15-819a-18c5-84d013635681', NULL, 1700000000000002, 1700000000000002, 1700000000000002, NULL, 0, 0, 0, 0, 3, NULL, true, 'line', 'null', '', 'k3', 'k', NULL);
INSERT INTO intervalq.tasks VALUES ('6ab9f1eb-8f7d-8388-f4f9-d586f66e99fd', NULL, 1700000000000002, 1700000000000002, 1700000000000003, NULL, 0, 1, 1, 1, 1, 1, false, 'line', 'null', '', 'k1', 'k', NULL);
INSERT INTO intervalq.tasks VALUES ('0190a5c2-1111-7abc-8def-000000000000', 1700000000000004, 1700000000000004, 1700000000000004, 1700000000000004, NULL, 0, 0, 0, 0, 0, NULL, false, 'q', '[1]', '', NULL, NULL, NULL);
INSERT INTO intervalq.tasks VALUES ('1d9283d8-48ea-841a-ce1f-e0d2378ef8b7', 1700000060000000, 1700000060000000, 1700000000000004, 1700000000000004, NULL, 0, 0, 0, 0, 0, NULL, false, 'q', '2', '', 'later', NULL, NULL);
INSERT INTO intervalq.tasks VALUES ('b90bc939-0bcd-8bad-9331-60c81fb4d701', 1700000000000004, 1700000000000004, 1700000000000004, 1700000000000004, NULL, 0, 0, 0, 2, 0, NULL, false, 'q', '3', 'ValueError: boom', 'tried', NULL, NULL);
INSERT INTO intervalq.tasks VALUES ('200651a8-b2d5-812f-692d-b89468a7d47d', 1700000000000004, 1700000000000004, 1700000000000004, 1700000000000004, NULL, 60000000, 0, 0, 0, 0, NULL, false, 'q', '4', '', 'once', NULL, 'd');

INSERT INTO intervalq.tasks_version VALUES (true, 1);

SELECT pg_catalog.setval('intervalq.plain_blocks', 25, true);

SELECT pg_catalog.setval('intervalq.sessions_number_seq', 2, true);

ALTER TABLE ONLY intervalq.beats
    ADD CONSTRAINT beats_pkey PRIMARY KEY (number);

ALTER TABLE ONLY intervalq.floors
    ADD CONSTRAINT floors_pkey PRIMARY KEY (queue, part);

ALTER TABLE ONLY intervalq.heads
    ADD CONSTRAINT heads_pkey PRIMARY KEY (queue, part);

ALTER TABLE ONLY intervalq.idle
    ADD CONSTRAINT idle_pkey PRIMARY KEY (session);

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

CREATE INDEX marks_until ON intervalq.marks USING btree (until) WHERE (until IS NOT NULL);

CREATE INDEX ranges_session ON intervalq.ranges USING btree (session);

CREATE UNIQUE INDEX tasks_first ON intervalq.tasks USING btree (queue, key) WHERE ((key IS NOT NULL) AND (NOT waiting));

CREATE INDEX tasks_line ON intervalq.tasks USING btree (queue, key, place) WHERE (key IS NOT NULL);

CREATE INDEX tasks_ready ON intervalq.tasks USING btree (queue, ready, id) WHERE (ready IS NOT NULL);

CREATE INDEX tasks_session ON intervalq.tasks USING btree (session) WHERE (session IS NOT NULL);
