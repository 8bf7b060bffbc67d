-- Plain tasks: one as a row, the end of a range, and what is swept up.

-- intervalq._saw: whether a row that is visible now was visible in a snapshot, by the transaction that inserted it.
create or replace function intervalq._saw(seen pg_snapshot, inserted xid) returns boolean
language plpgsql stable
set search_path = pg_catalog, pg_temp
as $$
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


-- intervalq._plain_task: a plain task as an ordinary one, which has no times yet; claimed, if it was handed out.
create or replace function intervalq._plain_task(p intervalq.plain, inserted xid) returns intervalq.tasks
language plpgsql stable
set search_path = pg_catalog, pg_temp
as $$
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


-- intervalq._find_plain: the plain tasks among these UUIDs. Each queue that has any is searched for its own.
create or replace function intervalq._find_plain(ids uuid[])
returns table (queue text, part smallint, number bigint)
language plpgsql stable
set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set enable_hashjoin = off
set enable_mergejoin = off
set enable_bitmapscan = off
as $$
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


-- intervalq._lock_plain: lock the plain tasks among these: nobody claims or finishes them until the transaction ends.
create or replace function intervalq._lock_plain(ids uuid[]) returns setof intervalq.tasks
language plpgsql volatile
set search_path = pg_catalog, pg_temp
as $$
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


-- intervalq._take_plain: remove tasks that `_lock_plain` returned from the plain ones; those that are to be changed
-- become ordinary tasks.
create or replace function intervalq._take_plain(gone intervalq.tasks[], changed uuid[], now bigint) returns void
language plpgsql volatile
set search_path = pg_catalog, pg_temp
as $$
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


-- intervalq._finish: end a range, or its first tasks, except those that failed. False: the session doesn't have it.
--   p: [queue, part, low, high, [[number, insert]..], until, count, [number..]]; see `rules.Finished`
create or replace function intervalq._finish(p jsonb, me integer, now bigint) returns boolean
language plpgsql volatile
set search_path = pg_catalog, pg_temp
as $$
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


-- intervalq._finish_all: end several ranges of a session, each as `_finish`.
-- Returns the numbers of those that it doesn't have, and the queues of tasks that became ready.
create or replace function intervalq._finish_all(
    finished jsonb, me integer, now bigint, out lost_ranges integer[], out woken text[]
)
language plpgsql volatile
set search_path = pg_catalog, pg_temp
as $$
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


-- intervalq._writers: transactions that may be inserting to a queue.
create or replace function intervalq._writers(q text) returns text[]
language sql volatile
return array(
    select l.virtualtransaction from pg_locks l
    where l.locktype = 'advisory' and l.mode = 'ShareLock' and l.objsubid = 1
        and l.database = (select d.oid from pg_database d where d.datname = current_database())
        and (l.classid::bigint << 32) | l.objid::bigint = intervalq._queue_lock(q)
        and l.pid is distinct from pg_backend_pid()
);


-- intervalq._sweep: plain tasks that were committed after the head had passed them become ordinary ones. Only heads
-- that have moved are visited, until nothing is left to do below them.
create or replace function intervalq._sweep(now bigint) returns void
language plpgsql volatile
set search_path = pg_catalog, pg_temp
as $$
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


-- intervalq._rest_head: mark a head below which nothing is left to do as not moved. If its queue has no plain tasks
-- left, remove the queue's heads; returns whether they were removed, or should be. It waits for nobody: the next sweep
-- looks at what is locked now.
create or replace function intervalq._rest_head(q text, of smallint, top bigint) returns boolean
language plpgsql volatile
set search_path = pg_catalog, pg_temp
as $$
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
