-- Limits of units per window: their cells, their validation, and how cells expire.

-- intervalq._block: the length of a limit's blocks of cells, in which its units are counted.
create or replace function intervalq._block(l intervalq._limit) returns bigint
language sql immutable
return (l."window" + l.jitter + 63) / 64;


-- intervalq._cell_end: the end of the cell that contains an instant, which may be negative. Each block of this length
-- has three cells.
create or replace function intervalq._cell_end(due bigint, block bigint) returns bigint
language sql immutable
return least(
    9007199254740991,
    due - (due % block + block) % block
        + least(block, ((due % block + block) % block / ((block + 2) / 3) + 1) * ((block + 2) / 3))
);


-- intervalq._granted_end: the end of the last cell ahead that may contain the last granted slot. In earlier versions a
-- cell was as long as a block.
create or replace function intervalq._granted_end(l intervalq._limit, current_due bigint) returns bigint
language plpgsql immutable
as $$
declare
    block constant bigint := intervalq._block(l);
    ends constant bigint := least(9007199254740991, current_due - (current_due % block + block) % block + block);
begin
    if exists (select from generate_series(1, cardinality(l.ahead), 2) as i where l.ahead[i] = ends) then
        return ends;
    end if;
    return intervalq._cell_end(current_due, block);
end
$$;


-- intervalq._next_edge: the first edge at this instant on the server's clock, or after it.
create or replace function intervalq._next_edge(at bigint, edge bigint, width bigint) returns bigint
language sql immutable
return at + ((edge - at) % width + width) % width;


-- intervalq._expiry: the time until which the units of a cell count, given its end; both on the queue's clock.
--   edge, width: the edge and the length of the limit's windows
--   late: how long after its slot a call may arrive: the record's `_lateness` plus the limit's jitter
--   held_total, error: of the record
create or replace function intervalq._expiry(
    ends bigint, edge bigint, width bigint, late bigint, held_total bigint, error bigint
) returns bigint
language sql immutable
return case
    when edge is null then ends + width + late + error
    else intervalq._next_edge(ends + held_total + late, edge, width) - held_total + error
end;


-- intervalq._given: the limits in the form in which they follow the settings of a command.
create or replace function intervalq._given(limits intervalq._limit[]) returns jsonb
language sql immutable
return case when limits is null then '[]' else jsonb_build_array((
    select jsonb_agg(
        jsonb_build_array(x.most, x."window", x.unit, x.jitter)
            || case when x.edge is null then '[]' else jsonb_build_array(x.edge) end
        order by x.n
    )
    from unnest(limits) with ordinality as x (most, "window", unit, jitter, used, ahead, edge, n)
)) end;


-- intervalq._fresh_limits: the limits of a new record, from its settings. If it replaces a lost record, all of their
-- units count as taken.
create or replace function intervalq._fresh_limits(given jsonb, now bigint, was_lost boolean)
returns intervalq._limit[]
language sql immutable
return array(
    select row(
        (x.l ->> 0)::bigint, (x.l ->> 1)::bigint, x.l ->> 2, (x.l ->> 3)::bigint,
        case when was_lost then array[now, (x.l ->> 0)::bigint, now] else '{}' end, '{}'::bigint[],
        (x.l ->> 4)::bigint
    )::intervalq._limit
    from jsonb_array_elements(given) with ordinality as x (l, n) order by x.n
);


-- intervalq._sound_cells: whether these are cells of `size` numbers each, in order, not too many, and with numbers that
-- a record can hold.
create or replace function intervalq._sound_cells(cells bigint[], size integer) returns boolean
language plpgsql immutable
as $$
begin
    if cells = '{}' then
        return true;
    elsif (
        array_ndims(cells) = 1 and array_lower(cells, 1) = 1
        and cardinality(cells) % size = 0 and cardinality(cells) <= 4000 * size
        and -9007199254740991 <= all (cells) and 9007199254740991 >= all (cells)
    ) is not true then
        return false;
    end if;
    for i in 1 .. cardinality(cells) by size loop
        if cells[i + 1] < 1 or cells[i] >= cells[i + size] then
            return false;
        end if;
    end loop;
    return true;
end
$$;


-- intervalq._sound_limits: whether the rules may have written a record's limits.
create or replace function intervalq._sound_limits(r intervalq.queues) returns boolean
language plpgsql immutable
as $$
declare
    l intervalq._limit;
begin
    if (
        r.stepped between 0 and 9007199254740991
        and array_ndims(r.limits) = 1 and array_lower(r.limits, 1) = 1 and cardinality(r.limits) <= 16
    ) is not true then
        return false;
    end if;
    foreach l in array r.limits loop
        if (
            l.most between 1 and 9007199254740991
            and l.window between 1 and 9007199254740991
            and l.unit is not null
            and l.jitter between 0 and 9007199254740991
            and (l.edge is null or l.edge >= 0 and l.edge < l.window)
            and intervalq._sound_cells(l.used, 3) and intervalq._sound_cells(l.ahead, 2)
        ) is not true then
            return false;
        end if;
    end loop;
    return true;
end
$$;


-- intervalq._kept: how long after its slot a unit may still count.
create or replace function intervalq._kept(r intervalq.queues) returns bigint
language plpgsql immutable
as $$
declare
    l intervalq._limit;
    longest bigint := 0;
begin
    foreach l in array r.limits loop
        longest := greatest(longest, l.window + l.jitter + intervalq._block(l));
    end loop;
    return longest + intervalq._lateness(r) + r.error;
end
$$;


-- intervalq._place: the index of the first cell that ends no earlier than this (cells have `size` numbers each); behind
-- the last one if there is none.
create or replace function intervalq._place(cells bigint[], size integer, ends bigint) returns integer
language plpgsql immutable
as $$
declare
    n constant integer := cardinality(cells) / size;
    low integer := 0;  -- the number of cells that end earlier
    high integer := n;
    middle integer;
begin
    if n > 0 and cells[(n - 1) * size + 1] < ends then
        return n * size + 1;  -- the usual case
    end if;
    while low < high loop
        middle := (low + high) / 2;
        if cells[middle * size + 1] < ends then
            low := middle + 1;
        else
            high := middle;
        end if;
    end loop;
    return low * size + 1;
end
$$;


-- intervalq._put: the cells ahead after adding others. There are at most 4000: beyond that, neighbours are merged into
-- the one that ends later.
create or replace function intervalq._put(cells bigint[], others bigint[]) returns bigint[]
language plpgsql immutable
as $$
declare
    n integer := cardinality(cells);
    ends bigint;
    units bigint;
    place integer;
begin
    for i in 1 .. cardinality(others) by 2 loop
        ends := least(9007199254740991, others[i]);
        units := others[i + 1];
        continue when units = 0;
        place := intervalq._place(cells, 2, ends);
        if place < n and (cells[place] = ends or n >= 8000) then
            cells[place + 1] := cells[place + 1] + units;
        elsif n >= 8000 then
            cells[n - 1] := ends;
            cells[n] := cells[n] + units;
        elsif place > n then
            cells := cells || ends;
            cells := cells || units;
        else
            cells := cells[:place - 1] || array[ends, units] || cells[place:];
        end if;
        n := cardinality(cells);
    end loop;
    return cells;
end
$$;


-- intervalq._put_used: `_put` for used cells, which have three numbers; merged cells keep the later third number.
create or replace function intervalq._put_used(cells bigint[], others bigint[]) returns bigint[]
language plpgsql immutable
as $$
declare
    n integer := cardinality(cells);
    ends bigint;
    place integer;
begin
    for i in 1 .. cardinality(others) by 3 loop
        ends := least(9007199254740991, others[i]);
        place := intervalq._place(cells, 3, ends);
        if place > n and n >= 12000 then
            place := n - 2;
            cells[place] := ends;
        end if;
        if place < n and (cells[place] = ends or n >= 12000) then
            cells[place + 1] := cells[place + 1] + others[i + 1];
            cells[place + 2] := greatest(cells[place + 2], others[i + 2]);
        else
            cells := cells[:place - 1] || array[ends, others[i + 1], others[i + 2]] || cells[place:];
        end if;
        n := cardinality(cells);
    end loop;
    return cells;
end
$$;


-- intervalq._as_used: cells ahead as used cells, each moved by `later`.
create or replace function intervalq._as_used(ahead bigint[], later bigint) returns bigint[]
language plpgsql immutable
as $$
declare
    cells bigint[] := '{}';
begin
    for i in 1 .. cardinality(ahead) by 2 loop
        cells := cells || array[ahead[i] + later, ahead[i + 1], ahead[i]];
    end loop;
    return cells;
end
$$;


-- intervalq._age: the record after moving the units of slots that have passed to the store's clock, and removing those
-- that are in no window any more. Cells behind the last granted slot stay: if it is granted late, they lie ahead again.
create or replace function intervalq._age(r intervalq.queues) returns intervalq.queues
language plpgsql immutable
as $$
declare
    late constant bigint := intervalq._lateness(r);
    lag constant bigint := r.held_total + r.stepped;
    over constant bigint := intervalq._clock(r, r.last_now) - late;
    l intervalq._limit;
    n integer;  -- how many numbers of the cells are removed
    stays bigint[];
begin
    for k in 1 .. cardinality(r.limits) loop
        l := r.limits[k];
        n := 0;
        while l.ahead[n + 1] <= over loop
            n := n + 2;
        end loop;
        if n > 0 then
            l.used := intervalq._put_used(l.used, intervalq._as_used(l.ahead[:n], lag));
            l.ahead := l.ahead[n + 1:];
            r.limits[k] := l;
        end if;
        n := 0;
        stays := '{}';
        while intervalq._expiry(
            l.used[n + 1] - lag, l.edge, l.window, l.jitter + late, r.held_total, r.error
        ) <= over loop
            if l.used[n + 3] > r.current_due then
                stays := stays || l.used[n + 1:n + 3];
            end if;
            n := n + 3;
        end loop;
        if cardinality(stays) < n then
            r.limits[k].used := stays || l.used[n + 1:];
        end if;
    end loop;
    return r;
end
$$;


-- intervalq._stayed: a limit after a hold that doesn't move the slots in cells up to `last`.
create or replace function intervalq._stayed(l intervalq._limit, last bigint, lag bigint)
returns intervalq._limit
language plpgsql immutable
as $$
declare
    n integer := 0;
begin
    while l.ahead[n + 1] <= last loop
        n := n + 2;
    end loop;
    if n > 0 then
        l.used := intervalq._put_used(l.used, intervalq._as_used(l.ahead[:n], lag));
        l.ahead := l.ahead[n + 1:];
    end if;
    return l;
end
$$;


-- intervalq._stay: a record whose hold begins: granted slots stay where they are, and so do their units. Other slots
-- move; a cell that contains both kinds moves.
create or replace function intervalq._stay(r intervalq.queues) returns intervalq.queues
language plpgsql immutable
as $$
declare
    l intervalq._limit;
begin
    for k in 1 .. cardinality(r.limits) loop
        l := r.limits[k];
        r.limits[k] := intervalq._stayed(
            l,
            case when greatest(r.current, r.revoked_through) < r.ticket then r.current_due
            else intervalq._cell_end(r.current_due, intervalq._block(l)) end,
            r.held_total + r.stepped
        );
    end loop;
    return r;
end
$$;


-- intervalq._respread: the record with new limits, whose cells get what was counted for the old ones.
--   given: lists of most, window, unit, jitter, and perhaps edge
create or replace function intervalq._respread(r intervalq.queues, given jsonb) returns intervalq.queues
language plpgsql immutable
as $$
declare
    others constant intervalq._limit[] := r.limits;
    l intervalq._limit;
    source intervalq._limit;
    block bigint;
begin
    if given = '[]' then
        r.limits := null;
        r.stepped := null;
        return r;
    end if;
    r.stepped := coalesce(r.stepped, 0);
    r.limits := intervalq._fresh_limits(given, 0, false);
    for k in 1 .. cardinality(r.limits) loop
        l := r.limits[k];
        block := intervalq._block(l);
        -- The next longer window has counted all that matters, a shorter one only a part of it.
        select x.most, x."window", x.unit, x.jitter, x.used, x.ahead, x.edge into source
        from unnest(others) with ordinality as x (most, "window", unit, jitter, used, ahead, edge, n)
        where x.unit = l.unit
        order by x."window" < l."window", abs(x."window" - l."window"), x.n
        limit 1;
        continue when source.unit is null;
        if intervalq._block(source) = block then
            l.used := source.used;
            l.ahead := source.ahead;
        else
            for i in 1 .. cardinality(source.used) by 3 loop
                l.used := l.used || array[source.used[i], source.used[i + 1], case source.used[i + 2]
                    when -9007199254740991 then -9007199254740991
                    else intervalq._cell_end(source.used[i + 2] - 1, block)
                end];
            end loop;
            for i in 1 .. cardinality(source.ahead) by 2 loop
                l.ahead := intervalq._put(
                    l.ahead,
                    array[intervalq._cell_end(least(source.ahead[i] - 1, r.current_due), block), source.ahead[i + 1]]
                );
            end loop;
        end if;
        r.limits[k] := l;
    end loop;
    return r;
end
$$;
