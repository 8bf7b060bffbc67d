-- Limits with fixed windows: what holds do to their slots, as in `intervalq/_spec/edges.py`.

-- intervalq._moved: prepare the record for a hold of this length, which moves its slots (back, if it is negative). If
-- an edge lies between the first slot of a limit, or the beginning of the hold, and the end of its last slot, all slots
-- that aren't granted are revoked, to be counted anew, and the units of granted ones stay in their windows.
create or replace function intervalq._moved(r intervalq.queues, length bigint) returns intervalq.queues
language plpgsql immutable
as $$
declare
    clock constant bigint := intervalq._clock(r, r.last_now);
    late constant bigint := intervalq._lateness(r);
    l intervalq._limit;
    are_among boolean := false;
    first bigint;
    last bigint;
begin
    if greatest(r.current, r.revoked_through) = r.ticket then
        return r;
    end if;
    foreach l in array r.limits loop
        continue when l.edge is null or l.ahead = '{}';
        first := least(l.ahead[1] - intervalq._block(l), clock) + least(0, length);
        last := l.ahead[cardinality(l.ahead) - 1] + l.jitter + late + greatest(0, length);
        are_among := are_among or intervalq._next_edge(first + r.held_total + 1, l.edge, l.window) < last + r.held_total;
    end loop;
    if not are_among then
        return r;
    end if;
    for k in 1 .. cardinality(r.limits) loop
        l := r.limits[k];
        continue when l.edge is null;
        r.limits[k] := intervalq._stayed(l, intervalq._granted_end(l, r.current_due), r.held_total + r.stepped);
    end loop;
    return intervalq._revoke_all(r);
end
$$;


-- intervalq._stepped: prepare the record for a server's clock that was set back and reads `now`. A window whose
-- beginning has been forgotten counts as full.
create or replace function intervalq._stepped(r intervalq.queues, now bigint) returns intervalq.queues
language plpgsql immutable
as $$
declare
    late constant bigint := intervalq._lateness(r);
    l intervalq._limit;
    kept bigint;
begin
    r := intervalq._moved(r, now - r.last_now);
    for k in 1 .. cardinality(r.limits) loop
        l := r.limits[k];
        continue when l.edge is null;
        kept := late + ((r.last_now - late - l.edge) % l.window + l.window) % l.window;
        if ((now - l.edge) % l.window + l.window) % l.window > kept then
            r.limits[k].used := intervalq._put_used(
                l.used, array[r.last_now + r.stepped, l.most, -9007199254740991]
            );
        end if;
    end loop;
    return r;
end
$$;


-- intervalq._are_passed: whether a unit would count in another window if the queue's clock were set back by this
-- length.
--   slots: those that would be granted late
create or replace function intervalq._are_passed(r intervalq.queues, slots jsonb, length bigint) returns boolean
language plpgsql immutable
as $$
declare
    late constant bigint := intervalq._lateness(r);
    l intervalq._limit;
    at bigint;
begin
    foreach l in array r.limits loop
        continue when l.edge is null;
        for i in 1 .. cardinality(l.ahead) by 2 loop
            at := l.ahead[i] + r.held_total + l.jitter + late;
            if intervalq._next_edge(at, l.edge, l.window)
                <> intervalq._next_edge(at + length, l.edge, l.window)
            then
                return true;
            end if;
        end loop;
        for i in 0 .. jsonb_array_length(slots) - 1 loop
            at := intervalq._cell_end((slots -> i ->> 1)::bigint, intervalq._block(l)) + r.held_total + l.jitter + late;
            if intervalq._next_edge(at, l.edge, l.window)
                <> intervalq._next_edge(at + length, l.edge, l.window)
            then
                return true;
            end if;
        end loop;
    end loop;
    return false;
end
$$;
