-- Limits of keys under one rate: `_paced` and `_waited` of intervalq/keyed.py, and intervalq/_spec/keys/fixed.py.

-- intervalq._waited: the record of a key whose clock is set back because a slot waits for its place. If the key has
-- limits, tickets that were granted before and aren't listed again can't be granted again.
--   again: the listed slots that were granted before; before: the highest ticket that was
create or replace function intervalq._waited(r intervalq.queues, length bigint, again jsonb, before bigint)
returns intervalq.queues
language plpgsql immutable
as $$
declare
    last constant bigint := before - jsonb_array_length(again);
begin
    r := intervalq._set_back(r, length, again);
    if r.limits is not null then
        r.revoked_through := greatest(r.revoked_through, case when (again -> 0 ->> 0)::bigint = last + 1 then last else before end);
    end if;
    return r;
end
$$;


-- intervalq._fix: the record of a key after its granted slots were fixed where they are by the server's clock: see
-- intervalq/_spec/keys/fixed.py. Their cells have -9007199254740991 as their end on the key's clock.
--   before: the highest ticket that was granted before; slots up to this one are fixed already
create or replace function intervalq._fix(r intervalq.queues, slots jsonb, before bigint)
returns intervalq.queues
language plpgsql immutable
as $$
declare
    taken bigint[];
    due bigint;
    ends bigint;
    place integer;
    l intervalq._limit;
begin
    for i in 0 .. jsonb_array_length(slots) - 1 loop
        continue when (slots -> i ->> 0)::bigint <= before;
        taken := intervalq._taken_by(r, slots -> i);
        due := slots -> i ->> 1;
        for k in 1 .. cardinality(r.limits) loop
            continue when taken[k] = 0;
            l := r.limits[k];
            ends := intervalq._cell_end(due, intervalq._block(l));
            place := intervalq._place(l.ahead, 2, ends);
            if l.ahead[place] = ends then
                l.ahead := intervalq._added(l.ahead, 2, place, -taken[k]);
            end if;
            ends := intervalq._cell_end(due + r.held_total + r.stepped, intervalq._block(l));
            l.used := intervalq._put_used(l.used, array[ends, taken[k], -9007199254740991]);
            r.limits[k] := l;
        end loop;
    end loop;
    return r;
end
$$;


-- intervalq._correct_fixed: `_correct` for slots that were fixed.
create or replace function intervalq._correct_fixed(r intervalq.queues, settled jsonb) returns intervalq.queues
language plpgsql immutable
as $$
declare
    late constant bigint := intervalq._lateness(r);
    over constant bigint := intervalq._clock(r, r.last_now) - late;
    l intervalq._limit;
    at bigint;
    ends bigint;
    more bigint;
    place integer;
begin
    for k in 1 .. cardinality(r.limits) loop
        l := r.limits[k];
        for i in 0 .. jsonb_array_length(settled) - 1 loop
            more := coalesce((settled -> i ->> (k + 1))::bigint, 0);
            at := (settled -> i ->> 0)::bigint + (settled -> i ->> 1)::bigint;
            ends := intervalq._cell_end(at, intervalq._block(l));
            continue when more = 0 or intervalq._expiry(
                ends - r.held_total - r.stepped, l.edge, l.window, l.jitter + late, r.held_total, r.error
            ) <= over;
            place := intervalq._fixed(l, at);
            if place is not null then
                l.used := intervalq._added(l.used, 3, place, more);
            elsif more > 0 then
                l.used := intervalq._put_used(l.used, array[ends, more, -9007199254740991]);
            end if;
        end loop;
        r.limits[k] := l;
    end loop;
    return r;
end
$$;


-- intervalq._taken_over: the record of a key under one rate; if it was used without that rate until now, tickets of that
-- time are void.
create or replace function intervalq._taken_over(r intervalq.queues, own_pace boolean, op text)
returns intervalq.queues
language plpgsql immutable
as $$
begin
    if intervalq._has_own_pace(r) is null and op not in ('inspect', 'drop') then
        r := intervalq._revoke_all(r);
        r.generation := intervalq._generation_of(r.generation, own_pace);
    end if;
    return r;
end
$$;


-- intervalq._paced: the record of a key with what follows from the common settings.
create or replace function intervalq._paced(r intervalq.queues, common intervalq.queues, own_pace boolean)
returns intervalq.queues
language plpgsql immutable
as $$
declare
    late constant bigint := case when r.limits is not null then intervalq._lateness(r) end;
    early bigint;
begin
    if not coalesce(intervalq._has_own_pace(r), own_pace) then
        r.interval := common.interval;
    end if;
    r.burst := 1;
    r.tolerance := intervalq._agreed(common);
    if r.limits is null then
        return r;
    end if;
    early := late - intervalq._lateness(r);
    if early <> 0 then
        r := intervalq._revoke_all(r);
    end if;
    if early > 0 then
        r := intervalq._count_longer(r, early);
    end if;
    return r;
end
$$;


-- intervalq._for_common: slots without what they take of the first limits, those of the key.
create or replace function intervalq._for_common(slots jsonb, own integer) returns jsonb
language sql immutable
return case when own = 0 then slots else (
    select coalesce(jsonb_agg(jsonb_build_array(e.value -> 0, e.value -> 1, intervalq._cost(e.value))
        || jsonb_path_query_array(e.value, '$[$from to last]', jsonb_build_object('from', 3 + own)) order by e.n), '[]')
    from jsonb_array_elements(slots) with ordinality as e (value, n)
) end;
