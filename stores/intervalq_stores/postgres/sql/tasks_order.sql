-- The order of claims in a queue whose tasks have priorities: `intervalq/tasks/_spec/order.py`.

-- intervalq._levels: the priorities that occur among a queue's tasks that are ready, or will be. Each takes one look into
-- an index, however many tasks it has.
create or replace function intervalq._levels(q text) returns smallint[]
language plpgsql stable
set search_path = pg_catalog, pg_temp
as $$
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


-- intervalq._claim_up_to: claim the first ready tasks of a queue, up to a rank.
--   levels: only tasks of these priorities; low, high: only those whose rank is at least `low` and at most `high`
create or replace function intervalq._claim_up_to(
    q text, wanted integer, levels smallint[], low bigint, high bigint, who text, me integer, begins integer,
    ends bigint, again bigint, now bigint
) returns setof intervalq.line
language plpgsql volatile
set search_path = pg_catalog, pg_temp
as $$
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


-- intervalq._claim_ranked: claim ready tasks of a queue by rank; parameters as for `_claim_ready`. It locks only those
-- that it claims, so others can claim the next ones meanwhile.
create or replace function intervalq._claim_ranked(
    q text, wanted integer, who text, me integer, begins integer, ends bigint, again bigint, now bigint
) returns setof intervalq.line
language plpgsql volatile
set search_path = pg_catalog, pg_temp
as $$
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
