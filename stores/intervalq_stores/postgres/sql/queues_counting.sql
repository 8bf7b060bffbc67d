-- Limits: counting what was taken, and finding when there is room.

-- intervalq._taken: the units that tickets take of each limit, ticket by ticket. A ticket without units takes its cost
-- of each limit that counts starts.
--   costs, units: those of the first tickets; the others cost one slot, and have no units
create or replace function intervalq._taken(r intervalq.queues, costs bigint[], units jsonb, wanted bigint)
returns bigint[]
language plpgsql immutable
as $$
declare
    kinds constant integer := cardinality(r.limits);
    starts boolean[] := '{}';
    taken bigint[] := '{}';
    each jsonb;
begin
    for k in 1 .. kinds loop
        starts[k] := (r.limits[k]).unit = 'starts';
    end loop;
    for i in 1 .. wanted loop
        each := units -> (i - 1);
        for k in 1 .. kinds loop
            taken := taken || case
                when each <> '[]' then coalesce((each ->> (k - 1))::bigint, 0)
                when starts[k] then coalesce(costs[i], 1)
                else 0
            end;
        end loop;
    end loop;
    return taken;
end
$$;


-- intervalq._taken_by: the units that a ticket with a slot takes of each limit.
create or replace function intervalq._taken_by(r intervalq.queues, slot jsonb) returns bigint[]
language sql immutable
return intervalq._taken(r, array[(slot ->> 2)::bigint], jsonb_build_array(slot - 0 - 0 - 0), 1);


-- intervalq._fixed: the place of the cell, of a limit of a key, in which the slot at this instant on the server's clock
-- was fixed.
create or replace function intervalq._fixed(l intervalq._limit, at bigint) returns integer
language plpgsql immutable
as $$
declare
    ends constant bigint := intervalq._cell_end(at, intervalq._block(l));
    place constant integer := intervalq._place(l.used, 3, ends);
begin
    return case
        when l.edge is null and l.used[place] = ends and l.used[place + 2] = -9007199254740991 then place
    end;
end
$$;


-- intervalq._uncount: the record after subtracting the units of a slot that won't be used.
create or replace function intervalq._uncount(r intervalq.queues, slot jsonb) returns intervalq.queues
language plpgsql immutable
as $$
declare
    taken constant bigint[] := intervalq._taken_by(r, slot);
    is_granted constant boolean := (slot ->> 0)::bigint <= r.current;
    l intervalq._limit;
    units bigint;
    ends bigint;
    place integer;
begin
    for k in 1 .. cardinality(r.limits) loop
        l := r.limits[k];
        units := taken[k];
        continue when units = 0;
        place := case when is_granted then intervalq._fixed(l, (slot ->> 1)::bigint + r.held_total + r.stepped) end;
        if place is not null then
            r.limits[k].used := intervalq._added(l.used, 3, place, -units);
            continue;
        end if;
        ends := intervalq._cell_end((slot ->> 1)::bigint, intervalq._block(l));
        place := cardinality(l.ahead) - 1;
        while l.ahead[place] > ends loop
            place := place - 2;
        end loop;
        if l.ahead[place] <> ends then
            null;  -- the cell was merged with another one: the units stay counted
        elsif l.ahead[place + 1] > units then
            r.limits[k].ahead[place + 1] := l.ahead[place + 1] - units;
        elsif l.ahead[place + 1] <= units then
            r.limits[k].ahead := l.ahead[:place - 1] || l.ahead[place + 2:];
        end if;
    end loop;
    return r;
end
$$;


-- intervalq._added: cells of `size` numbers each, after adding units (or subtracting them, if negative) to the cell at
-- this place; a cell that has no units left is removed.
create or replace function intervalq._added(cells bigint[], size integer, place integer, more bigint)
returns bigint[]
language plpgsql immutable
as $$
begin
    if cells[place + 1] + more <= 0 then
        return cells[:place - 1] || cells[place + size:];
    end if;
    cells[place + 1] := cells[place + 1] + more;
    return cells;
end
$$;


-- intervalq._correct: the record after correcting the units of slots whose jobs' real costs are now known, as far as
-- they still count. Holds may have split the cell of a slot: the slot is in the first part that ended after its grant.
--   settled: an array of [due, lag, more...], one for each slot
create or replace function intervalq._correct(r intervalq.queues, settled jsonb) returns intervalq.queues
language plpgsql immutable
as $$
declare
    lag constant bigint := r.held_total + r.stepped;
    late constant bigint := intervalq._lateness(r);
    over constant bigint := intervalq._clock(r, r.last_now) - late;
    l intervalq._limit;
    ends bigint;
    at bigint;  -- the earliest time on the server's clock at which its cell ended
    more bigint;
    part integer;
    place integer;
begin
    for k in 1 .. cardinality(r.limits) loop
        l := r.limits[k];
        for i in 0 .. jsonb_array_length(settled) - 1 loop
            more := settled -> i ->> (k + 1);
            ends := intervalq._cell_end((settled -> i ->> 0)::bigint, intervalq._block(l));
            at := ends + (settled -> i ->> 1)::bigint;
            continue when coalesce(more, 0) = 0 
                or intervalq._expiry(
                    at - lag, l.edge, l.window, l.jitter + late, r.held_total, r.error
                ) <= over;
            part := (
                select min(n) from generate_series(1, cardinality(l.used), 3) as n
                where l.used[n + 2] = ends and l.used[n] >= at
            );
            place := intervalq._place(l.ahead, 2, ends);
            if part is not null then
                l.used := intervalq._added(l.used, 3, part, more);
            elsif l.ahead[place] = ends and more < 0 then
                l.ahead := intervalq._added(l.ahead, 2, place, more);
            elsif more > 0 and (l.ahead[place] = ends or ends > over) then
                l.ahead := intervalq._put(l.ahead, array[ends, more]);
            elsif more > 0 then
                l.used := intervalq._put_used(l.used, array[ends + lag, more, ends]);
            end if;
        end loop;
        r.limits[k] := l;
    end loop;
    return r;
end
$$;


-- intervalq._uncount_behind: the record after subtracting the units of all slots behind the last granted one.
create or replace function intervalq._uncount_behind(r intervalq.queues) returns intervalq.queues
language plpgsql immutable
as $$
declare
    l intervalq._limit;
    n integer;
    ends bigint;
begin
    for k in 1 .. cardinality(r.limits) loop
        l := r.limits[k];
        n := cardinality(l.ahead);
        ends := intervalq._granted_end(l, r.current_due);
        while l.ahead[n - 1] > ends loop
            n := n - 2;
        end loop;
        r.limits[k].ahead := l.ahead[:n];
    end loop;
    return r;
end
$$;


-- intervalq._count: the record after counting the units of tickets in the cells of their slots.
--   taken: the result of `_taken`
create or replace function intervalq._count(r intervalq.queues, dues bigint[], taken bigint[])
returns intervalq.queues
language plpgsql immutable
as $$
declare
    kinds constant integer := cardinality(r.limits);
    cells bigint[];
begin
    for k in 1 .. kinds loop
        cells := '{}';
        for i in 1 .. cardinality(dues) loop
            cells := cells || intervalq._cell_end(dues[i], intervalq._block(r.limits[k]));
            cells := cells || taken[(i - 1) * kinds + k];
        end loop;
        r.limits[k].ahead := intervalq._put((r.limits[k]).ahead, cells);
    end loop;
    return r;
end
$$;


-- intervalq._count_lost: the record after counting what it has lost: one start for each lost ticket, and all that a
-- limit of other units allows.
--   mark: [ticket, due, late_total]
create or replace function intervalq._count_lost(r intervalq.queues, mark jsonb) returns intervalq.queues
language plpgsql immutable
as $$
declare
    lost bigint[] := '{}';
    l intervalq._limit;
begin
    foreach l in array r.limits loop
        lost := lost || case l.unit
            when 'starts' then least(l.most, (mark ->> 0)::bigint - r.ticket)
            else l.most
        end;
    end loop;
    return intervalq._count(r, array[(mark ->> 1)::bigint], lost);
end
$$;


-- intervalq._bring_back: the record after its queue's clock was set back: slots that had passed lie ahead again.
--   length: how far it was set back
--   slots: those that are granted late now: their units may have been forgotten, or be fixed where the slots were
create or replace function intervalq._bring_back(r intervalq.queues, length bigint, slots jsonb)
returns intervalq.queues
language plpgsql immutable
as $$
declare
    over constant bigint := intervalq._clock(r, r.last_now) - intervalq._lateness(r);
    l intervalq._limit;
    back bigint[];
    stays bigint[];
    place integer;
    ends bigint;
    at bigint;
    units bigint;
begin
    for k in 1 .. cardinality(r.limits) loop
        l := r.limits[k];
        back := '{}';
        stays := '{}';
        for i in 1 .. cardinality(l.used) by 3 loop
            -- Cells that were prolonged stay where they are: there they count for longer.
            if l.used[i + 2] > over and l.used[i] - r.held_total - r.stepped <= l.used[i + 2] then
                back := back || array[l.used[i + 2], l.used[i + 1]];
            else
                stays := stays || l.used[i:i + 2];
            end if;
        end loop;
        l.used := stays;
        l.ahead := intervalq._put(l.ahead, back);
        back := '{}';
        for i in 0 .. jsonb_array_length(slots) - 1 loop
            units := (intervalq._taken_by(r, slots -> i))[k];
            at := (slots -> i ->> 1)::bigint + r.held_total + r.stepped;
            place := case
                when units > 0 and (slots -> i ->> 0)::bigint <= r.current then intervalq._fixed(l, at - length)
            end;
            if place is not null then
                l.used := intervalq._put_used(
                    intervalq._added(l.used, 3, place, -units),
                    array[intervalq._cell_end(at, intervalq._block(l)), units, -9007199254740991]
                );
                continue;
            end if;
            ends := intervalq._cell_end((slots -> i ->> 1)::bigint, intervalq._block(l));
            place := intervalq._place(l.ahead, 2, ends);
            if l.ahead[place] is distinct from ends then
                back := back || array[ends, units];
            end if;
        end loop;
        l.ahead := intervalq._put(l.ahead, back);
        r.limits[k] := l;
    end loop;
    return r;
end
$$;


-- intervalq._count_longer: the record after extending the time for which granted slots count, because their jobs may
-- begin later than the present settings allow. No other slots may be ahead: those not granted were revoked.
create or replace function intervalq._count_longer(r intervalq.queues, length bigint) returns intervalq.queues
language plpgsql immutable
as $$
declare
    l intervalq._limit;
begin
    for k in 1 .. cardinality(r.limits) loop
        l := r.limits[k];
        for i in 1 .. cardinality(l.used) by 3 loop
            l.used[i] := l.used[i] + length;
        end loop;
        l.used := intervalq._put_used('{}', l.used);
        l.used := intervalq._put_used(l.used, intervalq._as_used(l.ahead, r.held_total + r.stepped + length));
        l.ahead := '{}';
        r.limits[k] := l;
    end loop;
    return r;
end
$$;


-- intervalq._counts_in_place: whether the units of a granted slot count where it is on the queue's clock. They don't if
-- a hold has ended since, or if they were prolonged. If that is so for any cell of later slots, these may be merged
-- with the slot's own.
create or replace function intervalq._counts_in_place(r intervalq.queues, slot jsonb) returns boolean
language plpgsql immutable
as $$
declare
    taken constant bigint[] := intervalq._taken_by(r, slot);
    l intervalq._limit;
    ends bigint;
    is_known boolean;
begin
    for k in 1 .. cardinality(r.limits) loop
        continue when taken[k] = 0;
        l := r.limits[k];
        ends := intervalq._cell_end((slot ->> 1)::bigint, intervalq._block(l));
        is_known := l.ahead[intervalq._place(l.ahead, 2, ends)] is not distinct from ends;
        for i in 3 .. cardinality(l.used) by 3 loop
            if l.used[i] >= ends and l.used[i - 2] <> l.used[i] + r.held_total + r.stepped then
                return false;
            end if;
            is_known := is_known or l.used[i] = ends;
        end loop;
        if not is_known then
            return false;
        end if;
    end loop;
    return true;
end
$$;


-- intervalq._counting: all units of a limit that count, in cells on the queue's clock, which is `lag` behind. Slots
-- behind the `last_due` granted one may still be granted late, and move new ones along: they count where they are on
-- this clock, even if it was held since then.
create or replace function intervalq._counting(l intervalq._limit, lag bigint, last_due bigint) returns bigint[]
language plpgsql immutable
as $$
declare
    cells bigint[] := '{}';
    last bigint := -9007199254740991;
    is_sorted boolean := true;
    ends bigint;
begin
    for i in 1 .. cardinality(l.used) by 3 loop
        ends := l.used[i] - lag;
        if l.used[i + 2] > last_due then
            ends := greatest(ends, l.used[i + 2]);
        end if;
        is_sorted := is_sorted and ends >= last;
        last := ends;
        cells := cells || array[ends, l.used[i + 1]];
    end loop;
    cells := cells || l.ahead;
    if not is_sorted or last > l.ahead[1] then
        cells := array(
            select x.number
            from generate_series(1, cardinality(cells), 2) as i,
                lateral (values (1, cells[i]), (2, cells[i + 1])) as x (n, number)
            order by cells[i], i, x.n
        );
    end if;
    return cells;
end
$$;


-- intervalq._fit: the first slots from `due` on in which every limit has room for the new tickets, in order, up to the
-- first that would overflow. The first element is the time at which the first ticket would have had room.
--   costs: those of the first tickets, in slots; the others cost one slot
--   taken: the result of `_taken`
--   apart: how many may lie behind gaps, see `Advance.apart`; null: all
create or replace function intervalq._fit(
    r intervalq.queues, costs bigint[], taken bigint[], wanted bigint, due bigint, clock bigint, apart bigint
) returns bigint[]
language plpgsql immutable
as $$
declare
    kinds constant integer := cardinality(r.limits);
    found bigint[];
    cells bigint[] := '{}';    -- the cells of all limits; each limit's are followed by space for the new slots
    firsts integer[] := '{}';  -- for each limit: the first place in `cells` that still counts,
    lasts integer[] := '{}';   -- and the last one
    counted bigint[] := '{}';  -- the units between them
    edges bigint[] := '{}';    -- with `widths` and `delays`, when units expire: see `_expiry`
    widths bigint[] := '{}';
    delays bigint[] := '{}';
    over bigint;               -- the time until which the first of them count
    lengths bigint[] := '{}';  -- the lengths of the cells
    most bigint[] := '{}';
    l intervalq._limit;
    counting bigint[];
    at bigint;
    latest bigint;
    units bigint;
begin
    for k in 1 .. kinds loop
        l := r.limits[k];
        counting := intervalq._counting(l, r.held_total + r.stepped,
            case when greatest(r.current, r.revoked_through) < r.ticket then r.current_due else 9007199254740991 end);
        firsts[k] := cardinality(cells) + 1;
        lasts[k] := cardinality(cells) + cardinality(counting);
        counted[k] := (select coalesce(sum(counting[i]), 0) from generate_series(2, cardinality(counting), 2) as i);
        edges[k] := l.edge;
        widths[k] := l.window;
        delays[k] := l.jitter + intervalq._lateness(r);
        lengths[k] := intervalq._block(l);
        most[k] := l.most;
        cells := cells || counting || array_fill(0::bigint, array[2 * wanted::integer]);
    end loop;
    for i in 0 .. wanted loop  -- 0: when the first one would have had room
        latest := case i when 0 then least(due, clock) else due end;
        for k in 1 .. kinds loop
            units := least(taken[greatest(i - 1, 0) * kinds + k], most[k]);
            continue when units = 0;
            at := case i when 0 then least(due, clock) else due end;
            while firsts[k] < lasts[k] loop
                over := intervalq._expiry(cells[firsts[k]], edges[k], widths[k], delays[k], r.held_total, r.error);
                exit when over > at and counted[k] + units <= most[k];
                at := greatest(at, over);
                counted[k] := counted[k] - cells[firsts[k] + 1];
                firsts[k] := firsts[k] + 2;
            end loop;
            latest := greatest(latest, at);
        end loop;
        exit when i > apart and latest > due;
        due := greatest(due, latest);
        exit when i > 0 and coalesce(costs[i], 1) > (9007199254740991 - due) / r.interval;
        found := found || case i when 0 then latest else due end;
        continue when i = 0;
        for k in 1 .. kinds loop
            units := taken[(i - 1) * kinds + k];
            continue when units = 0;
            cells[lasts[k] + 1:lasts[k] + 2] := array[intervalq._cell_end(due, lengths[k]), units];
            lasts[k] := lasts[k] + 2;
            counted[k] := counted[k] + units;
        end loop;
        due := due + coalesce(costs[i], 1) * r.interval;
    end loop;
    return found;
end
$$;


-- intervalq._units: the units of the first new tickets, as they were given: a list for each ticket.
--   missed: slots that new tickets replace; given: the units of the command
create or replace function intervalq._units(missed jsonb, given jsonb, wanted bigint) returns jsonb
language sql immutable
return (
    select coalesce(jsonb_agg(x.units order by x.n), '[]')
    from (
        select e.slot - 0 - 0 - 0, e.n from jsonb_array_elements(missed) with ordinality as e (slot, n)
        union all
        select e.units, jsonb_array_length(missed) + e.n
        from jsonb_array_elements(given) with ordinality as e (units, n)
    ) as x (units, n)
    where x.n <= wanted
);


-- intervalq._take_limited: `_take` for a record that has limits.
create or replace function intervalq._take_limited(
    a intervalq._answer, command jsonb, now bigint, costs bigint[], units jsonb, wanted bigint
) returns intervalq._answer
language plpgsql immutable
as $$
declare
    r intervalq.queues := a.state;
    clock constant bigint := intervalq._clock(r, now);
    free constant bigint := r.due + r.interval;
    notice constant bigint := greatest(0, (command ->> 'notice')::bigint - intervalq._tolerance(r));
    due constant bigint := greatest(free, clock + notice - intervalq._credit(r));
    taken constant bigint[] := intervalq._taken(r, costs, units, wanted);
    found constant bigint[] := intervalq._fit(
        r, costs, taken, wanted, due, clock, (command ->> 'apart')::bigint
    );
    dues constant bigint[] := found[2:];
    reach constant bigint := clock + case (command -> 'high_water_mark' ->> 0)::bigint <> r.ticket
        when true then least((command ->> 'reach')::bigint, (command ->> 'notice')::bigint)
        else (command ->> 'reach')::bigint
    end;
    t constant bigint := r.ticket;
begin
    a.count := cardinality(dues);
    if a.count = 0 then
        return a;
    end if;
    a.first := array[t + 1, dues[1], coalesce(costs[1], 1)];
    a.dues := dues;
    a.units := case when a.count < wanted then intervalq._units('[]', units, a.count) else units end;
    if 1 < any (costs[:a.count]) then
        a.costs := array(select coalesce(costs[i], 1) from generate_series(1, a.count) as i order by i);
    end if;
    r := intervalq._count(r, dues, taken);
    r.ticket := t + a.count;
    r.due := dues[a.count] + (coalesce(costs[a.count], 1) - 1) * r.interval;
    while a.begun < a.count and dues[a.begun + 1] <= reach and r.held_since is null loop
        a.begun := a.begun + 1;
        -- Without a limit of running jobs, only the last one matters.
        if r.max_running > 0 or a.begun = a.count or dues[a.begun + 1] > reach then
            r := intervalq._grant(
                r, t + a.begun, dues[a.begun] + (coalesce(costs[a.begun], 1) - 1) * r.interval, now,
                (command ->> 'lease')::bigint
            );
        end if;
    end loop;
    if a.begun > 0 and a.granted = '{}' and free <= clock and found[1] <= clock then
        a.at_once := true;
    end if;
    a.state := r;
    return a;
end
$$;


-- intervalq._sooner: the answer after the next ticket to be granted, whose slot is too far ahead, was granted in the
-- soonest slot before its own in which the windows have room; the same answer if it is another one, or that is too far
-- ahead, too. See `rules.Advance.ahead`.
--   slot: [ticket, due, cost, units...]
create or replace function intervalq._sooner(a intervalq._answer, slot jsonb, command jsonb, now bigint)
returns intervalq._answer
language plpgsql immutable
as $$
declare
    r intervalq.queues := a.state;
    counted constant intervalq.queues := intervalq._uncount(r, slot);
    granted constant intervalq.queues := intervalq._uncount_behind(counted);
    before intervalq.queues := granted;
    clock constant bigint := intervalq._clock(r, now);
    free constant bigint := r.current_due + r.interval;
    notice constant bigint := greatest(0, (command ->> 'notice')::bigint - intervalq._tolerance(r));
    cost constant bigint := coalesce((slot ->> 2)::bigint, 1);
    taken constant bigint[] := intervalq._taken_by(r, slot);
    found constant bigint[] := intervalq._fit(
        before, array[cost], taken, 1, greatest(free, clock + notice - intervalq._credit(r)), clock, null
    );
    ends constant bigint := found[2] + (cost - 1) * r.interval;
begin
    if (slot ->> 0)::bigint <> greatest(r.current, r.revoked_through) + 1 or found[2] is null
        or found[2] > clock + (command ->> 'ahead')::bigint or found[2] >= (slot ->> 1)::bigint
    then
        return a;
    end if;
    before := intervalq._count(before, found[2:2], taken);
    for k in 1 .. cardinality(r.limits) loop
        before.limits[k].ahead := intervalq._put(
            (before.limits[k]).ahead, (counted.limits[k]).ahead[cardinality((granted.limits[k]).ahead) + 1:]
        );
    end loop;
    if (slot ->> 0)::bigint = r.ticket then
        before.due := ends;
    end if;
    a.granted := array[(slot ->> 0)::bigint];
    a.at_once := free <= clock and found[1] <= clock;
    a.state := intervalq._grant(before, a.granted[1], ends, now, (command ->> 'lease')::bigint);
    a.state.revoked_through := a.granted[1];
    return a;
end
$$;
