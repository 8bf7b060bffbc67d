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
    AS $$
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
        -- Sessions that found nothing because of our locks.
        woken := array(select distinct x.queue from unnest(rows_named) as x where x.id = any (plain));
    end if;
    for p in select e from jsonb_array_elements(command -> 'deletes') as e loop
        continue when (p ->> 0)::uuid = any (plain);
        t := rows_named[(known ->> (p ->> 0))::integer];
        woken := woken || intervalq._remove(
            t, case when t.session = me and not t.cancelled then 'done' else 'cancelled' end, p -> 3, me, now, true
        );
    end loop;
    for p in select e from jsonb_array_elements(command -> 'changes') as e loop
        after := intervalq._change(rows_named[(known ->> (p ->> 0))::integer], p, me, now);
        t := after.t;
        woken := woken || after.woken || case when t.ready <= now + 5000000 then t.queue end;
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

CREATE FUNCTION intervalq._catch_up(queues text[], wanted integer, now bigint, ahead bigint, since bigint) RETURNS void
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
declare
    q text;
begin
    foreach q in array queues loop
        with late as materialized (
            select c.spot from unnest(intervalq._levels(q)) as u (p), lateral (
                select t.ctid as spot from intervalq.tasks t
                where t.queue = q and t.priority = u.p and t.ready > now and t.ready <= now + ahead
                    and (t.modified < since or t.modified > now + 1000000)
                order by t.ready, t.id limit wanted for update skip locked
            ) as c
        )
        update intervalq.tasks t set ready = now, at = least(t.at, now), until = least(t.until, now)
        from late l where t.ctid = l.spot;
    end loop;
end
$$;

CREATE FUNCTION intervalq._change(INOUT t intervalq.tasks, p jsonb, me integer, now bigint, OUT woken text[]) RETURNS record
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
declare
    keep boolean := (p ->> 8)::boolean;
    before text := t.queue;
    was_waiting boolean;
begin
    if t.key is not null or t.waiting then
        select x.waiting, x.at, x.lane, x.awaits into t.waiting, t.at, t.lane, t.awaits from intervalq.tasks x where x.id = t.id;
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
    if t.keep_for > 0 or p -> 12 <> 'null' then
        t := intervalq._with_attempt(t, p, keep, now);
    end if;
    t.attempt := coalesce((p ->> 6)::integer, t.attempt);
    t.error := coalesce(p ->> 7, t.error);
    if not keep then
        t.session := null;
        t.alone := t.alone and not t.begun;
        t.begun := false;
        t.cancelled := false;
    end if;
    t.progress := coalesce(p ->> 10, t.progress);
    t.priority := coalesce((p ->> 11)::smallint, t.priority);
    t.until := case when keep then now + (p ->> 9)::bigint end;
    t.modified := now;
    if intervalq._is_dead(t.queue) and not intervalq._is_dead(before) then
        t.queue := before;
        perform intervalq._leave(t, 'failed', p -> 12, now, me);
        t.queue := p ->> 2;
        if t.follow_up is not null then
            woken := intervalq._less_to_await(array[t.follow_up], now);
            t.follow_up := null;  -- it has ended, even if it is tried again
        end if;
    end if;
    if t.dedupe is not null and t.queue <> before then
        perform intervalq._mark(before, t.dedupe, coalesce(t.own, t.id::text), now + t.dedupe_for);
        t.dedupe := null;
        t.dedupe_for := 0;
    end if;
    if t.key is not null and t.queue <> before then
        delete from intervalq.tasks x where x.id = t.id;
        if not was_waiting then
            woken := woken || intervalq._feed(before, t.key, now);
        end if;
        t := intervalq._put(intervalq._in_line(t));
        return;
    end if;
    t.ready := case when t.waiting then null when t.session is null then t.at else t.until end;
    update intervalq.tasks x set
        version = t.version, queue = t.queue, json = t.json, at = t.at, attempt = t.attempt, error = t.error,
        session = t.session, until = t.until, modified = t.modified, dedupe = t.dedupe,
        dedupe_for = t.dedupe_for, ready = t.ready, begun = t.begun, alone = t.alone,
        cancelled = t.cancelled, progress = t.progress, priority = t.priority, keep_for = t.keep_for,
        errors = t.errors, follow_up = t.follow_up
    where x.id = t.id;
end
$$;

CREATE FUNCTION intervalq._claim(who text, me integer, queues text[], wanted integer, lease bigint, most bigint, idle boolean, sinces bigint[], since_ids uuid[], begins integer, ahead bigint, now bigint) RETURNS SETOF intervalq.line
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
declare
    share constant integer := (wanted + cardinality(queues) - 1) / cardinality(queues);
    plain_first constant boolean := random() < 0.5;
    left_over integer := wanted;
    total integer;
    n integer;
    i integer;
    is_ranked boolean;
    is_plain boolean;
    l intervalq.line;
begin
    for look in 1 .. 2 loop
        -- First an equal share of each queue, then whatever else there is.
        for turn in 1 .. least(2, cardinality(queues)) loop
            for i, is_ranked in
                select u.i, exists (
                    select from intervalq.tasks t where t.queue = u.q and t.priority <> 0 and t.ready is not null
                ) from unnest(queues) with ordinality as u (q, i) order by random()
            loop
                total := case when turn = 1 then least(share, left_over) else left_over end;
                foreach is_plain in array array[plain_first, not plain_first] loop
                    exit when total <= 0;
                    if is_plain then
                        for l in select c.* from intervalq._claim_ranges(queues[i], total, me, begins) as c loop
                            return next l;
                            total := total - l.claims;
                            left_over := left_over - l.claims;
                        end loop;
                        continue;
                    end if;
                    l := null;
                    if total < 16 and not is_ranked then
                        l := intervalq._first(queues[i], sinces[i], since_ids[i], now);
                        if l.kind is not null then
                            return next l;
                        end if;
                    end if;
                    return query select c.* from intervalq._claim_ready(
                        queues[i], total, coalesce(l.at, sinces[i]), coalesce(l.id::uuid, since_ids[i]), who, me,
                        begins, now + lease, case when lease > 0 then now + lease end, is_ranked, now
                    ) as c;
                    get diagnostics n = row_count;
                    total := total - n;
                    left_over := left_over - n;
                end loop;
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
        -- For a consumer with a limit, its claims are counted, by one session at a time.
        perform intervalq._stand_idle(me, queues, case when most is null then wanted end, lease);
    end loop;
    if left_over > 0 then
        return query select x.* from intervalq._next(queues, ahead, now) as x;
    end if;
end
$$;

CREATE FUNCTION intervalq._claim_ranges(q text, wanted integer, me integer, begins integer) RETURNS SETOF intervalq.line
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
    snapshot pg_snapshot;
    l intervalq.line;
    doubt boolean := false;      -- others may have created and removed heads since this transaction's snapshot
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
        into l.at, l.until, n, l.json, l.key, snapshot
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
        insert into intervalq.ranges (queue, part, low, high, session, size, begun, snapshot)
        values (q, h.part, l.at, l.until, me, n, case when begins = 0 then '{}'::bigint[] end, snapshot);
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

CREATE FUNCTION intervalq._claim_ranked(q text, wanted integer, who text, me integer, begins integer, ends bigint, again bigint, now bigint) RETURNS SETOF intervalq.line
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
declare
    levels constant smallint[] := intervalq._levels(q);
    most constant integer := case when wanted < 16 then wanted + 16 else wanted end;
    low bigint := -4611686018427387904;
    high bigint;
    places bigint[];
    priorities smallint[];
    run integer;
    skipped integer;
    left_over integer := wanted;
    n integer;
begin
    loop
        -- The first ones, whoever is claiming them at this moment.
        select array_agg(f.place order by f.place, f.p desc, f.id), array_agg(f.p order by f.place, f.p desc, f.id)
        into places, priorities
        from (
            select u.p, c.id, c.ready - u.p * 60000000::bigint as place from unnest(levels) as u (p), lateral (
                select t.ready, t.id from intervalq.tasks t
                where t.queue = q and t.priority = u.p and t.ready <= now
                    and t.ready >= low + u.p * 60000000::bigint
                order by t.ready, t.id limit most
            ) as c order by 3, 1 desc, 2 limit most
        ) as f;
        exit when places is null;
        if wanted < 16 and left_over = wanted then
            -- Not always the very first ones: but none overtakes a task of another priority.
            run := coalesce((
                select min(w.o) - 1 from unnest(priorities) with ordinality as w (p, o) where w.p <> priorities[1]
            ), cardinality(places));
            skipped := floor(random() * (1 + greatest(0, run - wanted)));
            if skipped > 0 then
                return query select c.* from intervalq._claim_up_to(
                    q, left_over, priorities[1:1], places[skipped + 1], places[run], who, me, begins, ends, again, now
                ) as c;
                get diagnostics n = row_count;
                left_over := left_over - n;
                exit when left_over <= 0;
            end if;
        end if;
        high := places[least(left_over, cardinality(places))];
        return query select c.* from intervalq._claim_up_to(
            q, left_over, levels, low, high, who, me, begins, ends, again, now
        ) as c;
        get diagnostics n = row_count;
        left_over := left_over - n;
        exit when left_over <= 0;
        low := high + 1;  -- all before that were claimed here or by others
    end loop;
end
$$;

CREATE FUNCTION intervalq._claim_ready(q text, wanted integer, since bigint, since_id uuid, who text, me integer, begins integer, ends bigint, again bigint, is_ranked boolean, now bigint) RETURNS SETOF intervalq.line
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
declare
    start bigint := coalesce(since, -9223372036854775808);
    start_id uuid := coalesce(since_id, '00000000-0000-0000-0000-000000000000');
    left_over integer := wanted;
    x record;
    n integer;
begin
    if is_ranked then
        return query select c.* from intervalq._claim_ranked(q, wanted, who, me, begins, ends, again, now) as c;
        return;
    end if;
    if wanted < 16 then
        -- Not always the first ones: a few tasks that nobody completes must not block the rest.
        select t.ready, t.id into x from intervalq.tasks t
        where t.queue = q and t.priority = 0 and t.ready <= now and (t.ready, t.id) >= (start, start_id)
        order by t.ready, t.id offset floor(random() * 16) limit 1;
        start := coalesce(x.ready, start);
        start_id := coalesce(x.id, start_id);
    end if;
    loop
        return query
        with picked as materialized (
            select t.ctid as spot from intervalq.tasks t
            where t.queue = q and t.priority = 0 and t.ready <= now and (t.ready, t.id) >= (start, start_id)
            order by t.ready, t.id limit left_over for update skip locked
        )
        update intervalq.tasks t set
            version = t.version + 1, session = me, until = ends, ready = again,
            claims = t.claims + 1, attempt = t.attempt + (begins > t.alone::integer)::integer,
            begun = begins > t.alone::integer, modified = now
        from picked p where t.ctid = p.spot
        returning 't', coalesce(t.own, t.id::text), t.version, t.queue, t.at, t.json, t.key,
            t.place, t.waiting, who, t.until, t.claims, t.attempt, t.error, t.created, t.modified,
            t.dedupe, t.dedupe_for, t.begun, t.alone, t.cancelled, t.progress, t.priority, t.keep_for, t.errors,
            coalesce(t.per_key, 1), coalesce(t.follow_up, ''), 0;
        get diagnostics n = row_count;
        left_over := left_over - n;
        -- Then those before: tasks that came back, or were skipped.
        exit when left_over <= 0 or start = -9223372036854775808;
        start := -9223372036854775808;
        start_id := '00000000-0000-0000-0000-000000000000';
    end loop;
end
$$;

CREATE FUNCTION intervalq._claim_up_to(q text, wanted integer, levels smallint[], low bigint, high bigint, who text, me integer, begins integer, ends bigint, again bigint, now bigint) RETURNS SETOF intervalq.line
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
begin
    return query
    with picked as materialized (
        select c.spot from unnest(levels) as u (p), lateral (
            select t.ctid as spot, t.ready, t.id from intervalq.tasks t
            where t.queue = q and t.priority = u.p and t.ready <= now
                and t.ready between low + u.p * 60000000::bigint and high + u.p * 60000000::bigint
            order by t.ready, t.id limit wanted for update skip locked
        ) as c order by c.ready - u.p * 60000000::bigint, u.p desc, c.id limit wanted
    )
    update intervalq.tasks t set
        version = t.version + 1, session = me, until = ends, ready = again,
        claims = t.claims + 1, attempt = t.attempt + (begins > t.alone::integer)::integer,
        begun = begins > t.alone::integer, modified = now
    from picked p where t.ctid = p.spot
    returning 't', coalesce(t.own, t.id::text), t.version, t.queue, t.at, t.json, t.key,
        t.place, t.waiting, who, t.until, t.claims, t.attempt, t.error, t.created, t.modified,
        t.dedupe, t.dedupe_for, t.begun, t.alone, t.cancelled, t.progress, t.priority, t.keep_for, t.errors,
        coalesce(t.per_key, 1), coalesce(t.follow_up, ''), 0;
end
$$;

CREATE FUNCTION intervalq._close_ranks(q text, k text) RETURNS void
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
declare
    running constant integer := (
        select max(x.place) from intervalq.tasks x where x.queue = q and x.key = k and not x.waiting
    );
    last constant integer := (
        select x.place from intervalq.tasks x where x.queue = q and x.key = k order by x.place desc limit 1
    );
begin
    update intervalq.tasks t set place = last + w.n
    from (
        select x.id, row_number() over (order by x.place, x.id) as n from intervalq.tasks x
        where x.queue = q and x.key = k and x.place <= running and x.waiting
    ) as w where t.id = w.id;
end
$$;

CREATE FUNCTION intervalq._coming(command jsonb, rows_named intervalq.tasks[], known jsonb, OUT coming jsonb, OUT gone uuid[]) RETURNS record
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
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
        select jsonb_build_array(e -> 2, e -> 4)::text, min(x.most) - i, max(x.most) + i + 1
        from jsonb_array_elements(inserts) as e,
            lateral (values ((e ->> 12)::bigint + coalesce((e ->> 16)::integer, 1) - 1)) as x (most)
        where e ->> 4 is not null and e ->> 12 is not null group by 1
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
        if p ->> 2 is not null and coming ? k then
            coming := coming || jsonb_build_object(k, (coming ->> k)::bigint + 1);
        end if;
    end loop;
end
$$;

CREATE FUNCTION intervalq._counts(names text[], bounds bigint[], holders integer[], now bigint) RETURNS TABLE(queue text, seen bigint[], found bigint[], ranged bigint, most_claims integer)
    LANGUAGE plpgsql STABLE
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET plan_cache_mode TO 'force_generic_plan'
    SET enable_seqscan TO 'off'
    SET enable_hashjoin TO 'off'
    SET enable_mergejoin TO 'off'
    SET enable_bitmapscan TO 'off'
    SET jit TO 'off'
    AS $$
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
            select from generate_series(-9, 9) as v (p), lateral (
                select from intervalq.tasks t where t.queue = u.queue and t.priority = v.p and t.ready <= now offset 0
            ) as t limit bounds[1] + 1
        ) as x
    ) as past, lateral (
        select count(*) as n, count(*) filter (where x.session is null) as free from (
            select t.session from generate_series(-9, 9) as v (p), lateral (
                select t.session from intervalq.tasks t
                where t.queue = u.queue and t.priority = v.p and t.ready > now offset 0
            ) as t limit bounds[2] + least(bounds[2], bounds[5]) + 1
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

CREATE FUNCTION intervalq._done(ids uuid[], versions integer[], keep_fors bigint[], durations bigint[], results text, me integer, now bigint, OUT done uuid[], OUT ended text[]) RETURNS record
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET enable_hashjoin TO 'on'
    AS $$
declare
    texts constant text[] := string_to_array(results, chr(31));
    number constant bigint := nextval('intervalq.outcome_numbers');
    s intervalq.sessions;
    times bigint[];
begin
    select x.* into s from intervalq.sessions x where x.number = me;
    -- As in `_settle_all`. Deleting by a join with the arrays would take half as long again.
    with gone as (
        delete from intervalq.tasks t where t.id = any (ids) and ((t.id, t.version) in (
            select d.id, d.version from unnest(ids, versions) as d (id, version)
        )) is true and t.session is not distinct from me
            and t.key is null and t.dedupe is null and not t.cancelled
        returning t.id, t.own, t.queue, t.json, t.follow_up, t.attempt + (not t.begun)::integer as attempts, t.created,
            nullif(t.keep_for, 0) as keep_for,
            intervalq._errors_of(t.errors, t.keep_for, t.error, t.attempt, t.begun) as errors
    ), ending as (
        select g.*, k.kept_for, d.took, d.result,
            case when k.kept_for > 0 then intervalq._slot(k.kept_for, now + k.kept_for) end as slot
        from gone g join unnest(ids, keep_fors, durations, texts) as d (id, keep_for, took, result) on d.id = g.id,
            lateral (values (coalesce(g.keep_for, d.keep_for))) as k (kept_for)
    ), firsts as (
        select distinct on (e.slot) e.slot, e.kept_for, e.id from ending e where e.slot is not null
    ), left_ones as (
        insert into intervalq.outcomes (
            slot, id, own, queue, state, json, result, attempts, errors, created, started, ended, host, pid, until,
            number, together, queues
        )
        select e.slot, e.id, e.own, e.queue, 'done', e.json,
            coalesce(e.result, ''), e.attempts, e.errors, e.created, case when e.took > 0 then now - e.took else 0 end,
            now, s.host, s.pid, now + e.kept_for, number, case when f.id = e.id then ids end,
            case when f.id = e.id then array(select distinct x.queue from ending x) end
        from ending e join firsts f on f.slot = e.slot
    )
    select coalesce(array_agg(e.id), '{}'), array(select f.kept_for from firsts f),
        array_agg(e.follow_up) filter (where e.follow_up is not null)
    into done, times, ended from ending e;
    if times <> '{}' then
        perform intervalq._note_periods(times, now);
        if not intervalq._fresh() or exists (select from intervalq.awaited a where a.id = any (done)) then
            perform intervalq._tell(done);
        end if;
    end if;
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

CREATE FUNCTION intervalq._drop_cancelled(s intervalq.sessions, now bigint) RETURNS text[]
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
declare
    t intervalq.tasks;
    woken text[] := '{}';
begin
    for t in
        select x.* from intervalq.tasks x where x.session = s.number and x.cancelled order by x.id
        for update skip locked
    loop
        continue when t.key is not null and not pg_try_advisory_xact_lock(intervalq._lock('k', t.queue, t.key))
            or t.follow_up is not null and not intervalq._try_follow_up(t.follow_up);
        woken := woken || intervalq._remove(t, 'cancelled', null, null, now, true);
    end loop;
    return array_remove(woken, null);
end
$$;

CREATE FUNCTION intervalq._errors_of(errors text, keep_for bigint, error text, attempt integer, begun boolean) RETURNS text
    LANGUAGE sql IMMUTABLE
    RETURN CASE WHEN ((errors <> ''::text) OR (keep_for > 0) OR (error = ''::text)) THEN errors ELSE ((('0 '::text || ((attempt - (begun)::integer))::text) || ' '::text) || error) END;

CREATE FUNCTION intervalq._feed(q text, k text, now bigint) RETURNS text
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
declare
    f record;
    lanes smallint[];            -- the free places of the key
    most integer;
    ready_at bigint;
    is_ready boolean := false;
begin
    if not intervalq._fresh() then
        -- The next task may have been committed after this transaction's snapshot.
        insert into intervalq.unfed (queue, key) values (q, k);
        return null;
    end if;
    select x.ctid as spot, exists (
        select from intervalq.tasks y where y.queue = q and y.key = k and y.per_key is not null
    ) as is_shared, x.waiting and not exists (
        select from intervalq.tasks y where y.queue = q and y.key = k and not y.waiting
    ) as is_next into f from intervalq.tasks x
    where x.queue = q and x.key = k order by x.place, x.id limit 1;
    if f.is_shared then
        select x.per_key into most from intervalq.tasks x
        where x.queue = q and x.key = k order by x.place desc, x.id desc limit 1;
        lanes := intervalq._free_lanes(q, k, coalesce(most, 1));
        for i in 1 .. cardinality(lanes) loop
            update intervalq.tasks t set
                waiting = false, at = greatest(t.at, now), ready = greatest(t.at, now), lane = lanes[i]
            where t.ctid = (
                select x.ctid from intervalq.tasks x where x.queue = q and x.key = k and x.waiting
                order by x.place, x.id limit 1
            )
            returning t.ready into ready_at;
            exit when not found;
            is_ready := is_ready or ready_at <= now;
        end loop;
    elsif f.is_next then
        update intervalq.tasks t set waiting = false, at = greatest(t.at, now), ready = greatest(t.at, now), lane = 0
        where t.ctid = f.spot returning t.ready into ready_at;
        is_ready := coalesce(ready_at <= now, false);
    end if;
    return case when is_ready then q end;
end
$$;

CREATE FUNCTION intervalq._find_plain(ids uuid[]) RETURNS TABLE(queue text, part smallint, number bigint)
    LANGUAGE plpgsql STABLE
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET plan_cache_mode TO 'force_generic_plan'
    SET enable_seqscan TO 'off'
    SET enable_hashjoin TO 'off'
    SET enable_mergejoin TO 'off'
    SET enable_bitmapscan TO 'off'
    AS $$
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
        -- The same request may have come before, and its answer was lost.
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
        -- Tasks that were committed after the claim were handed out to nobody.
        delete from intervalq.plain y where y.queue = q and y.part = of and y.number between a and upto
            and intervalq._saw(r.snapshot, y.xmin);
        perform intervalq._spill(q, of, a, upto, -1, null, '', now);
        if r.has_gaps and p ->> 5 is not null then
            update intervalq.ranges x set size = (
                select count(*) from intervalq.plain y where y.queue = q and y.part = of
                    and y.number between upto + 1 and b and intervalq._saw(r.snapshot, y.xmin)
            ) where x.queue = q and x.part = of and x.low = upto + 1;
        end if;
    end;
    return true;
end
$$;

CREATE FUNCTION intervalq._finish_all(finished jsonb, me integer, now bigint, OUT lost_ranges integer[], OUT woken text[]) RETURNS record
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
begin
    lost_ranges := '{}';
    woken := '{}';
    if jsonb_array_length(finished) > 1 then
        perform from intervalq.ranges r join (
            select e ->> 0 as queue, (e ->> 1)::smallint as part, (e ->> 2)::bigint as low
            from jsonb_array_elements(finished) as e offset 0
        ) as f on r.queue = f.queue and r.part = f.part and r.low = f.low
        order by r.queue, r.part, r.low for update of r;  -- as `_lock_plain`
    end if;
    for i in 0 .. jsonb_array_length(finished) - 1 loop
        if not intervalq._finish(finished -> i, me, now) then
            lost_ranges := lost_ranges || i;
        else
            select woken || coalesce(array_agg(distinct e -> 1 ->> 2), '{}') into woken
            from jsonb_array_elements(finished -> i -> 4) as e
            where (e -> 1 ->> 6)::bigint <= 0 and e -> 1 ->> 5 is null;
        end if;
    end loop;
end
$$;

CREATE FUNCTION intervalq._first(q text, since bigint, since_id uuid, now bigint) RETURNS intervalq.line
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
declare
    l intervalq.line;
begin
    select 'f', t.id, q, t.ready into l.kind, l.id, l.queue, l.at from intervalq.tasks t
    where t.queue = q and t.priority = 0 and t.ready <= now
        and (t.ready, t.id) >= (
            coalesce(since, -9223372036854775808), coalesce(since_id, '00000000-0000-0000-0000-000000000000')
        )
    order by t.ready, t.id limit 1;
    return l;
end
$$;

CREATE FUNCTION intervalq._first_of(q text, most bigint) RETURNS SETOF tid
    LANGUAGE plpgsql STABLE
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET plan_cache_mode TO 'force_generic_plan'
    SET enable_seqscan TO 'off'
    SET enable_bitmapscan TO 'off'
    AS $$
begin
    return query select c.spot from unnest(intervalq._levels(q)) as u (p), lateral (
        select t.ctid as spot from intervalq.tasks t
        where t.queue = q and t.priority = u.p and t.ready is not null and t.session is null
        order by t.ready, t.id limit most
    ) as c;
    return query select t.ctid from intervalq.tasks t
        where t.queue = q and t.waiting order by t.at, t.id limit most;
    return query select c.spot from intervalq.sessions s, lateral (
        select t.ctid as spot from intervalq.tasks t
        where t.session = s.number and hashtextextended(t.queue, 0) = hashtextextended(q, 0) and t.queue = q
        order by t.at limit most
    ) as c;
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

CREATE FUNCTION intervalq._forget_lapsed(who text, now bigint) RETURNS jsonb
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
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

CREATE FUNCTION intervalq._free(s intervalq.sessions, now bigint) RETURNS void
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
declare
    why constant text := case when s.lapsed then s.host || ':' || s.pid || ' was lost' else '' end;
    dropped constant text[] := intervalq._drop_cancelled(s, now);
    queues text[];
    r intervalq.ranges;
begin
    with found as materialized (
        select t.ctid as spot, case
            when s.lapsed then now + intervalq._rest(t)
            when t.at > now then t.at - intervalq._lag(t.modified, now) else t.at
        end as at from intervalq.tasks t where t.session = s.number and not t.cancelled for update skip locked
    ), freed as (
        update intervalq.tasks t set
            version = t.version + 1, session = null, until = null, modified = now,
            at = x.at, ready = x.at,
            error = case when s.lapsed and t.begun then why else t.error end,
            errors = case
                when s.lapsed and t.begun and t.keep_for > 0 then intervalq._with_error(t.errors, why, t.attempt, now)
                else t.errors
            end,
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
    queues := dropped || queues;
    if queues <> '{}' then
        perform intervalq._wake(queues);
    end if;
end
$$;

CREATE FUNCTION intervalq._free_gone(now bigint) RETURNS void
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
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

CREATE FUNCTION intervalq._free_lanes(q text, k text, most integer) RETURNS smallint[]
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
declare
    taken constant smallint[] := array(
        select x.lane from intervalq.tasks x where x.queue = q and x.key = k and not x.waiting
    );
begin
    return array(
        select n from generate_series(0, most - 1) as n except select unnest(taken)
        order by 1 limit greatest(0, most - cardinality(taken))
    );
end
$$;

CREATE FUNCTION intervalq._free_orphans(now bigint) RETURNS void
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
declare
    s intervalq.sessions;
begin
    s.lapsed := false;  -- nobody has begun them: their answer came after the end of their session
    for s.number in
        with recursive held (n) as (
            select min(t.session) from intervalq.tasks t where t.session is not null
            union all
            select (select min(t.session) from intervalq.tasks t where t.session > h.n) from held h where h.n is not null
        ), ranged (n) as (
            select min(r.session) from intervalq.ranges r
            union all
            select (select min(r.session) from intervalq.ranges r where r.session > h.n)
            from ranged h where h.n is not null
        )
        select u.n from (
            select h.n from held h union select r.n from ranged r union select i.session from intervalq.idle i
        ) as u where u.n is not null and not exists (select from intervalq.sessions x where x.number = u.n)
    loop
        perform intervalq._free(s, now);
    end loop;
end
$$;

CREATE FUNCTION intervalq._fresh() RETURNS boolean
    LANGUAGE sql STABLE
    RETURN (current_setting('transaction_isolation'::text) = ANY (ARRAY['read committed'::text, 'read uncommitted'::text]));

CREATE FUNCTION intervalq._full_inbox(command jsonb, rows_named intervalq.tasks[], known jsonb, left_out boolean[], now bigint) RETURNS intervalq.line
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
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
            -- Only the first tasks of a key can be claimed, and all others are replaced.
            n := intervalq._held_of(p ->> 2, p ->> 4, gone, now);
        -- Those that may be claimed don't count as waiting.
        elsif n - coalesce((p ->> 16)::integer, 1) >= (p ->> 12)::bigint then
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

CREATE FUNCTION intervalq._hand(q text, ids uuid[], jsons text[], now bigint) RETURNS integer
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
declare
    i record;
    n integer;
    payload text;
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
        )) into payload from unnest(ids[:n], jsons[:n]) as u (id, json);
        if octet_length(payload) > 7900 then
            payload := '';
            n := 0;
        else
            insert into intervalq.tasks
                (id, ready, at, created, modified, until, version, claims, session, queue, json)
            select u.id, now + i.lease, now, now, now, now + i.lease, 1, 1, i.session, q, u.json
            from unnest(ids[:n], jsons[:n]) as u (id, json);
        end if;
    end if;
    perform pg_notify('intervalq_tasks', i.who || coalesce(payload, ''));
    return n;
end
$$;

CREATE FUNCTION intervalq._held_of(q text, k text, gone uuid[], now bigint) RETURNS bigint
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
declare
    most constant smallint := (
        select coalesce(x.per_key, 1) from intervalq.tasks x where x.queue = q and x.key = k
        order by x.place desc, x.id desc limit 1
    );
begin
    return (
        select count(*) from (
            select x.* from intervalq.tasks x where x.queue = q and x.key = k and not x.waiting
            order by x.place, x.id limit case when most = 1 then 1 end
        ) as r
        where r.id <> all (gone) and r.session is not null and (r.until is null or (
            r.until > now and r.until > now + intervalq._lag(r.modified, now)
        ))
    );
end
$$;

CREATE FUNCTION intervalq._holders() RETURNS integer[]
    LANGUAGE plpgsql STABLE
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET plan_cache_mode TO 'force_generic_plan'
    SET enable_seqscan TO 'off'
    SET enable_hashjoin TO 'off'
    SET enable_mergejoin TO 'off'
    SET enable_bitmapscan TO 'off'
    AS $$
begin
    return array(select s.number from intervalq.sessions s, lateral (
        select from intervalq.tasks t where t.session = s.number limit 1
    ) as t);
end
$$;

CREATE FUNCTION intervalq._plain_id(part integer, number bigint) RETURNS uuid
    LANGUAGE sql IMMUTABLE
    RETURN ((('0000000000008'::text || lpad(to_hex(part), 3, '0'::text)) || lpad(to_hex(number), 16, '0'::text)))::uuid;

CREATE FUNCTION intervalq._id(id text) RETURNS uuid
    LANGUAGE sql IMMUTABLE
    RETURN CASE WHEN (id ~ '^[0-9a-f]{8}-[0-9a-f]{4}-[0-79a-f][0-9a-f]{3}-[0-9a-f]{4}-[0-9a-f]{12}$'::text) THEN (id)::uuid WHEN (id ~ '^plain-(0|[1-9][0-9]{0,2})-[1-9][0-9]{0,17}$'::text) THEN intervalq._plain_id((split_part(id, '-'::text, 2))::integer, (split_part(id, '-'::text, 3))::bigint) ELSE (OVERLAY("left"(encode(sha256(convert_to(id, 'UTF8'::name)), 'hex'::text), 32) PLACING '8'::text FROM 13))::uuid END;

CREATE FUNCTION intervalq._in_line(t intervalq.tasks) RETURNS intervalq.tasks
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
declare
    last record;
    most constant integer := coalesce(t.per_key, 1);
begin
    select x.place, x.waiting into last from intervalq.tasks x
    where x.queue = t.queue and x.key = t.key order by x.place desc, x.id desc limit 1;
    t.place := coalesce(last.place, 0) + 1;
    t.waiting := last.waiting or (last.place is not null and most = 1);
    if last.place is null then
        t.waiting := false;
        t.lane := 0;
    elsif not t.waiting then
        t.lane := (intervalq._free_lanes(t.queue, t.key, most))[1];
        t.waiting := t.lane is null;
    else
        t.lane := null;
    end if;
    if t.waiting and not intervalq._fresh() then
        insert into intervalq.unfed (queue, key) values (t.queue, t.key);  -- the first task may be gone by now
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
    t.version := coalesce((p ->> 19)::integer, 0);
    t.claims := coalesce((p ->> 20)::integer, 0);
    t.place := 0;
    t.per_key := p ->> 16;
    t.follow_up := p ->> 17;
    t.awaits := p ->> 18;
    t.waiting := t.awaits is not null;
    t.begun := false;
    t.alone := false;
    t.cancelled := false;
    t.progress := '';
    t.priority := p ->> 14;
    t.keep_for := p ->> 15;
    t.errors := case
        when t.keep_for > 0 and t.error <> '' then intervalq._with_error('', t.error, t.attempt, now) else ''
    end;
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
                    perform intervalq._remove(other, 'cancelled', null, null, now, false);
                end if;
            end loop;
        end if;
        t := intervalq._in_line(t);
    end if;
    return intervalq._put(t);
end
$$;

CREATE FUNCTION intervalq._is_dead(queue text) RETURNS boolean
    LANGUAGE sql IMMUTABLE
    RETURN ("right"(queue, 5) = '.dead'::text);

CREATE FUNCTION intervalq._is_plain(id uuid) RETURNS boolean
    LANGUAGE sql IMMUTABLE
    RETURN ((id >= '00000000-0000-8000-0000-000000000000'::uuid) AND (id <= '00000000-0000-8fff-ffff-ffffffffffff'::uuid));

CREATE FUNCTION intervalq._lag(modified bigint, now bigint) RETURNS bigint
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
begin
    return coalesce((
        select c.behind from intervalq.clock c
        where now < c.since + c.behind and (modified < c.since or modified > now + 1000000)
    ), 0);
end
$$;

CREATE FUNCTION intervalq._leave(t intervalq.tasks, ended_as text, kept jsonb, now bigint, me integer) RETURNS void
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
declare
    keep constant bigint := coalesce(nullif(t.keep_for, 0), (kept ->> 0)::bigint, 0);
    took constant bigint := coalesce((kept ->> 2)::bigint, 0);
    s intervalq.sessions;
begin
    if keep = 0 or (ended_as = 'cancelled' and intervalq._is_dead(t.queue)) then
        return;
    end if;
    if ended_as <> 'cancelled' then
        select x.* into s from intervalq.sessions x where x.number = me;
    end if;
    insert into intervalq.outcomes (
        slot, id, own, queue, key, state, json, result, attempts, errors, created, started, ended, host, pid, until,
        number, together
    ) values (
        intervalq._slot(keep, now + keep), t.id, t.own, t.queue, t.key, ended_as, t.json,
        case when ended_as = 'done' then coalesce(kept ->> 1, '') else '' end,
        t.attempt + (ended_as = 'done' and not t.begun)::integer,
        intervalq._errors_of(t.errors, t.keep_for, t.error, t.attempt, t.begun),
        t.created, case when took > 0 then now - took else 0 end, now,
        coalesce(s.host, ''), coalesce(s.pid, 0), now + keep, nextval('intervalq.outcome_numbers'), array[t.id]
    );
    perform intervalq._note_periods(array[keep], now);
    -- By its id: a scan of the table would also read the dead rows that earlier waits have left.
    if not intervalq._fresh() or exists (select from intervalq.awaited a where a.id = t.id) then
        perform intervalq._tell(array[t.id]);
    end if;
end
$$;

CREATE FUNCTION intervalq._leave_out(inserts jsonb, known jsonb, now bigint, OUT left_out boolean[], OUT lines intervalq.line[], OUT collisions text[]) RETURNS record
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
declare
    p jsonb;
    k text;
    there text;                  -- the id of the existing task
    taken jsonb := '{}';         -- queues and dedupe keys of inserts of this command, each with the id
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
                'e', p ->> 0, 0, '', 0, '', there, i, false, '', 0, 0, 0, '', 0, 0, '', 0, false, false, false, '', 0, 0, '',
                1, '', 0
            )::intervalq.line;
        elsif known ? (p ->> 0) then
            collisions := collisions || (p ->> 0);
        end if;
    end loop;
end
$$;

CREATE FUNCTION intervalq._less_to_await(ended text[], now bigint) RETURNS text[]
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
declare
    f record;
    x record;
    woken text[] := '{}';
begin
    for f in select intervalq._id(u.u) as id, count(*) as n from unnest(ended) as u (u) group by 1 order by 1 loop
        update intervalq.tasks t set
            awaits = case when t.awaits > f.n then t.awaits - f.n end,
            waiting = t.awaits > f.n,
            at = case when t.awaits > f.n then t.at else greatest(t.at, now) end,
            ready = case when t.awaits > f.n then null else greatest(t.at, now) end
        where t.id = f.id and t.awaits > 0
        returning t.queue, t.ready into x;
        if x.ready <= now + 5000000 then
            woken := woken || x.queue;
        end if;
    end loop;
    return woken;
end
$$;

CREATE FUNCTION intervalq._levels(q text) RETURNS smallint[]
    LANGUAGE plpgsql STABLE
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
declare
    found_ones smallint[] := '{}';
    p smallint := -10;
begin
    loop
        select t.priority into p from intervalq.tasks t
        where t.queue = q and t.priority > p and t.ready is not null order by t.priority limit 1;
        exit when not found;
        found_ones := found_ones || p;
    end loop;
    return found_ones;
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
        t.until, t.claims, t.attempt, t.error, t.created, t.modified, t.dedupe, t.dedupe_for, t.begun, t.alone,
        t.cancelled, t.progress, t.priority, t.keep_for, t.errors, coalesce(t.per_key, 1), coalesce(t.follow_up, ''),
        coalesce(t.awaits, 0)
    )::intervalq.line;
end
$$;

CREATE FUNCTION intervalq._lives(n integer, now bigint) RETURNS boolean
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
begin
    return exists (
        select from intervalq.sessions s join intervalq.beats b on b.number = s.number
        where s.number = n and s.guarding = pg_postmaster_start_time() and b.beaten + 300000000 >= now
    ) and not pg_try_advisory_xact_lock(7310027, n);
end
$$;

CREATE FUNCTION intervalq._lock(VARIADIC parts text[]) RETURNS bigint
    LANGUAGE sql STABLE
    RETURN (('7310027118246900000'::bigint + (ascii((parts)[1]) << 9)) + (hashtextextended((parts)::text, '7310027118246817121'::bigint) & (511)::bigint));

CREATE FUNCTION intervalq._lock_by_id(named uuid[], depends uuid[], every boolean) RETURNS void
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
declare
    n uuid;
begin
    if depends = '{}' then
        perform from intervalq.tasks x where x.id = any (named) and (every or x.awaits is null)
        order by x.id for update;
        return;
    end if;
    for n in select distinct u.u from unnest(named || depends) as u (u) order by 1 loop
        if n = any (named) then
            perform from intervalq.tasks x where x.id = n and (every or x.awaits is null) for update;
        else
            perform from intervalq.tasks x where x.id = n and (every or x.awaits is null) for share;
        end if;
    end loop;
end
$$;

CREATE FUNCTION intervalq._lock_claims(ids uuid[], parts jsonb, me integer) RETURNS bigint[]
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
declare
    mine uuid[];
    tells boolean;
    locks bigint[];
begin
    select coalesce(array_agg(distinct r.id), '{}'), bool_or(r.follow_up is not null),
        coalesce(array_agg(l.l) filter (where r.key is not null), '{}')
    into mine, tells, locks
    from (
        select u.u as id, null as queue from unnest(ids) as u (u)
        union all select (e ->> 0)::uuid, e ->> 2 from jsonb_array_elements(parts) as e
    ) as d, lateral (select x.* from intervalq.tasks x where x.id = d.id limit 1) as r,
        lateral (values (r.queue), (d.queue)) as w (queue),
        lateral (select intervalq._lock('k', w.queue, r.key)) as l (l)
    where r.session = me and w.queue is not null;
    perform intervalq._lock_lines(locks);
    if tells or cardinality(mine) > 1 then
        perform intervalq._lock_tasks(mine, '{}');
    end if;
    return locks;
end
$$;

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

CREATE FUNCTION intervalq._lock_plain(ids uuid[]) RETURNS SETOF intervalq.tasks
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
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

CREATE FUNCTION intervalq._lock_tasks(named uuid[], depends uuid[]) RETURNS void
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
begin
    perform intervalq._lock_by_id(named, depends, false);
    if exists (
        select from intervalq.tasks x where x.id = any (named || depends)
            and (x.awaits is not null or x.follow_up is not null)
    ) then
        perform intervalq._lock_by_id(named || array(
            select intervalq._id(x.follow_up) from intervalq.tasks x
            where x.id = any (named) and x.follow_up is not null
        ), depends, true);
    end if;
end
$$;

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
    AS $$
declare
    found_lock intervalq.locks;
begin
    select l.* into found_lock from intervalq.locks l where l.name = _locked.name for update;
    return found_lock;
end
$$;

CREATE FUNCTION intervalq._locks_of(inserts jsonb, changes jsonb, named uuid[]) RETURNS bigint[]
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
begin
    return (select coalesce(array_agg(x.l), '{}') from (
        select intervalq._lock('k', e ->> 2, e ->> 4) from jsonb_array_elements(inserts) as e
        where e ->> 4 is not null
        union all
        -- Commands that insert the same ids at the same time wait for each other, in the same order.
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

CREATE FUNCTION intervalq._make_heads(q text, wait boolean) RETURNS void
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
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

CREATE FUNCTION intervalq._mark(q text, k text, task text, ends bigint) RETURNS void
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
begin
    insert into intervalq.marks (queue, key, id, until) values (q, k, task, ends)
    on conflict (queue, key) do update set id = excluded.id, until = excluded.until;
end
$$;

CREATE FUNCTION intervalq._named(command jsonb, named uuid[], locks bigint[], OUT rows_named intervalq.tasks[], OUT known jsonb, OUT plain uuid[]) RETURNS record
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $_$
declare
    depends constant uuid[] := array(select (e ->> 0)::uuid from jsonb_array_elements(command -> 'depends') as e);
    replaced uuid[] := '{}';
    t intervalq.tasks;
begin
    rows_named := '{}';
    known := '{}';
    if locks <> '{}' and jsonb_path_exists(command -> 'inserts', 'strict $[*] ? (@[13] == true)') then
        replaced := array(
            select x.id from jsonb_array_elements(command -> 'inserts') as e,
                lateral (select y.id from intervalq.tasks y where y.queue = e ->> 2 and y.key = e ->> 4 offset 0) as x
            where (e ->> 13)::boolean
        );
    end if;
    if named || depends || replaced <> '{}' then
        perform intervalq._lock_tasks(named || replaced, depends);
    end if;
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
$_$;

CREATE FUNCTION intervalq._next(queues text[], ahead bigint, now bigint) RETURNS SETOF intervalq.line
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
declare
    q text;
    x bigint;
    l intervalq.line;
begin
    l.kind := 'n';
    foreach q in array queues loop
        select min(c.ready) into x from unnest(intervalq._levels(q)) as u (p), lateral (
            select t.ready from intervalq.tasks t
            where t.queue = q and t.priority = u.p and t.ready > now order by t.ready limit 1
        ) as c;
        l.until := least(l.until, x - now, case when ahead > 0 then 1000000 end);
    end loop;
    if l.until is not null then
        return next l;
    end if;
end
$$;

CREATE FUNCTION intervalq._next_idle(q text, OUT who text, OUT session integer, OUT wanted integer, OUT lease bigint) RETURNS record
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
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

CREATE FUNCTION intervalq._note_periods(keep_fors bigint[], now bigint) RETURNS void
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
declare
    k bigint;
    place smallint;
    ends bigint;
begin
    foreach k in array keep_fors loop
        continue when k = 0;
        place := intervalq._slot(k, now + k);
        ends := ((now + k) / intervalq._width(k) + 1) * intervalq._width(k);
        -- There may be several equal rows: nobody waits for another transaction that writes the first one.
        if not exists (select from intervalq.outcome_periods p where p.slot = place and p.over = ends) then
            insert into intervalq.outcome_periods (slot, over) values (place, ends);
        end if;
    end loop;
end
$$;

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
    AS $$
declare
    r intervalq.ranges;
    t intervalq.tasks;
    held boolean;
begin
    select x.* into r from intervalq.ranges x
    where x.queue = p.queue and x.part = p.part and x.low <= p.number order by x.low desc limit 1;
    held := coalesce(r.high >= p.number and intervalq._saw(r.snapshot, inserted), false);
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
    t.cancelled := false;
    t.progress := '';
    t.priority := 0;
    t.error := '';
    t.keep_for := 0;
    t.errors := '';
    return t;
end
$$;

CREATE FUNCTION intervalq._put(t intervalq.tasks) RETURNS intervalq.tasks
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
begin
    t.ready := case when t.waiting then null when t.session is null then t.at else t.until end;
    insert into intervalq.tasks
        (id, ready, at, created, modified, until, dedupe_for, version, claims, attempt, place, session, waiting,
        queue, json, error, own, key, dedupe, begun, alone, cancelled, progress, priority,
        keep_for, errors, per_key, lane, follow_up, awaits)
    values (t.id, t.ready, t.at, t.created, t.modified, t.until, t.dedupe_for, t.version, t.claims, t.attempt,
        t.place, t.session, t.waiting, t.queue, t.json, t.error, t.own, t.key, t.dedupe, t.begun, t.alone,
        t.cancelled, t.progress, t.priority, t.keep_for, t.errors,
        t.per_key, t.lane, t.follow_up, t.awaits)
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

CREATE FUNCTION intervalq._queues(names text[], prefixes text[], holders integer[]) RETURNS SETOF text
    LANGUAGE plpgsql STABLE
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET plan_cache_mode TO 'force_generic_plan'
    SET enable_seqscan TO 'off'
    SET enable_bitmapscan TO 'off'
    SET jit TO 'off'
    AS $$
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
    -- Queues whose tasks are all claimed.
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

CREATE FUNCTION intervalq._read_clock(now bigint, OUT ahead bigint, OUT since bigint) RETURNS record
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
declare
    c intervalq.clock;
    before bigint;
begin
    select x.* into c from intervalq.clock x;
    before := c.last_now;
    -- In a transaction with one snapshot, writing a row that others have written meanwhile would abort it.
    if intervalq._fresh() and now not between before - 1000000 and before + 1000000 then
        update intervalq.clock x set
            last_now = now,
            since = case when now < x.last_now then now else x.since end,
            -- Tasks that waited before an earlier step wait for what is left of both steps.
            behind = case when now > x.last_now then x.behind else
                x.last_now - now + case when x.last_now < x.since + x.behind then x.behind else 0 end
            end
        where x.one = (select y.one from intervalq.clock y where y.last_now = before for update skip locked)
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

CREATE FUNCTION intervalq._refused(command jsonb, rows_named intervalq.tasks[], known jsonb, plain uuid[], collisions text[], me integer, now bigint) RETURNS intervalq.line
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
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

CREATE FUNCTION intervalq._remove(t intervalq.tasks, ended_as text, kept jsonb, me integer, now bigint, feed boolean) RETURNS text[]
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
declare
    woken text[] := '{}';
begin
    delete from intervalq.tasks x where x.id = t.id returning x.waiting into t.waiting;
    if t.keep_for > 0 or kept <> 'null' then
        perform intervalq._leave(t, ended_as, kept, now, me);
    end if;
    if t.follow_up is not null then
        woken := intervalq._less_to_await(array[t.follow_up], now);
    end if;
    if t.dedupe is not null then
        perform intervalq._mark(t.queue, t.dedupe, coalesce(t.own, t.id::text), now + t.dedupe_for);
    end if;
    if feed and t.key is not null and not t.waiting then
        woken := woken || intervalq._feed(t.queue, t.key, now);
    end if;
    return woken;
end
$$;

CREATE FUNCTION intervalq._rest(t intervalq.tasks) RETURNS bigint
    LANGUAGE sql IMMUTABLE
    AS $$
    select ((case when t.attempt <= 1 then 100000 else least((1 << least(t.attempt - 1, 6)) - 1, 60) * 1000000 end)::bigint
        * ('x' || substr(md5(coalesce(t.own, t.id::text)), 1, 4))::bit(16)::integer) >> 16
$$;

CREATE FUNCTION intervalq._rest_head(q text, of smallint, top bigint) RETURNS boolean
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
begin
    perform from intervalq.heads h where h.queue = q and h.part = of and h.head = top for update skip locked;
    if not found or exists (select from intervalq.ranges r where r.queue = q and r.part = of) then
        return false;
    end if;
    if exists (select from intervalq.plain p where p.queue = q) then
        update intervalq.heads h set moved = false where h.queue = q and h.part = of;
        return false;
    end if;
    -- Without heads, a claim begins at the first number. So nobody may have a range, whose tasks still exist, or be
    -- claiming, with a head locked. Nor may anybody be inserting: a session that becomes idle at this moment finds
    -- all heads locked, and would not be woken for a task that was inserted before.
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

CREATE FUNCTION intervalq._room(mine text, most bigint, wanted integer) RETURNS integer
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
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

CREATE FUNCTION intervalq._sampled(now bigint) RETURNS jsonb
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET plan_cache_mode TO 'force_generic_plan'
    SET enable_seqscan TO 'off'
    SET enable_bitmapscan TO 'off'
    SET jit TO 'off'
    AS $$
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

CREATE FUNCTION intervalq._saw(seen pg_snapshot, inserted xid) RETURNS boolean
    LANGUAGE plpgsql STABLE
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
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

CREATE FUNCTION intervalq._settle(parts jsonb, locks bigint[], me integer, now bigint, OUT lost uuid[], OUT woken text[]) RETURNS record
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
declare
    p jsonb;
    t intervalq.tasks;
    after record;
    keeps boolean;
begin
    lost := '{}';
    woken := '{}';
    for p in select e from jsonb_array_elements(parts) as e loop
        select r.* into t from intervalq.tasks r where r.id = (p ->> 0)::uuid and r.session = me for update;
        keeps := coalesce((p ->> 8)::boolean, false);
        if not found or (t.version <> (p ->> 1)::bigint and (keeps or not t.cancelled)) then
            lost := lost || (p ->> 0)::uuid;
        elsif t.key is not null and intervalq._lock('k', t.queue, t.key) <> all (locks) then
            raise exception 'a task was moved at the same moment' using errcode = '40001';
        elsif t.cancelled and not keeps then
            -- It ends the work on a cancelled task, whatever else it says of the task.
            if jsonb_array_length(p) > 4 or t.version <> (p ->> 1)::bigint then
                lost := lost || t.id;
            end if;
            woken := woken || intervalq._remove(
                t, 'cancelled', p -> case when jsonb_array_length(p) > 4 then 12 else 3 end, me, now, true
            );
        elsif jsonb_array_length(p) = 4 then
            woken := woken || intervalq._remove(t, 'done', p -> 3, me, now, true);
        else
            after := intervalq._change(t, p, me, now);
            t := after.t;
            woken := woken || after.woken || case when t.ready <= now + 5000000 then t.queue end;
        end if;
    end loop;
    woken := array_remove(woken, null);
end
$$;

CREATE FUNCTION intervalq._settle_all(ids uuid[], versions integer[], keep_fors bigint[], durations bigint[], results text, parts jsonb, finished jsonb, begun uuid[], me integer, now bigint, OUT lost uuid[], OUT lost_ranges integer[], OUT woken text[]) RETURNS record
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
declare
    done uuid[] := '{}';
    locks bigint[];
    ended text[];
    z record;
begin
    lost := '{}';
    lost_ranges := '{}';
    woken := '{}';
    -- A single task, and several that need no more than a delete, are locked in the right order anyway.
    if me is not null and (
        parts is not null or cardinality(begun) > 0 and cardinality(ids) > 0 or cardinality(ids) > 1 and exists (
            select from intervalq.tasks t where t.id = any (ids)
                and (t.key is not null or t.dedupe is not null or t.cancelled or t.keep_for > 0 and keep_fors is null)
        )
    ) then
        locks := intervalq._lock_claims(ids || begun, parts, me);
    end if;
    if me is not null and keep_fors is not null then
        select x.done, x.ended into done, ended
        from intervalq._done(ids, versions, keep_fors, durations, results, me, now) as x;
    elsif cardinality(ids) > 0 and me is not null then
        -- The index gives, and so the statement locks, these tasks in the order of their ids. `is not distinct`: the
        -- planner must not scan all claims of the session. `is true`: it must not compare each task with each.
        with gone as (
            delete from intervalq.tasks t where t.id = any (ids) and ((t.id, t.version) in (
                select d.id, d.version from unnest(ids, versions) as d (id, version)
            )) is true and t.session is not distinct from me
                and t.key is null and t.dedupe is null and t.keep_for = 0
            returning t.id, t.follow_up
        )
        select coalesce(array_agg(g.id), '{}'), array_agg(g.follow_up) filter (where g.follow_up is not null)
        into done, ended from gone g;
    end if;
    if ended is not null then
        woken := intervalq._less_to_await(ended, now);
    end if;
    if cardinality(ids) > cardinality(done) then
        locks := coalesce(locks, intervalq._lock_claims(ids, null, me));
        z := intervalq._settle((
            select jsonb_agg(jsonb_build_array(d.id, d.version, null, case
                when d.keep_for is not null then jsonb_build_array(d.keep_for, coalesce(d.result, ''), d.took)
            end) order by d.o)
            from unnest(ids, versions, keep_fors, durations, string_to_array(results, chr(31)))
                with ordinality as d (id, version, keep_for, took, result, o)
            where d.id <> all (done)
        ), locks, me, now);
        lost := z.lost;
        woken := woken || z.woken;
    end if;
    if parts is not null then
        z := intervalq._settle(parts, locks, me, now);
        lost := lost || z.lost;
        woken := woken || z.woken;
    end if;
    if finished is not null and me is null then
        lost_ranges := array(select generate_series(0, jsonb_array_length(finished) - 1));
    elsif finished is not null then
        z := intervalq._finish_all(finished, me, now);
        lost_ranges := z.lost_ranges;
        woken := woken || z.woken;
    end if;
end
$$;

CREATE FUNCTION intervalq._width(keep_for bigint) RETURNS bigint
    LANGUAGE sql IMMUTABLE
    RETURN CASE WHEN (keep_for <= '691200000000'::bigint) THEN '86400000000'::bigint WHEN (keep_for <= '5529600000000'::bigint) THEN '691200000000'::bigint ELSE '5529600000000'::bigint END;

CREATE FUNCTION intervalq._slot(keep_for bigint, until bigint) RETURNS smallint
    LANGUAGE sql IMMUTABLE
    RETURN ((CASE WHEN (keep_for <= '691200000000'::bigint) THEN 0 WHEN (keep_for <= '5529600000000'::bigint) THEN 10 ELSE 20 END + ((until / intervalq._width(keep_for)) % (10)::bigint)))::smallint;

CREATE FUNCTION intervalq._spill(q text, of smallint, low bigint, high bigint, tries integer, begun bigint[], why text, now bigint) RETURNS bigint
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

CREATE FUNCTION intervalq._stand_idle(me integer, queues text[], wanted integer, lease bigint) RETURNS void
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
declare
    q text;
begin
    -- Concurrent inserts don't see this session yet, nor are they visible here: wait for them briefly; the caller looks
    -- again.
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

CREATE FUNCTION intervalq._sweep(now bigint) RETURNS void
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
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
        -- Read the head first, then the writers that may be below it: later ones get higher numbers.
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
            exit when removed = 200;  -- each takes a lock, and a server has room for a few thousand
        end if;
    end loop;
end
$$;

CREATE FUNCTION intervalq._take_plain(gone intervalq.tasks[], changed uuid[], now bigint) RETURNS void
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
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

CREATE FUNCTION intervalq._tell(ids uuid[]) RETURNS void
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET enable_seqscan TO 'off'
    SET enable_bitmapscan TO 'off'
    AS $$
declare
    notice text;
begin
    if intervalq._fresh() then
        for notice in
            with notified as (
                delete from intervalq.awaited a where a.ctid = any (array(
                    select x.ctid from intervalq.awaited x where x.id = any (ids) for update skip locked
                )) returning a.who, a.id
            ), numbered as (
                select t.who, t.id, row_number() over (partition by t.who) / 200 as n
                from (select distinct * from notified) as t
            )
            select t.who || ' ' || string_agg(t.id::text, ' ') from numbered t group by t.who, t.n
        loop
            perform pg_notify('intervalq_ended', notice);
        end loop;
    else
        -- It can't see who began to wait meanwhile, and reading that table might abort the user's transaction.
        perform pg_notify('intervalq_ended', '* ' || string_agg(u.id::text, ' '))
        from unnest(ids) with ordinality as u (id, o) group by u.o / 200;
    end if;
end
$$;

CREATE FUNCTION intervalq._tell_cancelled(ids uuid[]) RETURNS void
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
begin
    perform pg_notify('intervalq_tasks', x.who || ' ' || json_agg(json_build_array('x', x.id, x.version)))
    from (
        select s.id as who, coalesce(t.own, t.id::text) as id, t.version, u.o
        from unnest(ids) with ordinality as u (id, o) join intervalq.tasks t on t.id = u.id
        join intervalq.sessions s on s.number = t.session
    ) as x group by x.who, x.o / 8;
end
$$;

CREATE FUNCTION intervalq._try_follow_up(follow_up text) RETURNS boolean
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
declare
    n constant uuid := intervalq._id(follow_up);
begin
    perform from intervalq.tasks x where x.id = n for update skip locked;
    return found or not exists (select from intervalq.tasks x where x.id = n);
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

CREATE FUNCTION intervalq._with_attempt(t intervalq.tasks, p jsonb, keeps boolean, now bigint) RETURNS intervalq.tasks
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
declare
    number constant integer := coalesce((p ->> 6)::integer, t.attempt);
begin
    if t.keep_for = 0 then
        t.errors := intervalq._errors_of(t.errors, 0, t.error, t.attempt, t.begun);
        t.keep_for := p -> 12 ->> 0;
    end if;
    -- Of attempts that killed their workers, the errors are there already.
    if t.keep_for > 0 and p ->> 7 <> '' and not keeps and t.session is not null
        and number > t.attempt - t.begun::integer
    then
        t.errors := intervalq._with_error(t.errors, p ->> 7, number, now);
    end if;
    return t;
end
$$;

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
    AS $$
declare
    l intervalq.locks := intervalq._locked(name);
begin
    if l.name is null and not refresh then
        -- Two transactions may want a new lock at once: the second one waits here until the first one has it.
        insert into intervalq.locks as x (name, owner, fence, until, expiry)
        values (acquire_lock.name, '', 0, 0, 0) on conflict do nothing;
        l := intervalq._locked(name);
    end if;
    -- The clock is read only now: until this moment, another transaction may have held the row, and read a later time.
    now := intervalq._now(now);
    fence := 0;
    wait := 0;
    if l.until - now > l.expiry then  -- the clock was set back
        l.until := now + l.expiry;
        update intervalq.locks x set until = l.until where x.name = l.name;
    end if;
    if l.owner = acquire_lock.owner and (refresh or l.until > now) then
        fence := l.fence;
    elsif refresh then
        return;
    elsif l.owner <> '' and l.until > now then
        wait := l.until - now;
        return;
    else
        fence := greatest(now, l.fence + 1);
        delete from intervalq.locks x where x.name in (
            select y.name from intervalq.locks y where y.until <= acquire_lock.now - 86400000000 and y.name <> l.name
            limit 16 for update skip locked
        );
    end if;
    update intervalq.locks x set
        owner = acquire_lock.owner, fence = acquire_lock.fence, until = acquire_lock.now + acquire_lock.expiry,
        expiry = acquire_lock.expiry
    where x.name = l.name;
end
$$;

CREATE FUNCTION intervalq.await_outcomes(who text, ids uuid[], now bigint) RETURNS void
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
begin
    now := intervalq._now(now);
    delete from intervalq.awaited a where a.ctid = any (array(
        select x.ctid from intervalq.awaited x where x.until < now order by x.until limit 1000 for update skip locked
    ));
    insert into intervalq.awaited (id, until, who) select u.u, now + 86400000000, who from unnest(ids) as u (u);
end
$$;

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
    -- A removal of this session either came before, or waits for what we have just written, and then sees it.
    select x.number into me from intervalq.sessions x where x.id = who and x.gone is null;

    perform intervalq.feed(now);  -- first, because it waits for locks: all that follows leaves what others have locked
    lapsed := intervalq._forget_lapsed(who, now);
    if is_read and me is not null then
        watched := intervalq.guarded(me, now);
    end if;

    perform intervalq._free_gone(now);
    if me = (select min(x.number) from intervalq.sessions x where x.gone is null) then
        perform intervalq._free_orphans(now);  -- one session looks, because an index may have many dead entries
    end if;
    delete from intervalq.marks m where (m.queue, m.key) in (
        select y.queue, y.key from intervalq.marks y where y.until <= now order by y.until limit 1000
        for update skip locked
    ) and m.until <= now;
    perform intervalq._sweep(now);
    if exists (select from intervalq.outcome_periods p where p.over <= now) then
        perform intervalq.drop_outcomes(now);
    end if;

    select (select count(*) from intervalq.tasks t where t.session = me)
        + (select coalesce(sum(r.size), 0) from intervalq.ranges r where r.session = me) into held;
    return jsonb_build_array(me is not null, held, lapsed, watched, (
        select coalesce(jsonb_agg(jsonb_build_array(coalesce(t.own, t.id::text), t.version) order by t.id), '[]')
        from intervalq.tasks t where t.session = me and t.cancelled
    ));
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

CREATE FUNCTION intervalq.cancel(ids uuid[], now bigint) RETURNS jsonb
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
    locks constant bigint[] := intervalq._locks_of('[]', '[]', ids);
    there record;
    held uuid[];
    t intervalq.tasks;
    removed uuid[] := '{}';
    stopping uuid[] := '{}';
    woken text[] := '{}';
begin
    perform intervalq._lock_lines(locks);
    there := intervalq._named('{"depends": [], "inserts": []}', ids, locks);
    now := intervalq._now(now);
    held := array(
        select x.id from unnest(there.rows_named) as x join intervalq.sessions s on s.number = x.session
        where x.until is null and s.gone is null
    );
    if there.plain <> '{}' then
        -- Those that are claimed become ordinary tasks, which can be cancelled. Sessions may have found nothing because
        -- of our locks.
        perform intervalq._take_plain(array(
            select x from unnest(there.rows_named) as x where x.id = any (there.plain)
        ), held, now);
        woken := array(select distinct x.queue from unnest(there.rows_named) as x where x.id = any (there.plain));
    end if;
    foreach t in array there.rows_named loop
        if t.id = any (held) then
            stopping := stopping || t.id;
            update intervalq.tasks x set version = x.version + 1, modified = now, cancelled = true
            where x.id = t.id and not x.cancelled;
        else
            removed := removed || t.id;
            if t.id <> all (there.plain) then
                woken := woken || intervalq._remove(t, 'cancelled', null, null, now, true);
            end if;
        end if;
    end loop;
    perform intervalq._tell_cancelled(stopping);
    woken := array_remove(woken, null);
    if woken <> '{}' then
        perform intervalq._wake(woken);
    end if;
    return jsonb_build_array(removed, stopping);
end
$$;

CREATE FUNCTION intervalq.drop_outcomes(now bigint) RETURNS void
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
declare
    place smallint;
    width bigint;
begin
    if not intervalq._fresh() then
        return;  -- it would not see what others have just written
    end if;
    for place in select distinct p.slot from intervalq.outcome_periods p where p.over <= now order by 1 loop
        begin
            execute format('lock table intervalq.outcomes_%s in access exclusive mode nowait', place);
        exception when lock_not_available then
            continue;
        end;
        if exists (select from intervalq.outcome_periods p where p.slot = place and p.over > now) then
            -- Nobody dropped it in time, or the clock was set: later outcomes are there already.
            width := 86400000000 * 8 ^ (place / 10);
            delete from intervalq.outcomes o where o.slot = place and o.until < now / width * width;
        else
            execute format('truncate intervalq.outcomes_%s', place);
        end if;
        delete from intervalq.outcome_periods p where p.slot = place and p.over <= now;
    end loop;
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

CREATE FUNCTION intervalq.enqueue(queue text, value jsonb, id text DEFAULT NULL::text, key text DEFAULT NULL::text, at timestamp with time zone DEFAULT NULL::timestamp with time zone, dedupe_key text DEFAULT NULL::text, dedupe_for interval DEFAULT '00:05:00'::interval, delay interval DEFAULT '00:00:00'::interval, inbox integer DEFAULT NULL::integer, replace boolean DEFAULT false, priority integer DEFAULT 0, keep interval DEFAULT NULL::interval, concurrency_per_key integer DEFAULT 1) RETURNS text
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
declare
    uuid constant uuid := case when enqueue.id is null then intervalq._uuid() else intervalq._id(enqueue.id) end;
    l intervalq.line;
begin
    if queue is null or queue = '' or value is null then
        raise exception 'a task has a queue and a value: give both' using errcode = '22004';
    elsif priority is null or priority not between -9 and 9 then
        raise exception 'the priority of a task is from -9 to 9, and % is not: give another one', priority
            using errcode = '22023';
    elsif keep not between '1 second' and '400 days' then
        raise exception 'an outcome is kept for one second to 400 days, and % is not: give another time', keep
            using errcode = '22023';
    elsif concurrency_per_key is null or concurrency_per_key not between 1 and 1000 then
        raise exception 'from 1 to 1000 tasks of a key may run at the same time, and % is not: give another number',
            concurrency_per_key using errcode = '22023';
    elsif concurrency_per_key > 1 and (key is null or replace) then
        raise exception 'concurrency_per_key needs a key, and can''t be combined with replace' using errcode = '22023';
    elsif starts_with(id, 'plain-') then
        raise exception 'ids that begin with plain- are those of plain tasks: give another one' using errcode = 'IQ010';
    end if;
    for l in
        select m.* from intervalq.modify('', null, jsonb_build_object(
            'force', false, 'changes', '[]'::jsonb, 'deletes', '[]'::jsonb, 'depends', '[]'::jsonb,
            'inserts', jsonb_build_array(jsonb_build_array(
                uuid, case when uuid::text <> enqueue.id then enqueue.id end, queue, value::text, key,
                (extract(epoch from at) * 1000000)::bigint, (extract(epoch from delay) * 1000000)::bigint, 0, '',
                false, dedupe_key,
                case when dedupe_key is null then 0 else (extract(epoch from dedupe_for) * 1000000)::bigint end,
                inbox, replace, enqueue.priority, coalesce((extract(epoch from keep) * 1000000)::bigint, 0),
                nullif(concurrency_per_key, 1), null, null
            ))
        )) as m
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
    queues text[];
    keys text[];
    u record;
begin
    now := intervalq._now(now);
    with fed as (
        delete from intervalq.unfed x where x.ctid = any (array(
            select y.ctid from intervalq.unfed y order by y.queue, y.key limit 1000 for update skip locked
        )) returning x.queue, x.key
    )
    select array_agg(f.queue), array_agg(f.key) into queues, keys from fed f;
    perform intervalq._lock_lines(array(select intervalq._lock('k', n.q, n.k) from unnest(queues, keys) as n (q, k)));
    for u in select distinct n.q as queue, n.k as key from unnest(queues, keys) as n (q, k) order by 1, 2 loop
        perform intervalq._close_ranks(u.queue, u.key);
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

CREATE FUNCTION intervalq.leave_outcomes(who text, ids uuid[]) RETURNS void
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET enable_seqscan TO 'off'
    SET enable_bitmapscan TO 'off'
    AS $$
begin
    delete from intervalq.awaited a where a.ctid = any (array(
        select x.ctid from intervalq.awaited x where x.id = any (ids) and x.who = leave_outcomes.who
        for update skip locked
    ));
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

CREATE FUNCTION intervalq.modify(who text, now bigint, command jsonb) RETURNS SETOF intervalq.line
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
    inserts constant jsonb := command -> 'inserts';
    changes constant jsonb := command -> 'changes';
    named constant uuid[] := array(
        select (e ->> 0)::uuid from jsonb_array_elements(changes || (command -> 'deletes')) as e
    );
    locks constant bigint[] := intervalq._locks_of(inserts, changes, named || array(
        select (e ->> 0)::uuid from jsonb_array_elements(command -> 'depends') as e
    ));
    me integer;
    there record;
    others record;
    done record;
    l intervalq.line;
    t intervalq.tasks;
begin
    select s.number into me from intervalq.sessions s
    where s.id = who and s.gone is null;
    perform intervalq._lock_lines(locks);
    there := intervalq._named(command, named, locks);
    -- Only `work` and `beat` note the clock: this may run in a user's transaction, which would keep others waiting.
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
        command, there.rows_named, there.known, there.plain, named, others.left_out, me, now
    );
    foreach l in array others.lines || done.lines loop
        if locks <> '{}' and l.kind <> 'e' and l.key is not null then
            -- A later part of the command may have changed the task again: the last of a line may be the first now.
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
$_$;

CREATE FUNCTION intervalq.outcomes_of(ids uuid[], q text, ended_as text, most bigint, now bigint) RETURNS TABLE(id text, queue text, key text, state text, value text, result text, attempts integer, errors text, created bigint, started bigint, ended bigint, host text, pid bigint, until bigint)
    LANGUAGE plpgsql STABLE
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET plan_cache_mode TO 'force_custom_plan'
    SET enable_seqscan TO 'off'
    SET enable_bitmapscan TO 'off'
    AS $$
declare
    slots constant smallint[] := array(select distinct p.slot from intervalq.outcome_periods p);
    n integer;
begin
    now := intervalq._now(now);
    if ids is not null then
        return query
            select coalesce(o.own, o.id::text), o.queue, o.key, o.state, o.json, o.result, o.attempts, o.errors,
                o.created, o.started, o.ended, o.host, o.pid, o.until
            from intervalq.outcomes o
            where o.slot = any (slots) and o.id = any (ids) and o.until > now
                and (q is null or o.queue = q) and (ended_as is null or o.state = ended_as)
            order by o.number, o.ended, o.slot, o.ctid limit most;
        return;
    elsif most is null then
        return query
            select coalesce(o.own, o.id::text), o.queue, o.key, o.state, o.json, o.result, o.attempts, o.errors,
                o.created, o.started, o.ended, o.host, o.pid, o.until
            from intervalq.outcomes o
            where o.slot = any (slots) and o.until > now
                and (q is null or o.queue = q) and (ended_as is null or o.state = ended_as)
            order by o.number desc, o.ended desc, o.slot desc, o.ctid desc;
        return;
    end if;
    -- What one statement wrote ended in one state.
    return query
        select coalesce(o.own, o.id::text), o.queue, o.key, o.state, o.json, o.result, o.attempts, o.errors,
            o.created, o.started, o.ended, o.host, o.pid, o.until
        from intervalq.outcomes f cross join lateral (
            select r.*, r.ctid as place from intervalq.outcomes r
            where r.slot = f.slot and r.id = any (f.together) and r.number = f.number and r.until > now
                and (q is null or r.queue = q)
            order by r.ctid desc limit most
        ) as o
        where f.slot = any (slots) and f.together is not null
            and (q is null or f.queue = q or f.queues @> array[q]) and (ended_as is null or f.state = ended_as)
        order by f.number desc, f.slot desc, o.place desc limit most;
    get diagnostics n = row_count;
    return query  -- of older versions
        select coalesce(o.own, o.id::text), o.queue, o.key, o.state, o.json, o.result, o.attempts, o.errors,
            o.created, o.started, o.ended, o.host, o.pid, o.until
        from intervalq.outcomes o
        where o.slot = any (slots) and o.number = 0 and o.until > now
            and (q is null or o.queue = q) and (ended_as is null or o.state = ended_as)
        order by o.ended desc, o.slot desc, o.ctid desc limit most - n;
end
$$;

CREATE FUNCTION intervalq.put(q text, jsons text) RETURNS void
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET lock_timeout TO '4s'
    AS $$
declare
    items text[] := string_to_array(jsons, chr(31));
    n integer;
    first constant integer := floor(random() * 16);
    block bigint;
    p integer;
begin
    -- This comes first: a session that looks for writers of numbers below some head must see this transaction before
    -- it draws its first number.
    perform pg_advisory_xact_lock_shared(intervalq._queue_lock(q));
    -- Tasks that are handed to an idle session at once are ordinary ones: nobody looks for them below a head.
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

CREATE FUNCTION intervalq.release_lock(name text, owner text, waiters text, now bigint) RETURNS boolean
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET lock_timeout TO '4s'
    AS $$
begin
    update intervalq.locks x set owner = '', until = intervalq._now(release_lock.now), expiry = 0
    where x.name = release_lock.name and x.owner = release_lock.owner;
    if found then
        perform pg_notify('intervalq_tasks', waiters);
    end if;
    return found;
end
$$;

CREATE FUNCTION intervalq.stats(names text[], prefixes text[], most bigint, now bigint) RETURNS TABLE(name text, size bigint, claimed bigint, ready bigint, future bigint, inbox bigint, most_claims integer, exact boolean)
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
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
    returned bigint := 0;
begin
    now := intervalq._now(now);
    for i in 1 .. cardinality(queues) by at_once loop
        for c in
            select x.* from intervalq._counts(
                queues[i : i + at_once - 1], array_fill(few, array[5]), holders, now
            ) as x
        loop
            exit when returned >= most;
            exact := few >= all (c.seen);
            if not exact then
                about := coalesce(about, intervalq._sampled(now));
                guess := array(select coalesce((about -> c.queue ->> n)::bigint, 0) from generate_series(0, 4) as n);
                -- Counting up to the bound takes longer than all the rest: skip it where there surely are more.
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
                returned := returned + 1;
                return next;
            end if;
        end loop;
    end loop;
end
$$;

CREATE FUNCTION intervalq.tasks_of(q text, ids uuid[], who text, with_values boolean, most bigint) RETURNS SETOF intervalq.line
    LANGUAGE plpgsql STABLE
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET plan_cache_mode TO 'force_custom_plan'
    AS $_$
declare
    n bigint;
begin
    if ids is not null then
        return query
            select 't', coalesce(t.own, t.id::text), t.version, t.queue, t.at,
                case when with_values then t.json else 'null' end, t.key, t.place, t.waiting, s.id, t.until,
                t.claims, t.attempt, t.error, t.created, t.modified, t.dedupe, t.dedupe_for, t.begun, t.alone,
                t.cancelled, t.progress, t.priority, t.keep_for, t.errors, coalesce(t.per_key, 1),
                coalesce(t.follow_up, ''), coalesce(t.awaits, 0)
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
                t.claims, t.attempt, t.error, t.created, t.modified, t.dedupe, t.dedupe_for, t.begun, t.alone,
                t.cancelled, t.progress, t.priority, t.keep_for, t.errors, coalesce(t.per_key, 1),
                coalesce(t.follow_up, ''''), coalesce(t.awaits, 0)
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

CREATE FUNCTION intervalq.work(who text, ids uuid[], versions integer[], keep_fors bigint[], durations bigint[], results text, parts jsonb, finished jsonb, queues text[], wanted integer, lease bigint, most bigint, idle boolean, begins integer, begun uuid[], sinces bigint[], since_ids uuid[], now bigint) RETURNS SETOF intervalq.line
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
    ahead bigint := 0;           -- see `_read_clock`
    since bigint;
    is_read constant boolean := now is null;
    settled record;
    l intervalq.line;
begin
    select s.number, s.consumer into me, mine from intervalq.sessions s where s.id = who and s.gone is null;
    now := intervalq._now(now);
    -- A call would cost more than this look, which usually shows that there is nothing to do.
    if is_read and not exists (
        select from intervalq.clock c
        where now between c.last_now - 1000000 and c.last_now + 1000000 and now >= c.since + c.behind
    ) then
        select c.ahead, c.since into ahead, since from intervalq._read_clock(now) as c;
    end if;

    l.kind := 'h';
    l.created := now;
    l.claims := case when me is null then 0 end;
    if ids is not null or parts is not null or finished is not null then
        settled := intervalq._settle_all(ids, versions, keep_fors, durations, results, parts, finished, begun, me, now);
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
            -- Ready again at once, but not for this same claim.
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

CREATE TABLE intervalq.outcomes_0 (
    created bigint CONSTRAINT outcomes_created_not_null NOT NULL,
    started bigint CONSTRAINT outcomes_started_not_null NOT NULL,
    ended bigint CONSTRAINT outcomes_ended_not_null NOT NULL,
    until bigint CONSTRAINT outcomes_until_not_null NOT NULL,
    pid bigint CONSTRAINT outcomes_pid_not_null NOT NULL,
    id uuid CONSTRAINT outcomes_id_not_null NOT NULL,
    attempts integer CONSTRAINT outcomes_attempts_not_null NOT NULL,
    slot smallint CONSTRAINT outcomes_slot_not_null NOT NULL,
    own text COLLATE pg_catalog."C",
    queue text CONSTRAINT outcomes_queue_not_null NOT NULL COLLATE pg_catalog."C",
    key text COLLATE pg_catalog."C",
    state text CONSTRAINT outcomes_state_not_null NOT NULL,
    host text CONSTRAINT outcomes_host_not_null NOT NULL,
    "json" text CONSTRAINT outcomes_json_not_null NOT NULL,
    result text CONSTRAINT outcomes_result_not_null NOT NULL,
    errors text CONSTRAINT outcomes_errors_not_null NOT NULL,
    number bigint DEFAULT 0 CONSTRAINT outcomes_number_not_null NOT NULL,
    together uuid[],
    queues text[] COLLATE pg_catalog."C"
)
WITH (autovacuum_enabled=off);

CREATE TABLE intervalq.outcomes_1 (
    created bigint CONSTRAINT outcomes_created_not_null NOT NULL,
    started bigint CONSTRAINT outcomes_started_not_null NOT NULL,
    ended bigint CONSTRAINT outcomes_ended_not_null NOT NULL,
    until bigint CONSTRAINT outcomes_until_not_null NOT NULL,
    pid bigint CONSTRAINT outcomes_pid_not_null NOT NULL,
    id uuid CONSTRAINT outcomes_id_not_null NOT NULL,
    attempts integer CONSTRAINT outcomes_attempts_not_null NOT NULL,
    slot smallint CONSTRAINT outcomes_slot_not_null NOT NULL,
    own text COLLATE pg_catalog."C",
    queue text CONSTRAINT outcomes_queue_not_null NOT NULL COLLATE pg_catalog."C",
    key text COLLATE pg_catalog."C",
    state text CONSTRAINT outcomes_state_not_null NOT NULL,
    host text CONSTRAINT outcomes_host_not_null NOT NULL,
    "json" text CONSTRAINT outcomes_json_not_null NOT NULL,
    result text CONSTRAINT outcomes_result_not_null NOT NULL,
    errors text CONSTRAINT outcomes_errors_not_null NOT NULL,
    number bigint DEFAULT 0 CONSTRAINT outcomes_number_not_null NOT NULL,
    together uuid[],
    queues text[] COLLATE pg_catalog."C"
)
WITH (autovacuum_enabled=off);

CREATE TABLE intervalq.outcomes_10 (
    created bigint CONSTRAINT outcomes_created_not_null NOT NULL,
    started bigint CONSTRAINT outcomes_started_not_null NOT NULL,
    ended bigint CONSTRAINT outcomes_ended_not_null NOT NULL,
    until bigint CONSTRAINT outcomes_until_not_null NOT NULL,
    pid bigint CONSTRAINT outcomes_pid_not_null NOT NULL,
    id uuid CONSTRAINT outcomes_id_not_null NOT NULL,
    attempts integer CONSTRAINT outcomes_attempts_not_null NOT NULL,
    slot smallint CONSTRAINT outcomes_slot_not_null NOT NULL,
    own text COLLATE pg_catalog."C",
    queue text CONSTRAINT outcomes_queue_not_null NOT NULL COLLATE pg_catalog."C",
    key text COLLATE pg_catalog."C",
    state text CONSTRAINT outcomes_state_not_null NOT NULL,
    host text CONSTRAINT outcomes_host_not_null NOT NULL,
    "json" text CONSTRAINT outcomes_json_not_null NOT NULL,
    result text CONSTRAINT outcomes_result_not_null NOT NULL,
    errors text CONSTRAINT outcomes_errors_not_null NOT NULL,
    number bigint DEFAULT 0 CONSTRAINT outcomes_number_not_null NOT NULL,
    together uuid[],
    queues text[] COLLATE pg_catalog."C"
)
WITH (autovacuum_enabled=off);

CREATE TABLE intervalq.outcomes_11 (
    created bigint CONSTRAINT outcomes_created_not_null NOT NULL,
    started bigint CONSTRAINT outcomes_started_not_null NOT NULL,
    ended bigint CONSTRAINT outcomes_ended_not_null NOT NULL,
    until bigint CONSTRAINT outcomes_until_not_null NOT NULL,
    pid bigint CONSTRAINT outcomes_pid_not_null NOT NULL,
    id uuid CONSTRAINT outcomes_id_not_null NOT NULL,
    attempts integer CONSTRAINT outcomes_attempts_not_null NOT NULL,
    slot smallint CONSTRAINT outcomes_slot_not_null NOT NULL,
    own text COLLATE pg_catalog."C",
    queue text CONSTRAINT outcomes_queue_not_null NOT NULL COLLATE pg_catalog."C",
    key text COLLATE pg_catalog."C",
    state text CONSTRAINT outcomes_state_not_null NOT NULL,
    host text CONSTRAINT outcomes_host_not_null NOT NULL,
    "json" text CONSTRAINT outcomes_json_not_null NOT NULL,
    result text CONSTRAINT outcomes_result_not_null NOT NULL,
    errors text CONSTRAINT outcomes_errors_not_null NOT NULL,
    number bigint DEFAULT 0 CONSTRAINT outcomes_number_not_null NOT NULL,
    together uuid[],
    queues text[] COLLATE pg_catalog."C"
)
WITH (autovacuum_enabled=off);

CREATE TABLE intervalq.outcomes_12 (
    created bigint CONSTRAINT outcomes_created_not_null NOT NULL,
    started bigint CONSTRAINT outcomes_started_not_null NOT NULL,
    ended bigint CONSTRAINT outcomes_ended_not_null NOT NULL,
    until bigint CONSTRAINT outcomes_until_not_null NOT NULL,
    pid bigint CONSTRAINT outcomes_pid_not_null NOT NULL,
    id uuid CONSTRAINT outcomes_id_not_null NOT NULL,
    attempts integer CONSTRAINT outcomes_attempts_not_null NOT NULL,
    slot smallint CONSTRAINT outcomes_slot_not_null NOT NULL,
    own text COLLATE pg_catalog."C",
    queue text CONSTRAINT outcomes_queue_not_null NOT NULL COLLATE pg_catalog."C",
    key text COLLATE pg_catalog."C",
    state text CONSTRAINT outcomes_state_not_null NOT NULL,
    host text CONSTRAINT outcomes_host_not_null NOT NULL,
    "json" text CONSTRAINT outcomes_json_not_null NOT NULL,
    result text CONSTRAINT outcomes_result_not_null NOT NULL,
    errors text CONSTRAINT outcomes_errors_not_null NOT NULL,
    number bigint DEFAULT 0 CONSTRAINT outcomes_number_not_null NOT NULL,
    together uuid[],
    queues text[] COLLATE pg_catalog."C"
)
WITH (autovacuum_enabled=off);

CREATE TABLE intervalq.outcomes_13 (
    created bigint CONSTRAINT outcomes_created_not_null NOT NULL,
    started bigint CONSTRAINT outcomes_started_not_null NOT NULL,
    ended bigint CONSTRAINT outcomes_ended_not_null NOT NULL,
    until bigint CONSTRAINT outcomes_until_not_null NOT NULL,
    pid bigint CONSTRAINT outcomes_pid_not_null NOT NULL,
    id uuid CONSTRAINT outcomes_id_not_null NOT NULL,
    attempts integer CONSTRAINT outcomes_attempts_not_null NOT NULL,
    slot smallint CONSTRAINT outcomes_slot_not_null NOT NULL,
    own text COLLATE pg_catalog."C",
    queue text CONSTRAINT outcomes_queue_not_null NOT NULL COLLATE pg_catalog."C",
    key text COLLATE pg_catalog."C",
    state text CONSTRAINT outcomes_state_not_null NOT NULL,
    host text CONSTRAINT outcomes_host_not_null NOT NULL,
    "json" text CONSTRAINT outcomes_json_not_null NOT NULL,
    result text CONSTRAINT outcomes_result_not_null NOT NULL,
    errors text CONSTRAINT outcomes_errors_not_null NOT NULL,
    number bigint DEFAULT 0 CONSTRAINT outcomes_number_not_null NOT NULL,
    together uuid[],
    queues text[] COLLATE pg_catalog."C"
)
WITH (autovacuum_enabled=off);

CREATE TABLE intervalq.outcomes_14 (
    created bigint CONSTRAINT outcomes_created_not_null NOT NULL,
    started bigint CONSTRAINT outcomes_started_not_null NOT NULL,
    ended bigint CONSTRAINT outcomes_ended_not_null NOT NULL,
    until bigint CONSTRAINT outcomes_until_not_null NOT NULL,
    pid bigint CONSTRAINT outcomes_pid_not_null NOT NULL,
    id uuid CONSTRAINT outcomes_id_not_null NOT NULL,
    attempts integer CONSTRAINT outcomes_attempts_not_null NOT NULL,
    slot smallint CONSTRAINT outcomes_slot_not_null NOT NULL,
    own text COLLATE pg_catalog."C",
    queue text CONSTRAINT outcomes_queue_not_null NOT NULL COLLATE pg_catalog."C",
    key text COLLATE pg_catalog."C",
    state text CONSTRAINT outcomes_state_not_null NOT NULL,
    host text CONSTRAINT outcomes_host_not_null NOT NULL,
    "json" text CONSTRAINT outcomes_json_not_null NOT NULL,
    result text CONSTRAINT outcomes_result_not_null NOT NULL,
    errors text CONSTRAINT outcomes_errors_not_null NOT NULL,
    number bigint DEFAULT 0 CONSTRAINT outcomes_number_not_null NOT NULL,
    together uuid[],
    queues text[] COLLATE pg_catalog."C"
)
WITH (autovacuum_enabled=off);

CREATE TABLE intervalq.outcomes_15 (
    created bigint CONSTRAINT outcomes_created_not_null NOT NULL,
    started bigint CONSTRAINT outcomes_started_not_null NOT NULL,
    ended bigint CONSTRAINT outcomes_ended_not_null NOT NULL,
    until bigint CONSTRAINT outcomes_until_not_null NOT NULL,
    pid bigint CONSTRAINT outcomes_pid_not_null NOT NULL,
    id uuid CONSTRAINT outcomes_id_not_null NOT NULL,
    attempts integer CONSTRAINT outcomes_attempts_not_null NOT NULL,
    slot smallint CONSTRAINT outcomes_slot_not_null NOT NULL,
    own text COLLATE pg_catalog."C",
    queue text CONSTRAINT outcomes_queue_not_null NOT NULL COLLATE pg_catalog."C",
    key text COLLATE pg_catalog."C",
    state text CONSTRAINT outcomes_state_not_null NOT NULL,
    host text CONSTRAINT outcomes_host_not_null NOT NULL,
    "json" text CONSTRAINT outcomes_json_not_null NOT NULL,
    result text CONSTRAINT outcomes_result_not_null NOT NULL,
    errors text CONSTRAINT outcomes_errors_not_null NOT NULL,
    number bigint DEFAULT 0 CONSTRAINT outcomes_number_not_null NOT NULL,
    together uuid[],
    queues text[] COLLATE pg_catalog."C"
)
WITH (autovacuum_enabled=off);

CREATE TABLE intervalq.outcomes_16 (
    created bigint CONSTRAINT outcomes_created_not_null NOT NULL,
    started bigint CONSTRAINT outcomes_started_not_null NOT NULL,
    ended bigint CONSTRAINT outcomes_ended_not_null NOT NULL,
    until bigint CONSTRAINT outcomes_until_not_null NOT NULL,
    pid bigint CONSTRAINT outcomes_pid_not_null NOT NULL,
    id uuid CONSTRAINT outcomes_id_not_null NOT NULL,
    attempts integer CONSTRAINT outcomes_attempts_not_null NOT NULL,
    slot smallint CONSTRAINT outcomes_slot_not_null NOT NULL,
    own text COLLATE pg_catalog."C",
    queue text CONSTRAINT outcomes_queue_not_null NOT NULL COLLATE pg_catalog."C",
    key text COLLATE pg_catalog."C",
    state text CONSTRAINT outcomes_state_not_null NOT NULL,
    host text CONSTRAINT outcomes_host_not_null NOT NULL,
    "json" text CONSTRAINT outcomes_json_not_null NOT NULL,
    result text CONSTRAINT outcomes_result_not_null NOT NULL,
    errors text CONSTRAINT outcomes_errors_not_null NOT NULL,
    number bigint DEFAULT 0 CONSTRAINT outcomes_number_not_null NOT NULL,
    together uuid[],
    queues text[] COLLATE pg_catalog."C"
)
WITH (autovacuum_enabled=off);

CREATE TABLE intervalq.outcomes_17 (
    created bigint CONSTRAINT outcomes_created_not_null NOT NULL,
    started bigint CONSTRAINT outcomes_started_not_null NOT NULL,
    ended bigint CONSTRAINT outcomes_ended_not_null NOT NULL,
    until bigint CONSTRAINT outcomes_until_not_null NOT NULL,
    pid bigint CONSTRAINT outcomes_pid_not_null NOT NULL,
    id uuid CONSTRAINT outcomes_id_not_null NOT NULL,
    attempts integer CONSTRAINT outcomes_attempts_not_null NOT NULL,
    slot smallint CONSTRAINT outcomes_slot_not_null NOT NULL,
    own text COLLATE pg_catalog."C",
    queue text CONSTRAINT outcomes_queue_not_null NOT NULL COLLATE pg_catalog."C",
    key text COLLATE pg_catalog."C",
    state text CONSTRAINT outcomes_state_not_null NOT NULL,
    host text CONSTRAINT outcomes_host_not_null NOT NULL,
    "json" text CONSTRAINT outcomes_json_not_null NOT NULL,
    result text CONSTRAINT outcomes_result_not_null NOT NULL,
    errors text CONSTRAINT outcomes_errors_not_null NOT NULL,
    number bigint DEFAULT 0 CONSTRAINT outcomes_number_not_null NOT NULL,
    together uuid[],
    queues text[] COLLATE pg_catalog."C"
)
WITH (autovacuum_enabled=off);

CREATE TABLE intervalq.outcomes_18 (
    created bigint CONSTRAINT outcomes_created_not_null NOT NULL,
    started bigint CONSTRAINT outcomes_started_not_null NOT NULL,
    ended bigint CONSTRAINT outcomes_ended_not_null NOT NULL,
    until bigint CONSTRAINT outcomes_until_not_null NOT NULL,
    pid bigint CONSTRAINT outcomes_pid_not_null NOT NULL,
    id uuid CONSTRAINT outcomes_id_not_null NOT NULL,
    attempts integer CONSTRAINT outcomes_attempts_not_null NOT NULL,
    slot smallint CONSTRAINT outcomes_slot_not_null NOT NULL,
    own text COLLATE pg_catalog."C",
    queue text CONSTRAINT outcomes_queue_not_null NOT NULL COLLATE pg_catalog."C",
    key text COLLATE pg_catalog."C",
    state text CONSTRAINT outcomes_state_not_null NOT NULL,
    host text CONSTRAINT outcomes_host_not_null NOT NULL,
    "json" text CONSTRAINT outcomes_json_not_null NOT NULL,
    result text CONSTRAINT outcomes_result_not_null NOT NULL,
    errors text CONSTRAINT outcomes_errors_not_null NOT NULL,
    number bigint DEFAULT 0 CONSTRAINT outcomes_number_not_null NOT NULL,
    together uuid[],
    queues text[] COLLATE pg_catalog."C"
)
WITH (autovacuum_enabled=off);

CREATE TABLE intervalq.outcomes_19 (
    created bigint CONSTRAINT outcomes_created_not_null NOT NULL,
    started bigint CONSTRAINT outcomes_started_not_null NOT NULL,
    ended bigint CONSTRAINT outcomes_ended_not_null NOT NULL,
    until bigint CONSTRAINT outcomes_until_not_null NOT NULL,
    pid bigint CONSTRAINT outcomes_pid_not_null NOT NULL,
    id uuid CONSTRAINT outcomes_id_not_null NOT NULL,
    attempts integer CONSTRAINT outcomes_attempts_not_null NOT NULL,
    slot smallint CONSTRAINT outcomes_slot_not_null NOT NULL,
    own text COLLATE pg_catalog."C",
    queue text CONSTRAINT outcomes_queue_not_null NOT NULL COLLATE pg_catalog."C",
    key text COLLATE pg_catalog."C",
    state text CONSTRAINT outcomes_state_not_null NOT NULL,
    host text CONSTRAINT outcomes_host_not_null NOT NULL,
    "json" text CONSTRAINT outcomes_json_not_null NOT NULL,
    result text CONSTRAINT outcomes_result_not_null NOT NULL,
    errors text CONSTRAINT outcomes_errors_not_null NOT NULL,
    number bigint DEFAULT 0 CONSTRAINT outcomes_number_not_null NOT NULL,
    together uuid[],
    queues text[] COLLATE pg_catalog."C"
)
WITH (autovacuum_enabled=off);

CREATE TABLE intervalq.outcomes_2 (
    created bigint CONSTRAINT outcomes_created_not_null NOT NULL,
    started bigint CONSTRAINT outcomes_started_not_null NOT NULL,
    ended bigint CONSTRAINT outcomes_ended_not_null NOT NULL,
    until bigint CONSTRAINT outcomes_until_not_null NOT NULL,
    pid bigint CONSTRAINT outcomes_pid_not_null NOT NULL,
    id uuid CONSTRAINT outcomes_id_not_null NOT NULL,
    attempts integer CONSTRAINT outcomes_attempts_not_null NOT NULL,
    slot smallint CONSTRAINT outcomes_slot_not_null NOT NULL,
    own text COLLATE pg_catalog."C",
    queue text CONSTRAINT outcomes_queue_not_null NOT NULL COLLATE pg_catalog."C",
    key text COLLATE pg_catalog."C",
    state text CONSTRAINT outcomes_state_not_null NOT NULL,
    host text CONSTRAINT outcomes_host_not_null NOT NULL,
    "json" text CONSTRAINT outcomes_json_not_null NOT NULL,
    result text CONSTRAINT outcomes_result_not_null NOT NULL,
    errors text CONSTRAINT outcomes_errors_not_null NOT NULL,
    number bigint DEFAULT 0 CONSTRAINT outcomes_number_not_null NOT NULL,
    together uuid[],
    queues text[] COLLATE pg_catalog."C"
)
WITH (autovacuum_enabled=off);

CREATE TABLE intervalq.outcomes_20 (
    created bigint CONSTRAINT outcomes_created_not_null NOT NULL,
    started bigint CONSTRAINT outcomes_started_not_null NOT NULL,
    ended bigint CONSTRAINT outcomes_ended_not_null NOT NULL,
    until bigint CONSTRAINT outcomes_until_not_null NOT NULL,
    pid bigint CONSTRAINT outcomes_pid_not_null NOT NULL,
    id uuid CONSTRAINT outcomes_id_not_null NOT NULL,
    attempts integer CONSTRAINT outcomes_attempts_not_null NOT NULL,
    slot smallint CONSTRAINT outcomes_slot_not_null NOT NULL,
    own text COLLATE pg_catalog."C",
    queue text CONSTRAINT outcomes_queue_not_null NOT NULL COLLATE pg_catalog."C",
    key text COLLATE pg_catalog."C",
    state text CONSTRAINT outcomes_state_not_null NOT NULL,
    host text CONSTRAINT outcomes_host_not_null NOT NULL,
    "json" text CONSTRAINT outcomes_json_not_null NOT NULL,
    result text CONSTRAINT outcomes_result_not_null NOT NULL,
    errors text CONSTRAINT outcomes_errors_not_null NOT NULL,
    number bigint DEFAULT 0 CONSTRAINT outcomes_number_not_null NOT NULL,
    together uuid[],
    queues text[] COLLATE pg_catalog."C"
)
WITH (autovacuum_enabled=off);

CREATE TABLE intervalq.outcomes_21 (
    created bigint CONSTRAINT outcomes_created_not_null NOT NULL,
    started bigint CONSTRAINT outcomes_started_not_null NOT NULL,
    ended bigint CONSTRAINT outcomes_ended_not_null NOT NULL,
    until bigint CONSTRAINT outcomes_until_not_null NOT NULL,
    pid bigint CONSTRAINT outcomes_pid_not_null NOT NULL,
    id uuid CONSTRAINT outcomes_id_not_null NOT NULL,
    attempts integer CONSTRAINT outcomes_attempts_not_null NOT NULL,
    slot smallint CONSTRAINT outcomes_slot_not_null NOT NULL,
    own text COLLATE pg_catalog."C",
    queue text CONSTRAINT outcomes_queue_not_null NOT NULL COLLATE pg_catalog."C",
    key text COLLATE pg_catalog."C",
    state text CONSTRAINT outcomes_state_not_null NOT NULL,
    host text CONSTRAINT outcomes_host_not_null NOT NULL,
    "json" text CONSTRAINT outcomes_json_not_null NOT NULL,
    result text CONSTRAINT outcomes_result_not_null NOT NULL,
    errors text CONSTRAINT outcomes_errors_not_null NOT NULL,
    number bigint DEFAULT 0 CONSTRAINT outcomes_number_not_null NOT NULL,
    together uuid[],
    queues text[] COLLATE pg_catalog."C"
)
WITH (autovacuum_enabled=off);

CREATE TABLE intervalq.outcomes_22 (
    created bigint CONSTRAINT outcomes_created_not_null NOT NULL,
    started bigint CONSTRAINT outcomes_started_not_null NOT NULL,
    ended bigint CONSTRAINT outcomes_ended_not_null NOT NULL,
    until bigint CONSTRAINT outcomes_until_not_null NOT NULL,
    pid bigint CONSTRAINT outcomes_pid_not_null NOT NULL,
    id uuid CONSTRAINT outcomes_id_not_null NOT NULL,
    attempts integer CONSTRAINT outcomes_attempts_not_null NOT NULL,
    slot smallint CONSTRAINT outcomes_slot_not_null NOT NULL,
    own text COLLATE pg_catalog."C",
    queue text CONSTRAINT outcomes_queue_not_null NOT NULL COLLATE pg_catalog."C",
    key text COLLATE pg_catalog."C",
    state text CONSTRAINT outcomes_state_not_null NOT NULL,
    host text CONSTRAINT outcomes_host_not_null NOT NULL,
    "json" text CONSTRAINT outcomes_json_not_null NOT NULL,
    result text CONSTRAINT outcomes_result_not_null NOT NULL,
    errors text CONSTRAINT outcomes_errors_not_null NOT NULL,
    number bigint DEFAULT 0 CONSTRAINT outcomes_number_not_null NOT NULL,
    together uuid[],
    queues text[] COLLATE pg_catalog."C"
)
WITH (autovacuum_enabled=off);

CREATE TABLE intervalq.outcomes_23 (
    created bigint CONSTRAINT outcomes_created_not_null NOT NULL,
    started bigint CONSTRAINT outcomes_started_not_null NOT NULL,
    ended bigint CONSTRAINT outcomes_ended_not_null NOT NULL,
    until bigint CONSTRAINT outcomes_until_not_null NOT NULL,
    pid bigint CONSTRAINT outcomes_pid_not_null NOT NULL,
    id uuid CONSTRAINT outcomes_id_not_null NOT NULL,
    attempts integer CONSTRAINT outcomes_attempts_not_null NOT NULL,
    slot smallint CONSTRAINT outcomes_slot_not_null NOT NULL,
    own text COLLATE pg_catalog."C",
    queue text CONSTRAINT outcomes_queue_not_null NOT NULL COLLATE pg_catalog."C",
    key text COLLATE pg_catalog."C",
    state text CONSTRAINT outcomes_state_not_null NOT NULL,
    host text CONSTRAINT outcomes_host_not_null NOT NULL,
    "json" text CONSTRAINT outcomes_json_not_null NOT NULL,
    result text CONSTRAINT outcomes_result_not_null NOT NULL,
    errors text CONSTRAINT outcomes_errors_not_null NOT NULL,
    number bigint DEFAULT 0 CONSTRAINT outcomes_number_not_null NOT NULL,
    together uuid[],
    queues text[] COLLATE pg_catalog."C"
)
WITH (autovacuum_enabled=off);

CREATE TABLE intervalq.outcomes_24 (
    created bigint CONSTRAINT outcomes_created_not_null NOT NULL,
    started bigint CONSTRAINT outcomes_started_not_null NOT NULL,
    ended bigint CONSTRAINT outcomes_ended_not_null NOT NULL,
    until bigint CONSTRAINT outcomes_until_not_null NOT NULL,
    pid bigint CONSTRAINT outcomes_pid_not_null NOT NULL,
    id uuid CONSTRAINT outcomes_id_not_null NOT NULL,
    attempts integer CONSTRAINT outcomes_attempts_not_null NOT NULL,
    slot smallint CONSTRAINT outcomes_slot_not_null NOT NULL,
    own text COLLATE pg_catalog."C",
    queue text CONSTRAINT outcomes_queue_not_null NOT NULL COLLATE pg_catalog."C",
    key text COLLATE pg_catalog."C",
    state text CONSTRAINT outcomes_state_not_null NOT NULL,
    host text CONSTRAINT outcomes_host_not_null NOT NULL,
    "json" text CONSTRAINT outcomes_json_not_null NOT NULL,
    result text CONSTRAINT outcomes_result_not_null NOT NULL,
    errors text CONSTRAINT outcomes_errors_not_null NOT NULL,
    number bigint DEFAULT 0 CONSTRAINT outcomes_number_not_null NOT NULL,
    together uuid[],
    queues text[] COLLATE pg_catalog."C"
)
WITH (autovacuum_enabled=off);

CREATE TABLE intervalq.outcomes_25 (
    created bigint CONSTRAINT outcomes_created_not_null NOT NULL,
    started bigint CONSTRAINT outcomes_started_not_null NOT NULL,
    ended bigint CONSTRAINT outcomes_ended_not_null NOT NULL,
    until bigint CONSTRAINT outcomes_until_not_null NOT NULL,
    pid bigint CONSTRAINT outcomes_pid_not_null NOT NULL,
    id uuid CONSTRAINT outcomes_id_not_null NOT NULL,
    attempts integer CONSTRAINT outcomes_attempts_not_null NOT NULL,
    slot smallint CONSTRAINT outcomes_slot_not_null NOT NULL,
    own text COLLATE pg_catalog."C",
    queue text CONSTRAINT outcomes_queue_not_null NOT NULL COLLATE pg_catalog."C",
    key text COLLATE pg_catalog."C",
    state text CONSTRAINT outcomes_state_not_null NOT NULL,
    host text CONSTRAINT outcomes_host_not_null NOT NULL,
    "json" text CONSTRAINT outcomes_json_not_null NOT NULL,
    result text CONSTRAINT outcomes_result_not_null NOT NULL,
    errors text CONSTRAINT outcomes_errors_not_null NOT NULL,
    number bigint DEFAULT 0 CONSTRAINT outcomes_number_not_null NOT NULL,
    together uuid[],
    queues text[] COLLATE pg_catalog."C"
)
WITH (autovacuum_enabled=off);

CREATE TABLE intervalq.outcomes_26 (
    created bigint CONSTRAINT outcomes_created_not_null NOT NULL,
    started bigint CONSTRAINT outcomes_started_not_null NOT NULL,
    ended bigint CONSTRAINT outcomes_ended_not_null NOT NULL,
    until bigint CONSTRAINT outcomes_until_not_null NOT NULL,
    pid bigint CONSTRAINT outcomes_pid_not_null NOT NULL,
    id uuid CONSTRAINT outcomes_id_not_null NOT NULL,
    attempts integer CONSTRAINT outcomes_attempts_not_null NOT NULL,
    slot smallint CONSTRAINT outcomes_slot_not_null NOT NULL,
    own text COLLATE pg_catalog."C",
    queue text CONSTRAINT outcomes_queue_not_null NOT NULL COLLATE pg_catalog."C",
    key text COLLATE pg_catalog."C",
    state text CONSTRAINT outcomes_state_not_null NOT NULL,
    host text CONSTRAINT outcomes_host_not_null NOT NULL,
    "json" text CONSTRAINT outcomes_json_not_null NOT NULL,
    result text CONSTRAINT outcomes_result_not_null NOT NULL,
    errors text CONSTRAINT outcomes_errors_not_null NOT NULL,
    number bigint DEFAULT 0 CONSTRAINT outcomes_number_not_null NOT NULL,
    together uuid[],
    queues text[] COLLATE pg_catalog."C"
)
WITH (autovacuum_enabled=off);

CREATE TABLE intervalq.outcomes_27 (
    created bigint CONSTRAINT outcomes_created_not_null NOT NULL,
    started bigint CONSTRAINT outcomes_started_not_null NOT NULL,
    ended bigint CONSTRAINT outcomes_ended_not_null NOT NULL,
    until bigint CONSTRAINT outcomes_until_not_null NOT NULL,
    pid bigint CONSTRAINT outcomes_pid_not_null NOT NULL,
    id uuid CONSTRAINT outcomes_id_not_null NOT NULL,
    attempts integer CONSTRAINT outcomes_attempts_not_null NOT NULL,
    slot smallint CONSTRAINT outcomes_slot_not_null NOT NULL,
    own text COLLATE pg_catalog."C",
    queue text CONSTRAINT outcomes_queue_not_null NOT NULL COLLATE pg_catalog."C",
    key text COLLATE pg_catalog."C",
    state text CONSTRAINT outcomes_state_not_null NOT NULL,
    host text CONSTRAINT outcomes_host_not_null NOT NULL,
    "json" text CONSTRAINT outcomes_json_not_null NOT NULL,
    result text CONSTRAINT outcomes_result_not_null NOT NULL,
    errors text CONSTRAINT outcomes_errors_not_null NOT NULL,
    number bigint DEFAULT 0 CONSTRAINT outcomes_number_not_null NOT NULL,
    together uuid[],
    queues text[] COLLATE pg_catalog."C"
)
WITH (autovacuum_enabled=off);

CREATE TABLE intervalq.outcomes_28 (
    created bigint CONSTRAINT outcomes_created_not_null NOT NULL,
    started bigint CONSTRAINT outcomes_started_not_null NOT NULL,
    ended bigint CONSTRAINT outcomes_ended_not_null NOT NULL,
    until bigint CONSTRAINT outcomes_until_not_null NOT NULL,
    pid bigint CONSTRAINT outcomes_pid_not_null NOT NULL,
    id uuid CONSTRAINT outcomes_id_not_null NOT NULL,
    attempts integer CONSTRAINT outcomes_attempts_not_null NOT NULL,
    slot smallint CONSTRAINT outcomes_slot_not_null NOT NULL,
    own text COLLATE pg_catalog."C",
    queue text CONSTRAINT outcomes_queue_not_null NOT NULL COLLATE pg_catalog."C",
    key text COLLATE pg_catalog."C",
    state text CONSTRAINT outcomes_state_not_null NOT NULL,
    host text CONSTRAINT outcomes_host_not_null NOT NULL,
    "json" text CONSTRAINT outcomes_json_not_null NOT NULL,
    result text CONSTRAINT outcomes_result_not_null NOT NULL,
    errors text CONSTRAINT outcomes_errors_not_null NOT NULL,
    number bigint DEFAULT 0 CONSTRAINT outcomes_number_not_null NOT NULL,
    together uuid[],
    queues text[] COLLATE pg_catalog."C"
)
WITH (autovacuum_enabled=off);

CREATE TABLE intervalq.outcomes_29 (
    created bigint CONSTRAINT outcomes_created_not_null NOT NULL,
    started bigint CONSTRAINT outcomes_started_not_null NOT NULL,
    ended bigint CONSTRAINT outcomes_ended_not_null NOT NULL,
    until bigint CONSTRAINT outcomes_until_not_null NOT NULL,
    pid bigint CONSTRAINT outcomes_pid_not_null NOT NULL,
    id uuid CONSTRAINT outcomes_id_not_null NOT NULL,
    attempts integer CONSTRAINT outcomes_attempts_not_null NOT NULL,
    slot smallint CONSTRAINT outcomes_slot_not_null NOT NULL,
    own text COLLATE pg_catalog."C",
    queue text CONSTRAINT outcomes_queue_not_null NOT NULL COLLATE pg_catalog."C",
    key text COLLATE pg_catalog."C",
    state text CONSTRAINT outcomes_state_not_null NOT NULL,
    host text CONSTRAINT outcomes_host_not_null NOT NULL,
    "json" text CONSTRAINT outcomes_json_not_null NOT NULL,
    result text CONSTRAINT outcomes_result_not_null NOT NULL,
    errors text CONSTRAINT outcomes_errors_not_null NOT NULL,
    number bigint DEFAULT 0 CONSTRAINT outcomes_number_not_null NOT NULL,
    together uuid[],
    queues text[] COLLATE pg_catalog."C"
)
WITH (autovacuum_enabled=off);

CREATE TABLE intervalq.outcomes_3 (
    created bigint CONSTRAINT outcomes_created_not_null NOT NULL,
    started bigint CONSTRAINT outcomes_started_not_null NOT NULL,
    ended bigint CONSTRAINT outcomes_ended_not_null NOT NULL,
    until bigint CONSTRAINT outcomes_until_not_null NOT NULL,
    pid bigint CONSTRAINT outcomes_pid_not_null NOT NULL,
    id uuid CONSTRAINT outcomes_id_not_null NOT NULL,
    attempts integer CONSTRAINT outcomes_attempts_not_null NOT NULL,
    slot smallint CONSTRAINT outcomes_slot_not_null NOT NULL,
    own text COLLATE pg_catalog."C",
    queue text CONSTRAINT outcomes_queue_not_null NOT NULL COLLATE pg_catalog."C",
    key text COLLATE pg_catalog."C",
    state text CONSTRAINT outcomes_state_not_null NOT NULL,
    host text CONSTRAINT outcomes_host_not_null NOT NULL,
    "json" text CONSTRAINT outcomes_json_not_null NOT NULL,
    result text CONSTRAINT outcomes_result_not_null NOT NULL,
    errors text CONSTRAINT outcomes_errors_not_null NOT NULL,
    number bigint DEFAULT 0 CONSTRAINT outcomes_number_not_null NOT NULL,
    together uuid[],
    queues text[] COLLATE pg_catalog."C"
)
WITH (autovacuum_enabled=off);

CREATE TABLE intervalq.outcomes_4 (
    created bigint CONSTRAINT outcomes_created_not_null NOT NULL,
    started bigint CONSTRAINT outcomes_started_not_null NOT NULL,
    ended bigint CONSTRAINT outcomes_ended_not_null NOT NULL,
    until bigint CONSTRAINT outcomes_until_not_null NOT NULL,
    pid bigint CONSTRAINT outcomes_pid_not_null NOT NULL,
    id uuid CONSTRAINT outcomes_id_not_null NOT NULL,
    attempts integer CONSTRAINT outcomes_attempts_not_null NOT NULL,
    slot smallint CONSTRAINT outcomes_slot_not_null NOT NULL,
    own text COLLATE pg_catalog."C",
    queue text CONSTRAINT outcomes_queue_not_null NOT NULL COLLATE pg_catalog."C",
    key text COLLATE pg_catalog."C",
    state text CONSTRAINT outcomes_state_not_null NOT NULL,
    host text CONSTRAINT outcomes_host_not_null NOT NULL,
    "json" text CONSTRAINT outcomes_json_not_null NOT NULL,
    result text CONSTRAINT outcomes_result_not_null NOT NULL,
    errors text CONSTRAINT outcomes_errors_not_null NOT NULL,
    number bigint DEFAULT 0 CONSTRAINT outcomes_number_not_null NOT NULL,
    together uuid[],
    queues text[] COLLATE pg_catalog."C"
)
WITH (autovacuum_enabled=off);

CREATE TABLE intervalq.outcomes_5 (
    created bigint CONSTRAINT outcomes_created_not_null NOT NULL,
    started bigint CONSTRAINT outcomes_started_not_null NOT NULL,
    ended bigint CONSTRAINT outcomes_ended_not_null NOT NULL,
    until bigint CONSTRAINT outcomes_until_not_null NOT NULL,
    pid bigint CONSTRAINT outcomes_pid_not_null NOT NULL,
    id uuid CONSTRAINT outcomes_id_not_null NOT NULL,
    attempts integer CONSTRAINT outcomes_attempts_not_null NOT NULL,
    slot smallint CONSTRAINT outcomes_slot_not_null NOT NULL,
    own text COLLATE pg_catalog."C",
    queue text CONSTRAINT outcomes_queue_not_null NOT NULL COLLATE pg_catalog."C",
    key text COLLATE pg_catalog."C",
    state text CONSTRAINT outcomes_state_not_null NOT NULL,
    host text CONSTRAINT outcomes_host_not_null NOT NULL,
    "json" text CONSTRAINT outcomes_json_not_null NOT NULL,
    result text CONSTRAINT outcomes_result_not_null NOT NULL,
    errors text CONSTRAINT outcomes_errors_not_null NOT NULL,
    number bigint DEFAULT 0 CONSTRAINT outcomes_number_not_null NOT NULL,
    together uuid[],
    queues text[] COLLATE pg_catalog."C"
)
WITH (autovacuum_enabled=off);

CREATE TABLE intervalq.outcomes_6 (
    created bigint CONSTRAINT outcomes_created_not_null NOT NULL,
    started bigint CONSTRAINT outcomes_started_not_null NOT NULL,
    ended bigint CONSTRAINT outcomes_ended_not_null NOT NULL,
    until bigint CONSTRAINT outcomes_until_not_null NOT NULL,
    pid bigint CONSTRAINT outcomes_pid_not_null NOT NULL,
    id uuid CONSTRAINT outcomes_id_not_null NOT NULL,
    attempts integer CONSTRAINT outcomes_attempts_not_null NOT NULL,
    slot smallint CONSTRAINT outcomes_slot_not_null NOT NULL,
    own text COLLATE pg_catalog."C",
    queue text CONSTRAINT outcomes_queue_not_null NOT NULL COLLATE pg_catalog."C",
    key text COLLATE pg_catalog."C",
    state text CONSTRAINT outcomes_state_not_null NOT NULL,
    host text CONSTRAINT outcomes_host_not_null NOT NULL,
    "json" text CONSTRAINT outcomes_json_not_null NOT NULL,
    result text CONSTRAINT outcomes_result_not_null NOT NULL,
    errors text CONSTRAINT outcomes_errors_not_null NOT NULL,
    number bigint DEFAULT 0 CONSTRAINT outcomes_number_not_null NOT NULL,
    together uuid[],
    queues text[] COLLATE pg_catalog."C"
)
WITH (autovacuum_enabled=off);

CREATE TABLE intervalq.outcomes_7 (
    created bigint CONSTRAINT outcomes_created_not_null NOT NULL,
    started bigint CONSTRAINT outcomes_started_not_null NOT NULL,
    ended bigint CONSTRAINT outcomes_ended_not_null NOT NULL,
    until bigint CONSTRAINT outcomes_until_not_null NOT NULL,
    pid bigint CONSTRAINT outcomes_pid_not_null NOT NULL,
    id uuid CONSTRAINT outcomes_id_not_null NOT NULL,
    attempts integer CONSTRAINT outcomes_attempts_not_null NOT NULL,
    slot smallint CONSTRAINT outcomes_slot_not_null NOT NULL,
    own text COLLATE pg_catalog."C",
    queue text CONSTRAINT outcomes_queue_not_null NOT NULL COLLATE pg_catalog."C",
    key text COLLATE pg_catalog."C",
    state text CONSTRAINT outcomes_state_not_null NOT NULL,
    host text CONSTRAINT outcomes_host_not_null NOT NULL,
    "json" text CONSTRAINT outcomes_json_not_null NOT NULL,
    result text CONSTRAINT outcomes_result_not_null NOT NULL,
    errors text CONSTRAINT outcomes_errors_not_null NOT NULL,
    number bigint DEFAULT 0 CONSTRAINT outcomes_number_not_null NOT NULL,
    together uuid[],
    queues text[] COLLATE pg_catalog."C"
)
WITH (autovacuum_enabled=off);

CREATE TABLE intervalq.outcomes_8 (
    created bigint CONSTRAINT outcomes_created_not_null NOT NULL,
    started bigint CONSTRAINT outcomes_started_not_null NOT NULL,
    ended bigint CONSTRAINT outcomes_ended_not_null NOT NULL,
    until bigint CONSTRAINT outcomes_until_not_null NOT NULL,
    pid bigint CONSTRAINT outcomes_pid_not_null NOT NULL,
    id uuid CONSTRAINT outcomes_id_not_null NOT NULL,
    attempts integer CONSTRAINT outcomes_attempts_not_null NOT NULL,
    slot smallint CONSTRAINT outcomes_slot_not_null NOT NULL,
    own text COLLATE pg_catalog."C",
    queue text CONSTRAINT outcomes_queue_not_null NOT NULL COLLATE pg_catalog."C",
    key text COLLATE pg_catalog."C",
    state text CONSTRAINT outcomes_state_not_null NOT NULL,
    host text CONSTRAINT outcomes_host_not_null NOT NULL,
    "json" text CONSTRAINT outcomes_json_not_null NOT NULL,
    result text CONSTRAINT outcomes_result_not_null NOT NULL,
    errors text CONSTRAINT outcomes_errors_not_null NOT NULL,
    number bigint DEFAULT 0 CONSTRAINT outcomes_number_not_null NOT NULL,
    together uuid[],
    queues text[] COLLATE pg_catalog."C"
)
WITH (autovacuum_enabled=off);

CREATE TABLE intervalq.outcomes_9 (
    created bigint CONSTRAINT outcomes_created_not_null NOT NULL,
    started bigint CONSTRAINT outcomes_started_not_null NOT NULL,
    ended bigint CONSTRAINT outcomes_ended_not_null NOT NULL,
    until bigint CONSTRAINT outcomes_until_not_null NOT NULL,
    pid bigint CONSTRAINT outcomes_pid_not_null NOT NULL,
    id uuid CONSTRAINT outcomes_id_not_null NOT NULL,
    attempts integer CONSTRAINT outcomes_attempts_not_null NOT NULL,
    slot smallint CONSTRAINT outcomes_slot_not_null NOT NULL,
    own text COLLATE pg_catalog."C",
    queue text CONSTRAINT outcomes_queue_not_null NOT NULL COLLATE pg_catalog."C",
    key text COLLATE pg_catalog."C",
    state text CONSTRAINT outcomes_state_not_null NOT NULL,
    host text CONSTRAINT outcomes_host_not_null NOT NULL,
    "json" text CONSTRAINT outcomes_json_not_null NOT NULL,
    result text CONSTRAINT outcomes_result_not_null NOT NULL,
    errors text CONSTRAINT outcomes_errors_not_null NOT NULL,
    number bigint DEFAULT 0 CONSTRAINT outcomes_number_not_null NOT NULL,
    together uuid[],
    queues text[] COLLATE pg_catalog."C"
)
WITH (autovacuum_enabled=off);

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

ALTER TABLE ONLY intervalq.outcomes ATTACH PARTITION intervalq.outcomes_0 FOR VALUES IN ('0');

ALTER TABLE ONLY intervalq.outcomes ATTACH PARTITION intervalq.outcomes_1 FOR VALUES IN ('1');

ALTER TABLE ONLY intervalq.outcomes ATTACH PARTITION intervalq.outcomes_10 FOR VALUES IN ('10');

ALTER TABLE ONLY intervalq.outcomes ATTACH PARTITION intervalq.outcomes_11 FOR VALUES IN ('11');

ALTER TABLE ONLY intervalq.outcomes ATTACH PARTITION intervalq.outcomes_12 FOR VALUES IN ('12');

ALTER TABLE ONLY intervalq.outcomes ATTACH PARTITION intervalq.outcomes_13 FOR VALUES IN ('13');

ALTER TABLE ONLY intervalq.outcomes ATTACH PARTITION intervalq.outcomes_14 FOR VALUES IN ('14');

ALTER TABLE ONLY intervalq.outcomes ATTACH PARTITION intervalq.outcomes_15 FOR VALUES IN ('15');

ALTER TABLE ONLY intervalq.outcomes ATTACH PARTITION intervalq.outcomes_16 FOR VALUES IN ('16');

ALTER TABLE ONLY intervalq.outcomes ATTACH PARTITION intervalq.outcomes_17 FOR VALUES IN ('17');

ALTER TABLE ONLY intervalq.outcomes ATTACH PARTITION intervalq.outcomes_18 FOR VALUES IN ('18');

ALTER TABLE ONLY intervalq.outcomes ATTACH PARTITION intervalq.outcomes_19 FOR VALUES IN ('19');

ALTER TABLE ONLY intervalq.outcomes ATTACH PARTITION intervalq.outcomes_2 FOR VALUES IN ('2');

ALTER TABLE ONLY intervalq.outcomes ATTACH PARTITION intervalq.outcomes_20 FOR VALUES IN ('20');

ALTER TABLE ONLY intervalq.outcomes ATTACH PARTITION intervalq.outcomes_21 FOR VALUES IN ('21');

ALTER TABLE ONLY intervalq.outcomes ATTACH PARTITION intervalq.outcomes_22 FOR VALUES IN ('22');

ALTER TABLE ONLY intervalq.outcomes ATTACH PARTITION intervalq.outcomes_23 FOR VALUES IN ('23');

ALTER TABLE ONLY intervalq.outcomes ATTACH PARTITION intervalq.outcomes_24 FOR VALUES IN ('24');

ALTER TABLE ONLY intervalq.outcomes ATTACH PARTITION intervalq.outcomes_25 FOR VALUES IN ('25');

ALTER TABLE ONLY intervalq.outcomes ATTACH PARTITION intervalq.outcomes_26 FOR VALUES IN ('26');

ALTER TABLE ONLY intervalq.outcomes ATTACH PARTITION intervalq.outcomes_27 FOR VALUES IN ('27');

ALTER TABLE ONLY intervalq.outcomes ATTACH PARTITION intervalq.outcomes_28 FOR VALUES IN ('28');

ALTER TABLE ONLY intervalq.outcomes ATTACH PARTITION intervalq.outcomes_29 FOR VALUES IN ('29');

ALTER TABLE ONLY intervalq.outcomes ATTACH PARTITION intervalq.outcomes_3 FOR VALUES IN ('3');

ALTER TABLE ONLY intervalq.outcomes ATTACH PARTITION intervalq.outcomes_4 FOR VALUES IN ('4');

ALTER TABLE ONLY intervalq.outcomes ATTACH PARTITION intervalq.outcomes_5 FOR VALUES IN ('5');

ALTER TABLE ONLY intervalq.outcomes ATTACH PARTITION intervalq.outcomes_6 FOR VALUES IN ('6');

ALTER TABLE ONLY intervalq.outcomes ATTACH PARTITION intervalq.outcomes_7 FOR VALUES IN ('7');

ALTER TABLE ONLY intervalq.outcomes ATTACH PARTITION intervalq.outcomes_8 FOR VALUES IN ('8');

ALTER TABLE ONLY intervalq.outcomes ATTACH PARTITION intervalq.outcomes_9 FOR VALUES IN ('9');

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

CREATE INDEX outcomes_old ON ONLY intervalq.outcomes USING btree (ended) WHERE (number = 0);

CREATE INDEX outcomes_0_ended_idx ON intervalq.outcomes_0 USING btree (ended) WHERE (number = 0);

CREATE INDEX outcomes_id ON ONLY intervalq.outcomes USING btree (id);

CREATE INDEX outcomes_0_id_idx ON intervalq.outcomes_0 USING btree (id);

CREATE INDEX outcomes_number ON ONLY intervalq.outcomes USING btree (number) WHERE (together IS NOT NULL);

CREATE INDEX outcomes_0_number_idx ON intervalq.outcomes_0 USING btree (number) WHERE (together IS NOT NULL);

CREATE INDEX outcomes_10_ended_idx ON intervalq.outcomes_10 USING btree (ended) WHERE (number = 0);

CREATE INDEX outcomes_10_id_idx ON intervalq.outcomes_10 USING btree (id);

CREATE INDEX outcomes_10_number_idx ON intervalq.outcomes_10 USING btree (number) WHERE (together IS NOT NULL);

CREATE INDEX outcomes_11_ended_idx ON intervalq.outcomes_11 USING btree (ended) WHERE (number = 0);

CREATE INDEX outcomes_11_id_idx ON intervalq.outcomes_11 USING btree (id);

CREATE INDEX outcomes_11_number_idx ON intervalq.outcomes_11 USING btree (number) WHERE (together IS NOT NULL);

CREATE INDEX outcomes_12_ended_idx ON intervalq.outcomes_12 USING btree (ended) WHERE (number = 0);

CREATE INDEX outcomes_12_id_idx ON intervalq.outcomes_12 USING btree (id);

CREATE INDEX outcomes_12_number_idx ON intervalq.outcomes_12 USING btree (number) WHERE (together IS NOT NULL);

CREATE INDEX outcomes_13_ended_idx ON intervalq.outcomes_13 USING btree (ended) WHERE (number = 0);

CREATE INDEX outcomes_13_id_idx ON intervalq.outcomes_13 USING btree (id);

CREATE INDEX outcomes_13_number_idx ON intervalq.outcomes_13 USING btree (number) WHERE (together IS NOT NULL);

CREATE INDEX outcomes_14_ended_idx ON intervalq.outcomes_14 USING btree (ended) WHERE (number = 0);

CREATE INDEX outcomes_14_id_idx ON intervalq.outcomes_14 USING btree (id);

CREATE INDEX outcomes_14_number_idx ON intervalq.outcomes_14 USING btree (number) WHERE (together IS NOT NULL);

CREATE INDEX outcomes_15_ended_idx ON intervalq.outcomes_15 USING btree (ended) WHERE (number = 0);

CREATE INDEX outcomes_15_id_idx ON intervalq.outcomes_15 USING btree (id);

CREATE INDEX outcomes_15_number_idx ON intervalq.outcomes_15 USING btree (number) WHERE (together IS NOT NULL);

CREATE INDEX outcomes_16_ended_idx ON intervalq.outcomes_16 USING btree (ended) WHERE (number = 0);

CREATE INDEX outcomes_16_id_idx ON intervalq.outcomes_16 USING btree (id);

CREATE INDEX outcomes_16_number_idx ON intervalq.outcomes_16 USING btree (number) WHERE (together IS NOT NULL);

CREATE INDEX outcomes_17_ended_idx ON intervalq.outcomes_17 USING btree (ended) WHERE (number = 0);

CREATE INDEX outcomes_17_id_idx ON intervalq.outcomes_17 USING btree (id);

CREATE INDEX outcomes_17_number_idx ON intervalq.outcomes_17 USING btree (number) WHERE (together IS NOT NULL);

CREATE INDEX outcomes_18_ended_idx ON intervalq.outcomes_18 USING btree (ended) WHERE (number = 0);

CREATE INDEX outcomes_18_id_idx ON intervalq.outcomes_18 USING btree (id);

CREATE INDEX outcomes_18_number_idx ON intervalq.outcomes_18 USING btree (number) WHERE (together IS NOT NULL);

CREATE INDEX outcomes_19_ended_idx ON intervalq.outcomes_19 USING btree (ended) WHERE (number = 0);

CREATE INDEX outcomes_19_id_idx ON intervalq.outcomes_19 USING btree (id);

CREATE INDEX outcomes_19_number_idx ON intervalq.outcomes_19 USING btree (number) WHERE (together IS NOT NULL);

CREATE INDEX outcomes_1_ended_idx ON intervalq.outcomes_1 USING btree (ended) WHERE (number = 0);

CREATE INDEX outcomes_1_id_idx ON intervalq.outcomes_1 USING btree (id);

CREATE INDEX outcomes_1_number_idx ON intervalq.outcomes_1 USING btree (number) WHERE (together IS NOT NULL);

CREATE INDEX outcomes_20_ended_idx ON intervalq.outcomes_20 USING btree (ended) WHERE (number = 0);

CREATE INDEX outcomes_20_id_idx ON intervalq.outcomes_20 USING btree (id);

CREATE INDEX outcomes_20_number_idx ON intervalq.outcomes_20 USING btree (number) WHERE (together IS NOT NULL);

CREATE INDEX outcomes_21_ended_idx ON intervalq.outcomes_21 USING btree (ended) WHERE (number = 0);

CREATE INDEX outcomes_21_id_idx ON intervalq.outcomes_21 USING btree (id);

CREATE INDEX outcomes_21_number_idx ON intervalq.outcomes_21 USING btree (number) WHERE (together IS NOT NULL);

CREATE INDEX outcomes_22_ended_idx ON intervalq.outcomes_22 USING btree (ended) WHERE (number = 0);

CREATE INDEX outcomes_22_id_idx ON intervalq.outcomes_22 USING btree (id);

CREATE INDEX outcomes_22_number_idx ON intervalq.outcomes_22 USING btree (number) WHERE (together IS NOT NULL);

CREATE INDEX outcomes_23_ended_idx ON intervalq.outcomes_23 USING btree (ended) WHERE (number = 0);

CREATE INDEX outcomes_23_id_idx ON intervalq.outcomes_23 USING btree (id);

CREATE INDEX outcomes_23_number_idx ON intervalq.outcomes_23 USING btree (number) WHERE (together IS NOT NULL);

CREATE INDEX outcomes_24_ended_idx ON intervalq.outcomes_24 USING btree (ended) WHERE (number = 0);

CREATE INDEX outcomes_24_id_idx ON intervalq.outcomes_24 USING btree (id);

CREATE INDEX outcomes_24_number_idx ON intervalq.outcomes_24 USING btree (number) WHERE (together IS NOT NULL);

CREATE INDEX outcomes_25_ended_idx ON intervalq.outcomes_25 USING btree (ended) WHERE (number = 0);

CREATE INDEX outcomes_25_id_idx ON intervalq.outcomes_25 USING btree (id);

CREATE INDEX outcomes_25_number_idx ON intervalq.outcomes_25 USING btree (number) WHERE (together IS NOT NULL);

CREATE INDEX outcomes_26_ended_idx ON intervalq.outcomes_26 USING btree (ended) WHERE (number = 0);

CREATE INDEX outcomes_26_id_idx ON intervalq.outcomes_26 USING btree (id);

CREATE INDEX outcomes_26_number_idx ON intervalq.outcomes_26 USING btree (number) WHERE (together IS NOT NULL);

CREATE INDEX outcomes_27_ended_idx ON intervalq.outcomes_27 USING btree (ended) WHERE (number = 0);

CREATE INDEX outcomes_27_id_idx ON intervalq.outcomes_27 USING btree (id);

CREATE INDEX outcomes_27_number_idx ON intervalq.outcomes_27 USING btree (number) WHERE (together IS NOT NULL);

CREATE INDEX outcomes_28_ended_idx ON intervalq.outcomes_28 USING btree (ended) WHERE (number = 0);

CREATE INDEX outcomes_28_id_idx ON intervalq.outcomes_28 USING btree (id);

CREATE INDEX outcomes_28_number_idx ON intervalq.outcomes_28 USING btree (number) WHERE (together IS NOT NULL);

CREATE INDEX outcomes_29_ended_idx ON intervalq.outcomes_29 USING btree (ended) WHERE (number = 0);

CREATE INDEX outcomes_29_id_idx ON intervalq.outcomes_29 USING btree (id);

CREATE INDEX outcomes_29_number_idx ON intervalq.outcomes_29 USING btree (number) WHERE (together IS NOT NULL);

CREATE INDEX outcomes_2_ended_idx ON intervalq.outcomes_2 USING btree (ended) WHERE (number = 0);

CREATE INDEX outcomes_2_id_idx ON intervalq.outcomes_2 USING btree (id);

CREATE INDEX outcomes_2_number_idx ON intervalq.outcomes_2 USING btree (number) WHERE (together IS NOT NULL);

CREATE INDEX outcomes_3_ended_idx ON intervalq.outcomes_3 USING btree (ended) WHERE (number = 0);

CREATE INDEX outcomes_3_id_idx ON intervalq.outcomes_3 USING btree (id);

CREATE INDEX outcomes_3_number_idx ON intervalq.outcomes_3 USING btree (number) WHERE (together IS NOT NULL);

CREATE INDEX outcomes_4_ended_idx ON intervalq.outcomes_4 USING btree (ended) WHERE (number = 0);

CREATE INDEX outcomes_4_id_idx ON intervalq.outcomes_4 USING btree (id);

CREATE INDEX outcomes_4_number_idx ON intervalq.outcomes_4 USING btree (number) WHERE (together IS NOT NULL);

CREATE INDEX outcomes_5_ended_idx ON intervalq.outcomes_5 USING btree (ended) WHERE (number = 0);

CREATE INDEX outcomes_5_id_idx ON intervalq.outcomes_5 USING btree (id);

CREATE INDEX outcomes_5_number_idx ON intervalq.outcomes_5 USING btree (number) WHERE (together IS NOT NULL);

CREATE INDEX outcomes_6_ended_idx ON intervalq.outcomes_6 USING btree (ended) WHERE (number = 0);

CREATE INDEX outcomes_6_id_idx ON intervalq.outcomes_6 USING btree (id);

CREATE INDEX outcomes_6_number_idx ON intervalq.outcomes_6 USING btree (number) WHERE (together IS NOT NULL);

CREATE INDEX outcomes_7_ended_idx ON intervalq.outcomes_7 USING btree (ended) WHERE (number = 0);

CREATE INDEX outcomes_7_id_idx ON intervalq.outcomes_7 USING btree (id);

CREATE INDEX outcomes_7_number_idx ON intervalq.outcomes_7 USING btree (number) WHERE (together IS NOT NULL);

CREATE INDEX outcomes_8_ended_idx ON intervalq.outcomes_8 USING btree (ended) WHERE (number = 0);

CREATE INDEX outcomes_8_id_idx ON intervalq.outcomes_8 USING btree (id);

CREATE INDEX outcomes_8_number_idx ON intervalq.outcomes_8 USING btree (number) WHERE (together IS NOT NULL);

CREATE INDEX outcomes_9_ended_idx ON intervalq.outcomes_9 USING btree (ended) WHERE (number = 0);

CREATE INDEX outcomes_9_id_idx ON intervalq.outcomes_9 USING btree (id);

CREATE INDEX outcomes_9_number_idx ON intervalq.outcomes_9 USING btree (number) WHERE (together IS NOT NULL);

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

ALTER INDEX intervalq.outcomes_old ATTACH PARTITION intervalq.outcomes_0_ended_idx;

ALTER INDEX intervalq.outcomes_id ATTACH PARTITION intervalq.outcomes_0_id_idx;

ALTER INDEX intervalq.outcomes_number ATTACH PARTITION intervalq.outcomes_0_number_idx;

ALTER INDEX intervalq.outcomes_old ATTACH PARTITION intervalq.outcomes_10_ended_idx;

ALTER INDEX intervalq.outcomes_id ATTACH PARTITION intervalq.outcomes_10_id_idx;

ALTER INDEX intervalq.outcomes_number ATTACH PARTITION intervalq.outcomes_10_number_idx;

ALTER INDEX intervalq.outcomes_old ATTACH PARTITION intervalq.outcomes_11_ended_idx;

ALTER INDEX intervalq.outcomes_id ATTACH PARTITION intervalq.outcomes_11_id_idx;

ALTER INDEX intervalq.outcomes_number ATTACH PARTITION intervalq.outcomes_11_number_idx;

ALTER INDEX intervalq.outcomes_old ATTACH PARTITION intervalq.outcomes_12_ended_idx;

ALTER INDEX intervalq.outcomes_id ATTACH PARTITION intervalq.outcomes_12_id_idx;

ALTER INDEX intervalq.outcomes_number ATTACH PARTITION intervalq.outcomes_12_number_idx;

ALTER INDEX intervalq.outcomes_old ATTACH PARTITION intervalq.outcomes_13_ended_idx;

ALTER INDEX intervalq.outcomes_id ATTACH PARTITION intervalq.outcomes_13_id_idx;

ALTER INDEX intervalq.outcomes_number ATTACH PARTITION intervalq.outcomes_13_number_idx;

ALTER INDEX intervalq.outcomes_old ATTACH PARTITION intervalq.outcomes_14_ended_idx;

ALTER INDEX intervalq.outcomes_id ATTACH PARTITION intervalq.outcomes_14_id_idx;

ALTER INDEX intervalq.outcomes_number ATTACH PARTITION intervalq.outcomes_14_number_idx;

ALTER INDEX intervalq.outcomes_old ATTACH PARTITION intervalq.outcomes_15_ended_idx;

ALTER INDEX intervalq.outcomes_id ATTACH PARTITION intervalq.outcomes_15_id_idx;

ALTER INDEX intervalq.outcomes_number ATTACH PARTITION intervalq.outcomes_15_number_idx;

ALTER INDEX intervalq.outcomes_old ATTACH PARTITION intervalq.outcomes_16_ended_idx;

ALTER INDEX intervalq.outcomes_id ATTACH PARTITION intervalq.outcomes_16_id_idx;

ALTER INDEX intervalq.outcomes_number ATTACH PARTITION intervalq.outcomes_16_number_idx;

ALTER INDEX intervalq.outcomes_old ATTACH PARTITION intervalq.outcomes_17_ended_idx;

ALTER INDEX intervalq.outcomes_id ATTACH PARTITION intervalq.outcomes_17_id_idx;

ALTER INDEX intervalq.outcomes_number ATTACH PARTITION intervalq.outcomes_17_number_idx;

ALTER INDEX intervalq.outcomes_old ATTACH PARTITION intervalq.outcomes_18_ended_idx;

ALTER INDEX intervalq.outcomes_id ATTACH PARTITION intervalq.outcomes_18_id_idx;

ALTER INDEX intervalq.outcomes_number ATTACH PARTITION intervalq.outcomes_18_number_idx;

ALTER INDEX intervalq.outcomes_old ATTACH PARTITION intervalq.outcomes_19_ended_idx;

ALTER INDEX intervalq.outcomes_id ATTACH PARTITION intervalq.outcomes_19_id_idx;

ALTER INDEX intervalq.outcomes_number ATTACH PARTITION intervalq.outcomes_19_number_idx;

ALTER INDEX intervalq.outcomes_old ATTACH PARTITION intervalq.outcomes_1_ended_idx;

ALTER INDEX intervalq.outcomes_id ATTACH PARTITION intervalq.outcomes_1_id_idx;

ALTER INDEX intervalq.outcomes_number ATTACH PARTITION intervalq.outcomes_1_number_idx;

ALTER INDEX intervalq.outcomes_old ATTACH PARTITION intervalq.outcomes_20_ended_idx;

ALTER INDEX intervalq.outcomes_id ATTACH PARTITION intervalq.outcomes_20_id_idx;

ALTER INDEX intervalq.outcomes_number ATTACH PARTITION intervalq.outcomes_20_number_idx;

ALTER INDEX intervalq.outcomes_old ATTACH PARTITION intervalq.outcomes_21_ended_idx;

ALTER INDEX intervalq.outcomes_id ATTACH PARTITION intervalq.outcomes_21_id_idx;

ALTER INDEX intervalq.outcomes_number ATTACH PARTITION intervalq.outcomes_21_number_idx;

ALTER INDEX intervalq.outcomes_old ATTACH PARTITION intervalq.outcomes_22_ended_idx;

ALTER INDEX intervalq.outcomes_id ATTACH PARTITION intervalq.outcomes_22_id_idx;

ALTER INDEX intervalq.outcomes_number ATTACH PARTITION intervalq.outcomes_22_number_idx;

ALTER INDEX intervalq.outcomes_old ATTACH PARTITION intervalq.outcomes_23_ended_idx;

ALTER INDEX intervalq.outcomes_id ATTACH PARTITION intervalq.outcomes_23_id_idx;

ALTER INDEX intervalq.outcomes_number ATTACH PARTITION intervalq.outcomes_23_number_idx;

ALTER INDEX intervalq.outcomes_old ATTACH PARTITION intervalq.outcomes_24_ended_idx;

ALTER INDEX intervalq.outcomes_id ATTACH PARTITION intervalq.outcomes_24_id_idx;

ALTER INDEX intervalq.outcomes_number ATTACH PARTITION intervalq.outcomes_24_number_idx;

ALTER INDEX intervalq.outcomes_old ATTACH PARTITION intervalq.outcomes_25_ended_idx;

ALTER INDEX intervalq.outcomes_id ATTACH PARTITION intervalq.outcomes_25_id_idx;

ALTER INDEX intervalq.outcomes_number ATTACH PARTITION intervalq.outcomes_25_number_idx;

ALTER INDEX intervalq.outcomes_old ATTACH PARTITION intervalq.outcomes_26_ended_idx;

ALTER INDEX intervalq.outcomes_id ATTACH PARTITION intervalq.outcomes_26_id_idx;

ALTER INDEX intervalq.outcomes_number ATTACH PARTITION intervalq.outcomes_26_number_idx;

ALTER INDEX intervalq.outcomes_old ATTACH PARTITION intervalq.outcomes_27_ended_idx;

ALTER INDEX intervalq.outcomes_id ATTACH PARTITION intervalq.outcomes_27_id_idx;

ALTER INDEX intervalq.outcomes_number ATTACH PARTITION intervalq.outcomes_27_number_idx;

ALTER INDEX intervalq.outcomes_old ATTACH PARTITION intervalq.outcomes_28_ended_idx;

ALTER INDEX intervalq.outcomes_id ATTACH PARTITION intervalq.outcomes_28_id_idx;

ALTER INDEX intervalq.outcomes_number ATTACH PARTITION intervalq.outcomes_28_number_idx;

ALTER INDEX intervalq.outcomes_old ATTACH PARTITION intervalq.outcomes_29_ended_idx;

ALTER INDEX intervalq.outcomes_id ATTACH PARTITION intervalq.outcomes_29_id_idx;

ALTER INDEX intervalq.outcomes_number ATTACH PARTITION intervalq.outcomes_29_number_idx;

ALTER INDEX intervalq.outcomes_old ATTACH PARTITION intervalq.outcomes_2_ended_idx;

ALTER INDEX intervalq.outcomes_id ATTACH PARTITION intervalq.outcomes_2_id_idx;

ALTER INDEX intervalq.outcomes_number ATTACH PARTITION intervalq.outcomes_2_number_idx;

ALTER INDEX intervalq.outcomes_old ATTACH PARTITION intervalq.outcomes_3_ended_idx;

ALTER INDEX intervalq.outcomes_id ATTACH PARTITION intervalq.outcomes_3_id_idx;

ALTER INDEX intervalq.outcomes_number ATTACH PARTITION intervalq.outcomes_3_number_idx;

ALTER INDEX intervalq.outcomes_old ATTACH PARTITION intervalq.outcomes_4_ended_idx;

ALTER INDEX intervalq.outcomes_id ATTACH PARTITION intervalq.outcomes_4_id_idx;

ALTER INDEX intervalq.outcomes_number ATTACH PARTITION intervalq.outcomes_4_number_idx;

ALTER INDEX intervalq.outcomes_old ATTACH PARTITION intervalq.outcomes_5_ended_idx;

ALTER INDEX intervalq.outcomes_id ATTACH PARTITION intervalq.outcomes_5_id_idx;

ALTER INDEX intervalq.outcomes_number ATTACH PARTITION intervalq.outcomes_5_number_idx;

ALTER INDEX intervalq.outcomes_old ATTACH PARTITION intervalq.outcomes_6_ended_idx;

ALTER INDEX intervalq.outcomes_id ATTACH PARTITION intervalq.outcomes_6_id_idx;

ALTER INDEX intervalq.outcomes_number ATTACH PARTITION intervalq.outcomes_6_number_idx;

ALTER INDEX intervalq.outcomes_old ATTACH PARTITION intervalq.outcomes_7_ended_idx;

ALTER INDEX intervalq.outcomes_id ATTACH PARTITION intervalq.outcomes_7_id_idx;

ALTER INDEX intervalq.outcomes_number ATTACH PARTITION intervalq.outcomes_7_number_idx;

ALTER INDEX intervalq.outcomes_old ATTACH PARTITION intervalq.outcomes_8_ended_idx;

ALTER INDEX intervalq.outcomes_id ATTACH PARTITION intervalq.outcomes_8_id_idx;

ALTER INDEX intervalq.outcomes_number ATTACH PARTITION intervalq.outcomes_8_number_idx;

ALTER INDEX intervalq.outcomes_old ATTACH PARTITION intervalq.outcomes_9_ended_idx;

ALTER INDEX intervalq.outcomes_id ATTACH PARTITION intervalq.outcomes_9_id_idx;

ALTER INDEX intervalq.outcomes_number ATTACH PARTITION intervalq.outcomes_9_number_idx;
