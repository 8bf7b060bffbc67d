-- Plain tasks: insert them, and claim them in ranges.

-- intervalq.put: insert plain tasks; jsons are joined by character 31.
create or replace function intervalq.put(q text, jsons text) returns void
language plpgsql volatile
set search_path = pg_catalog, pg_temp
set lock_timeout = '4s'
as $$
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


-- intervalq._make_heads: create the heads of a queue that has plain tasks. One counts as moved, so that a sweep looks
-- at this queue even if nobody claims anything.
--   wait: false: another session may be creating them in a long transaction; then nothing is done
create or replace function intervalq._make_heads(q text, wait boolean) returns void
language plpgsql volatile
set search_path = pg_catalog, pg_temp
as $$
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


-- intervalq._claim_ranges: claim plain tasks, from as many parts as it takes.
-- The live sessions divide the parts between them, to avoid contention; a session whose own parts are empty
-- takes from the others.
--   loose: they become ordinary tasks that nobody has claimed, because a claim with a lease of its own can't be one of a
--     range, which is held as long as its session lives; no lines
create or replace function intervalq._claim_ranges(
    q text, wanted integer, me integer, begins integer, loose boolean, now bigint
) returns setof intervalq.line
language plpgsql volatile
set search_path = pg_catalog, pg_temp
as $$
declare
    left_over integer := wanted;
    mine bigint;
    others bigint;
    h intervalq.heads;
    top bigint;
    n integer;
    numbers bigint[];
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
        select min(p.number), max(p.number), count(*), string_agg(p.json, chr(31)), array_agg(p.number),
            pg_current_snapshot()
        into l.at, l.until, n, l.json, numbers, snapshot
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
        if loose then
            perform intervalq._spill(q, h.part, l.at, l.until, -1, null, '', now);
        else
            insert into intervalq.ranges (queue, part, low, high, session, size, begun, snapshot)
            values (q, h.part, l.at, l.until, me, n, case when begins = 0 then '{}'::bigint[] end, snapshot);
            l.kind := 'r';
            l.key := case when n <= l.until - l.at then array_to_string(numbers, ',') end;
            l.queue := q;
            l.place := h.part;
            l.claims := n;
            return next l;
        end if;
        left_over := left_over - n;
        exit when left_over <= 0;
    end loop;
end
$$;


-- intervalq._uuid: a new UUID of version 7.
create or replace function intervalq._uuid() returns uuid
language sql volatile
return encode(
    set_byte(
        overlay(uuid_send(gen_random_uuid()) placing substring(
            int8send((extract(epoch from clock_timestamp()) * 1000)::bigint) from 3
        ) from 1 for 6),
        6, 112 + floor(random() * 16)::integer
    ), 'hex'
)::uuid;


-- intervalq._spill: turn plain tasks into ordinary ones: those of a range, or those that no range covers.
--   tries: -1: nobody had claimed them; 0: they are given back; 1: they were lost
--   begun: which of the lost ones had begun; null: all
create or replace function intervalq._spill(
    q text, of smallint, low bigint, high bigint, tries integer, begun bigint[], why text, now bigint
) returns bigint
language plpgsql volatile
set search_path = pg_catalog, pg_temp
as $$
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
