-- An interval that finds the server's limit, as in `intervalq/_spec/auto.py` and `adapt.py`: called only for records
-- that have one. `auto` has slowest, fastest, peak, base, cut_at and cut_ticket, in this order.

-- intervalq._sound_auto: whether the rules may have written a record's automatic interval.
create or replace function intervalq._sound_auto(r intervalq.queues) returns boolean
language sql immutable
return coalesce(
    array_ndims(r.auto) = 1 and array_lower(r.auto, 1) = 1 and cardinality(r.auto) = 6
    and r.auto[1] <= 86400000000
    and r.auto[2] between 1 and r.auto[1]
    and r.auto[4] between 1 and 86400000000
    and (r.auto[3] = 0 or r.auto[3] <= r.auto[4] and r.auto[4] <= 2 * r.auto[3])
    and r.auto[5] between -9007199254740991 and 9007199254740991
    and r.auto[6] between 0 and r.ticket,
    false
);


-- intervalq._time_to_return: the time in which the rate returns to that of this interval; 0 for none.
create or replace function intervalq._time_to_return(peak bigint) returns bigint
language sql immutable
return case peak when 0 then 0 else least(greatest(32000000, 320 * peak), 86400000000) end;


-- intervalq._interval_at: the interval for slots about `due`, on the queue's clock.
create or replace function intervalq._interval_at(auto bigint[], due bigint) returns bigint
language plpgsql immutable
as $$
declare
    peak constant bigint := auto[3];
    base constant bigint := auto[4];
    elapsed constant bigint := greatest(0, due - auto[5]);
    usual constant bigint := intervalq._time_to_return(peak);
    back constant bigint := case when base * 3 <= peak * 4 then usual else usual / 4 end;
    unit bigint;
    part bigint;
    found bigint;
begin
    if elapsed < back then
        part := (back - elapsed) * 1024 / back;
        found := 65536 * peak / (65536 - (65536 - 65536 * peak / base) * part * part * part / 1073741824);
    else
        unit := case peak when 0 then least(greatest(2000000, 2 * base), 86400000000) else usual / 4 end;
        part := least(elapsed - back, 64 * unit) * 1024 / unit;
        found := 65536 * case peak when 0 then base else peak end / (65536 + part * part * part / 16384);
    end if;
    return greatest(auto[2], least(auto[1], found));
end
$$;


-- intervalq._grown: the record with the interval for the next slots.
create or replace function intervalq._grown(r intervalq.queues, clock bigint) returns intervalq.queues
language plpgsql immutable
as $$
declare
    idle constant bigint := clock - intervalq._credit(r) - r.due - r.interval;
    before constant bigint := intervalq._tolerance(r);
    found bigint;
begin
    if idle > 0 then
        r.auto[5] := r.auto[5] + idle;
    end if;
    found := intervalq._interval_at(r.auto, greatest(r.due, clock));
    if found < r.interval then
        r.interval := found;
        r.due := least(9007199254740991, r.due + before - intervalq._tolerance(r));
    end if;
    return r;
end
$$;


-- intervalq._refused: the record held, after a server refused a start; with a cut, unless that was before.
create or replace function intervalq._refused(r intervalq.queues, command jsonb, now bigint)
returns intervalq.queues
language plpgsql immutable
as $$
declare
    t constant bigint := command -> 'refusal' ->> 0;
    due constant bigint := command -> 'refusal' ->> 1;
    before constant bigint := r.interval;
    length bigint := command ->> 'length';
    refused bigint;
begin
    if r.auto is not null and t > r.auto[6] and t <= r.ticket
        and coalesce(command ->> 'generation' = r.generation, false)
    then
        refused := greatest(r.interval, intervalq._interval_at(r.auto, due - 1000000));
        if r.auto[3] = 0 or due - r.auto[5] < intervalq._time_to_return(r.auto[3]) / 16 then
            length := greatest(length, 1000000);
            r.auto[3] := least(refused * 4 / 3, r.auto[1]);
            r.auto[4] := least(refused * 2, r.auto[1]);
        else
            r.auto[3] := least(refused, r.auto[1]);
            r.auto[4] := least(refused + (refused + 10) / 11, r.auto[1]);
        end if;
        r.auto[5] := intervalq._clock(r, r.last_now);
        r.auto[6] := r.ticket;
        r.interval := r.auto[4];
        if r.interval > before then
            r := intervalq._revoke_all(r);
        end if;
    end if;
    r.held_until := greatest(r.held_until, least(9007199254740991, now + length));
    return r;
end
$$;


-- intervalq._adapted: the record with an interval between these bounds; `anew`: it has learned nothing yet.
create or replace function intervalq._adapted(r intervalq.queues, bounds jsonb, anew boolean)
returns intervalq.queues
language plpgsql immutable
as $$
declare
    slowest constant bigint := bounds ->> 0;
    fastest constant bigint := bounds ->> 1;
begin
    if anew or r.auto is null then
        r.auto := array[0, 0, 0, r.interval, intervalq._clock(r, r.last_now), r.ticket];
    end if;
    r.auto[1] := slowest;
    r.auto[2] := fastest;
    if r.auto[3] = 0 then
        r.auto[4] := least(r.auto[4], slowest);
    end if;
    r.interval := greatest(fastest, least(slowest, r.interval));
    return r;
end
$$;


-- intervalq._latest: how late a job may begin at most, whatever the interval becomes.
create or replace function intervalq._latest(r intervalq.queues) returns bigint
language plpgsql immutable
as $$
begin
    r.interval := r.auto[1];
    return intervalq._tolerance(r) + intervalq._credit(r);
end
$$;


-- intervalq._agree: whether a sender has the settings of the record, but for an interval that changes by itself.
create or replace function intervalq._agree(r intervalq.queues, command jsonb) returns boolean
language plpgsql immutable
as $$
declare
    theirs constant jsonb := command -> 'settings';
    ours constant jsonb := intervalq._given(r.limits);
    numbers constant jsonb := jsonb_build_array(
        r.interval, r.burst, r.max_running, r.tolerance, r.ephemeral::integer
    );
begin
    if r.auto is null then
        return not command ? 'settings_auto' and theirs = numbers || ours;
    end if;
    return command -> 'settings_auto' is not distinct from to_jsonb(r.auto[1:2])
        and theirs - 0 = (numbers || ours) - 0;
end
$$;
