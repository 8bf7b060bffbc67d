-- Looks: tasks, sessions and counts, without a lock.

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


-- intervalq._first_of: the first tasks of a queue by time, as tuple ids: up to `most` of the free ones, of those behind
-- others, and of those that each session has claimed.
create or replace function intervalq._first_of(q text, most bigint) returns setof tid
language plpgsql stable
set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set enable_bitmapscan = off
as $$
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


-- intervalq.tasks_of: `rules.Select`; ids are UUIDs. Plain tasks, which have no times, come last.
create or replace function intervalq.tasks_of(
    q text, ids uuid[], who text, with_values boolean, most bigint
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
$$;


-- intervalq._holders: the sessions that have claimed tasks, of any queue.
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


-- intervalq._queues: the names of queues that have tasks: of those named, or those with a prefix; none given: of all.
-- Each takes one look into an index, however many tasks it has.
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


-- intervalq._counts: how many tasks of each kind these queues have: `found` has how many are ready, for later, behind
-- others, plain and claimed. There may be millions, so each is counted up to its bound; `seen` is above the bound if
-- there are more. The indexes also have claims with a lease among the tasks for later, and tasks whose lease has ended
-- among the claims: at most as many of these are skipped.
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


-- intervalq._sampled: an estimate of the numbers of tasks, from about a hundred evenly spaced pages: for each queue, an
-- array like `found` of `_counts`.
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


-- intervalq.stats: `rules.Count`; plain tasks are among the ready and the claimed ones. If more than ten thousand
-- claims have a lease, the number of tasks for later is estimated even if it is small; so is the number of claims, if
-- as many leases have ended. All statements see one moment (`stable`): a task that is claimed meanwhile would otherwise
-- be missing, if nobody knew its session before, and its queue would seem to be empty.
create or replace function intervalq.stats(names text[], prefixes text[], most bigint, now bigint)
returns table (
    name text, size bigint, claimed bigint, ready bigint, future bigint, inbox bigint, most_claims integer,
    exact boolean
)
language plpgsql stable
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
