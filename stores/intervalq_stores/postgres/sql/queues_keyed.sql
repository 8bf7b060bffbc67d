-- Keys under one rate: `intervalq/keyed.py`, one step on the records of a key and of its queue.
-- Slots are lists [ticket, due, cost, units...]; a cost of 1 may be left out if no units follow.

-- What a step on both records did.
drop type if exists intervalq._keyed cascade;
create type intervalq._keyed as (
    own intervalq._answer,   -- the answer about the key
    common intervalq.queues,
    written boolean,         -- whether the common record is to be written
    places jsonb             -- [the key's ticket, ticket, due, cost]...
);

-- The common slots for slots of a key, from the first.
drop type if exists intervalq._got cascade;
create type intervalq._got as (
    common intervalq.queues,
    slots jsonb,
    granted bigint,          -- how many of them are granted
    at_once boolean
);


-- intervalq._cost: what a slot costs.
create or replace function intervalq._cost(slot jsonb) returns bigint
language sql immutable
return coalesce((slot ->> 2)::bigint, 1);


-- intervalq._shares: whether keys can be under one rate with a record's settings.
create or replace function intervalq._shares(r intervalq.queues) returns boolean
language sql immutable
return r.burst = 1 and r.max_running = 0;


-- intervalq._is_plain: whether a key can have a record's settings.
create or replace function intervalq._is_plain(r intervalq.queues) returns boolean
language sql immutable
return r.burst = 1 and r.max_running = 0
    and (r.limits is null or not exists (select from unnest(r.limits) as x where x.edge is not null));


-- intervalq._can_be_plain: whether a key can have the settings of a command; null: there are none.
create or replace function intervalq._can_be_plain(settings jsonb) returns boolean
language sql immutable
return settings is null or settings -> 2 = '0' and not exists (
    select from jsonb_array_elements(settings -> 5) as l (limit_of) where jsonb_array_length(l.limit_of) > 4
);


-- intervalq._agreed: the tolerance of a key under a common record.
create or replace function intervalq._agreed(common intervalq.queues) returns bigint
language sql immutable
return greatest(1, least(intervalq._tolerance(common), common.interval - 1));


-- intervalq._paced_command: a command with what follows from the common settings.
create or replace function intervalq._paced_command(command jsonb, common intervalq.queues, own_pace boolean)
returns jsonb
language sql immutable
return case
    when command ? 'settings' then command || jsonb_build_object(
        'nonce', intervalq._generation_of(command ->> 'nonce', own_pace), 'settings', jsonb_set(jsonb_set(jsonb_set(
            command -> 'settings', '{0}',
            case when own_pace then command -> 'settings' -> 0 else to_jsonb(common.interval) end
        ), '{1}', '1'), '{3}', to_jsonb(intervalq._agreed(common)))
    )
    else command
end;


-- intervalq._turn: those of the listed slots that the key may take in this step, if the common queue grants them.
create or replace function intervalq._turn(
    slots jsonb, most bigint, step bigint, current bigint, revoked_through bigint
) returns jsonb
language plpgsql immutable
as $$
declare
    slot jsonb;
    last jsonb;
    n bigint := 0;
    valid jsonb := '[]';
begin
    for slot in select e.value from jsonb_array_elements(slots) with ordinality as e (value, n) order by e.n loop
        continue when (slot ->> 0)::bigint <= revoked_through;
        exit when last is not null and (
            (slot ->> 0)::bigint <> (last ->> 0)::bigint + 1
            or (slot ->> 1)::bigint <> (last ->> 1)::bigint + intervalq._cost(last)::numeric * step
        );
        exit when n >= most and (slot ->> 0)::bigint > current;
        valid := valid || jsonb_build_array(slot);
        last := slot;
        n := n + 1;
    end loop;
    return valid;
end
$$;


-- intervalq._for_one_turn: the command with no more slots than the key may take of the common ones in this step.
create or replace function intervalq._for_one_turn(
    r intervalq.queues, common intervalq.queues, command jsonb, known jsonb, now bigint
) returns jsonb
language plpgsql immutable
as $$
declare
    is_new constant boolean := r.name is null;
    settings constant jsonb := command -> 'settings';
    own_pace constant boolean := known -> 'own_pace';
    step constant bigint := coalesce(r.interval, (settings ->> 0)::bigint);
    agreed constant bigint := coalesce(r.tolerance, (settings ->> 3)::bigint);
    revoked_through constant bigint := coalesce(r.revoked_through, 0);
    most bigint := 1;
    left_out jsonb := '[]';
    valid jsonb;
begin
    if is_new and settings is null then
        return command;
    elsif common.held_since is not null or not intervalq._shares(common)
        or not is_new and not intervalq._is_plain(r)
        or is_new and not intervalq._can_be_plain(settings)
    then
        return command - 'units' || '{"slots": [], "take": 0, "costs": []}';
    end if;
    if not own_pace then
        most := (known ->> 'weight')::bigint * greatest(1, 5000 / step);
        if common.due + common.interval <= intervalq._clock(common, now)
            or not is_new and r.current_due + r.held_total = common.due + common.held_total
        then
            most := 1000;  -- it takes slots alone
        end if;
    end if;
    valid := intervalq._turn(command -> 'slots', most, step, coalesce(r.current, 0), revoked_through);
    if r.held_since is null then
        select coalesce(jsonb_agg(e.value order by e.n), '[]') into left_out
        from jsonb_array_elements(command -> 'slots') with ordinality as e (value, n)
        where (e.value ->> 0)::bigint <= revoked_through;
    end if;
    return case when valid = '[]' then command - 'until' else command end || jsonb_build_object(
        'slots', left_out || valid,
        'reach', case
            when valid <> '[]' then -1
            else least(
                (command ->> 'reach')::bigint,
                greatest(0, (command ->> 'notice')::bigint - least(agreed, step))
            )
        end
    );
end
$$;


-- intervalq._again: the listed slots of a key that are granted and may be granted again.
create or replace function intervalq._again(r intervalq.queues, command jsonb) returns jsonb
language sql immutable
return (
    select coalesce(jsonb_agg(e.value order by e.n), '[]')
    from jsonb_array_elements(command -> 'slots') with ordinality as e (value, n)
    where command ->> 'generation' = r.generation and (e.value ->> 0)::bigint > r.revoked_through
        and (e.value ->> 0)::bigint <= r.current
);


-- intervalq._moved: the record of a key, set back before the step, because the key waits: the place of the first
-- listed slot may have moved away from that slot, and new tickets directly follow those that wait for their grants.
--   again: see `_waited`
create or replace function intervalq._moved(
    r intervalq.queues, common intervalq.queues, command jsonb, known jsonb, again jsonb, now bigint
) returns intervalq.queues
language plpgsql immutable
as $$
declare
    length bigint := 0;
    slot jsonb;
    place jsonb;
begin
    if r.name is null or common.held_since is not null or r.held_since is not null
        or not intervalq._shares(common) or not intervalq._is_plain(r)
        or not intervalq._can_be_plain(command -> 'settings')
    then
        return r;
    end if;
    if (command ->> 'take')::bigint > 0 and r.ticket > greatest(r.current, r.revoked_through) then
        length := greatest(0, intervalq._clock(r, now) - r.due);
    end if;
    if (command ->> 'attach')::boolean is not true and known ->> 'generation' = common.generation
        and command ->> 'generation' = r.generation
    then
        select e.value into slot from jsonb_array_elements(command -> 'slots') with ordinality as e (value, n)
        where (e.value ->> 0)::bigint > r.revoked_through order by e.n limit 1;
        select e.value into place from jsonb_array_elements(known -> 'places') with ordinality as e (value, n)
        where e.value -> 0 = slot -> 0 order by e.n desc limit 1;
        if (place ->> 1)::bigint > common.revoked_through and (place ->> 1)::bigint <= common.ticket then
            length := greatest(length, (place ->> 2)::bigint + common.held_total - (slot ->> 1)::bigint - r.held_total);
        end if;
    end if;
    if length > 0 then
        r := intervalq._waited(r, length, again, r.current);
    end if;
    return r;
end
$$;


-- intervalq._new_slots: the new tickets of an answer.
create or replace function intervalq._new_slots(a intervalq._answer) returns jsonb
language sql immutable
return (
    select coalesce(jsonb_agg(jsonb_build_array(
            a.first[1] + x.i - 1, coalesce(a.dues[x.i], a.first[2] + x.behind * (a.state).interval), x.cost
        ) order by x.i), '[]')
    from (
        select i, coalesce(a.costs[i], 1) as cost,
            sum(coalesce(a.costs[i], 1)) over (order by i) - coalesce(a.costs[i], 1) as behind
        from generate_series(1, a.count) as i
    ) as x
);


-- intervalq._in_row: how many of the new tickets of a record with limits are granted, up to the first gap between them.
create or replace function intervalq._in_row(a intervalq._answer) returns bigint
language plpgsql immutable
as $$
begin
    for i in 2 .. a.begun loop
        if a.dues[i] <> a.dues[i - 1] + coalesce(a.costs[i - 1], 1) * (a.state).interval then
            return i - 1;
        end if;
    end loop;
    return a.begun;
end
$$;


-- intervalq._with_units: new slots of a key, from the first, with the units that were given for them.
create or replace function intervalq._with_units(slots jsonb, units jsonb) returns jsonb
language sql immutable
return (
    select jsonb_agg(e.value || coalesce(units -> (e.n - 1)::integer, '[]') order by e.n)
    from jsonb_array_elements(slots) with ordinality as e (value, n)
);


-- intervalq._known_places: the places of the first of these slots, as far as they directly follow each other
-- like the slots, which have their units.
create or replace function intervalq._known_places(common intervalq.queues, known jsonb, run jsonb) returns jsonb
language plpgsql immutable
as $$
declare
    slot jsonb;
    place jsonb;
    places jsonb := '[]';
begin
    if known ->> 'generation' is distinct from common.generation then
        return places;
    end if;
    for slot in select e.value from jsonb_array_elements(run) with ordinality as e (value, n) order by e.n loop
        place := (
            select e.value - 0 from jsonb_array_elements(known -> 'places') with ordinality as e (value, n)
            where e.value -> 0 = slot -> 0 order by e.n desc limit 1
        );
        exit when place is null or (place ->> 2)::bigint <> intervalq._cost(slot);
        exit when places <> '[]' and (
            (place ->> 0)::bigint <> (places -> -1 ->> 0)::bigint + 1
            or (place ->> 1)::bigint - (places -> 0 ->> 1)::bigint
                <> (slot ->> 1)::bigint - (run -> 0 ->> 1)::bigint
        );
        places := places || jsonb_build_array(place || (slot - 0 - 0 - 0));
    end loop;
    return places;
end
$$;


-- intervalq._places_of: asks for the places of these slots, or takes places that aren't before the instant.
create or replace function intervalq._places_of(
    common intervalq.queues, command jsonb, known jsonb, reach jsonb, run jsonb, instant bigint, now bigint
) returns intervalq._got
language plpgsql stable
as $$
declare
    had constant jsonb := intervalq._known_places(common, known, run);
    asking jsonb := jsonb_build_object(
        'op', 'advance', 'generation', common.generation, 'slots', had, 'release', '[]'::jsonb, 'take', 0,
        'costs', '[]'::jsonb, 'error', command -> 'error', 'notice', command -> 'notice',
        'lease', command -> 'lease', 'reach', reach, 'apart', known -> 'weight',
        'high_water_mark', jsonb_build_array(common.ticket, common.due, coalesce(known -> 'high_water_mark' -> 2, '0'))
    );
    a intervalq._answer := intervalq._no_answer(common, now);
    g intervalq._got;
begin
    if command ? 'ahead' then
        asking := asking || jsonb_build_object('ahead', command -> 'ahead');
    end if;
    if command ? 'until' then
        asking := asking || jsonb_build_object('until', command -> 'until');
    end if;
    if common.limits is not null then
        a.state := intervalq._age(a.state);
    end if;
    if had <> '[]' then
        a := intervalq._advance(a, asking, now);
        if a.granted[1] = (had -> 0 ->> 0)::bigint then
            g := row(a.state, had, cardinality(a.granted), a.at_once);
        elsif a.missed[1] = (had -> 0 ->> 0)::bigint then
            g := row(
                a.state, intervalq._new_slots(a),
                case when common.limits is null then a.begun else intervalq._in_row(a) end, a.at_once
            );
        else
            return row(a.state, had, 0::bigint, false)::intervalq._got;
        end if;
        if (g.slots -> 0 ->> 1)::bigint + (g.common).held_total >= instant then
            return g;
        end if;
        common := a.state;
        if common.limits is not null then
            common := intervalq._age(common);
        end if;
        a := intervalq._no_answer(common, now);
    end if;
    if common.limits is not null then
        asking := asking || jsonb_build_object('units', (
            select jsonb_agg(e.value - 0 - 0 - 0 order by e.n)
            from jsonb_array_elements(run) with ordinality as e (value, n)
        ));
    end if;
    a := intervalq._advance(a, asking || jsonb_build_object(
        'slots', '[]'::jsonb, 'take', jsonb_array_length(run),
        'costs', (
            select jsonb_agg(intervalq._cost(e.value) order by e.n)
            from jsonb_array_elements(run) with ordinality as e (value, n)
        ),
        'notice', greatest(
            (command ->> 'notice')::bigint,
            instant - now + intervalq._tolerance(common) + intervalq._credit(common)
        )
    ), now);
    return row(
        a.state, intervalq._new_slots(a),
        case when common.limits is null then a.begun else intervalq._in_row(a) end, a.at_once
    )::intervalq._got;
end
$$;


-- intervalq._reported: the common record after what its sender reports: settled units, and slots that won't be used.
create or replace function intervalq._reported(common intervalq.queues, known jsonb) returns intervalq.queues
language plpgsql immutable
as $$
begin
    if common.limits is not null then
        common := intervalq._correct(intervalq._age(common), coalesce(known -> 'settled', '[]'));
    end if;
    return intervalq._give_back(common, known -> 'release', -9007199254740991);
end
$$;


-- intervalq._granted: the slots that a step granted, one directly behind the other; if the common queue is limited, with
-- their units.
create or replace function intervalq._granted(a intervalq._answer, command jsonb, is_limited boolean) returns jsonb
language plpgsql immutable
as $$
declare
    run jsonb := intervalq._listed(command -> 'slots', a.granted);
begin
    if run <> '[]' or a.begun = 0 then
        return run;
    end if;
    run := jsonb_path_query_array(intervalq._new_slots(a), '$[0 to $last]', jsonb_build_object('last', a.begun - 1));
    if is_limited then
        run := intervalq._with_units(run, intervalq._units(
            intervalq._listed(command -> 'slots', a.missed), command -> 'units', a.begun
        ));
    end if;
    return run;
end
$$;


-- intervalq._placed: the answer about a key whose slots `run` got these places.
--   own: how many limits the key has; again, before: see `_waited`
create or replace function intervalq._placed(
    a intervalq._answer, g intervalq._got, run jsonb, own integer, again jsonb, before bigint
) returns intervalq._answer
language plpgsql immutable
as $$
declare
    length constant bigint := greatest(
        0, (g.slots -> 0 ->> 1)::bigint + (g.common).held_total - (run -> 0 ->> 1)::bigint - (a.state).held_total
    );
begin
    if length > 0 then
        a.state := intervalq._waited(a.state, length, again, before);
    end if;
    if own > 0 and g.granted > 0 then
        a.state := intervalq._fix(
            a.state, jsonb_path_query_array(run, '$[0 to $last]', jsonb_build_object('last', g.granted - 1)), before
        );
    end if;
    if g.granted > 0 then
        a.state.revoked_through := greatest((a.state).revoked_through, (run -> 0 ->> 0)::bigint - 1);
    end if;
    a.at_once := a.at_once and g.at_once;
    return a;
end
$$;


-- intervalq._weighted: what a sender knows, with the kind of pace and the weight that the record of its key has.
create or replace function intervalq._weighted(known jsonb, r intervalq.queues) returns jsonb
language sql immutable
return known || jsonb_strip_nulls(jsonb_build_object(
    'own_pace', intervalq._has_own_pace(r), 'weight', case when not intervalq._has_own_pace(r) then r.weight end
));


-- intervalq._advance_keyed: does the step as if the key were alone; what it grants must be granted by the common
-- queue, too.
create or replace function intervalq._advance_keyed(
    r intervalq.queues, common intervalq.queues, queue text, command jsonb, known jsonb, now bigint
) returns intervalq._keyed
language plpgsql stable
as $$
declare
    k intervalq._keyed;
    a intervalq._answer;
    g intervalq._got;
    run jsonb;
    own constant integer := coalesce(cardinality(r.limits), jsonb_array_length(command -> 'settings' -> 5), 0);
    before constant bigint := coalesce(r.current, 0);
    again jsonb := '[]';
    moved intervalq.queues;
    reach constant jsonb := coalesce(command -> 'ahead', command -> 'reach');
begin
    k.written := (known -> 'release' <> '[]' or known ? 'settled')
        and coalesce(known ->> 'generation' = common.generation, false);
    k.common := case when k.written then intervalq._reported(common, known) else common end;
    k.places := known -> 'places';
    known := intervalq._weighted(known, r);
    if r.name is not null and not intervalq._disagrees(r, command) then
        if command ? 'settled' and command ->> 'generation' = r.generation and r.limits is not null then
            r := intervalq._correct_fixed(r, command -> 'settled');
        end if;
        command := command - 'settled';
        again := intervalq._again(r, command);
        moved := intervalq._moved(r, k.common, command, known, again, now);
        if (command -> 'high_water_mark' ->> 2)::bigint = r.late_total then
            command := jsonb_set(command, '{high_water_mark,2}', to_jsonb(moved.late_total));
        end if;
        r := case when moved.limits is null then moved else intervalq._age(moved) end;
    end if;
    command := intervalq._for_one_turn(r, k.common, command, known, now);
    a := intervalq._done(r, queue, command, now);
    run := intervalq._granted(a, command, (a.state).limits is not null or common.limits is not null);
    if run = '[]' or a.refused then
        k.own := a;
        return k;
    end if;
    g := intervalq._places_of(
        k.common, command || jsonb_build_object('error', (a.state).error), known, reach,
        intervalq._for_common(run, own), (run -> 0 ->> 1)::bigint + (a.state).held_total, now
    );
    if g.granted < jsonb_array_length(run) then
        command := command || jsonb_build_object('reach', -1, 'slots', (
            select coalesce(jsonb_agg(e.value order by e.n), '[]')
            from jsonb_array_elements(command -> 'slots') with ordinality as e (value, n)
            where e.value -> 0 not in (
                select l.value -> 0 from jsonb_array_elements(run) with ordinality as l (value, n)
                where l.n > g.granted
            )
        ));
        a := intervalq._done(r, queue, command, now);
    end if;
    -- While earlier tickets wait, their slots must not move past their places.
    k.own := case when g.granted > 0 or (run -> 0 ->> 0)::bigint <= greatest(r.current, r.revoked_through, 0) + 1
        then intervalq._placed(a, g, run, own, again, before) else a end;
    k.common := g.common;
    k.written := true;
    k.places := (
        select jsonb_agg(jsonb_build_array(
            s.value -> 0, g.slots -> (s.n - 1)::integer -> 0, g.slots -> (s.n - 1)::integer -> 1,
            g.slots -> (s.n - 1)::integer -> 2
        ) order by s.n)
        from jsonb_array_elements(run) with ordinality as s (value, n)
        where s.n <= jsonb_array_length(g.slots)
    );
    return k;
end
$$;


-- intervalq._opened: the answer about the common record, created or healed, before a step of a key.
create or replace function intervalq._opened(
    common intervalq.queues, queue text, command jsonb, known jsonb, now bigint
) returns intervalq._answer
language sql stable
return intervalq._done(common, queue, jsonb_strip_nulls(jsonb_build_object(
    'op', 'advance', 'settings', known -> 'settings', 'attach', command -> 'attach',
    'generation', known -> 'generation', 'nonce', known -> 'nonce', 'high_water_mark', known -> 'high_water_mark',
    'slots', '[]'::jsonb, 'release', '[]'::jsonb, 'take', 0, 'costs', '[]'::jsonb, 'error', 0, 'notice', 0,
    'reach', 0, 'lease', 0
)), now);


-- intervalq._written: writes what a step on both records did, and gives its answer.
--   stored, has_common: whether there is a row of the key, and of its queue; sweeps: see `_save`
create or replace function intervalq._written(
    k intervalq._keyed, queue text, op text, stored boolean, has_common boolean, sweeps boolean, was_held boolean
) returns json
language plpgsql volatile
as $$
declare
    a intervalq._answer := k.own;
begin
    if k.written then
        perform intervalq._save(k.common, has_common, false);
    end if;
    if op <> 'inspect' and not a.refused and (a.state).name is not null then
        perform intervalq._save(a.state, stored, sweeps);
    end if;
    a.woken := was_held and op <> 'inspect' and not a.refused and (a.state).held_since is null;
    if a.woken then
        perform pg_notify('intervalq_' || left(encode(sha256(convert_to(queue, 'UTF8')), 'hex'), 40), '');
    end if;
    return json_build_object(
        'now', a.now, 'answer', row_to_json(a), 'common', case when (k.common).name is not null then row_to_json(k.common) end,
        'places', k.places
    );
end
$$;


-- intervalq.apply_keyed: `keyed.apply_keyed` on the records of a key and of its queue, atomically.
--   queue, command, now_override, layout: see `intervalq.apply`
--   shared: the name of the common record
--   known: `Common.to_dict()`
-- Returns `now`, `answer` as `apply` does, `common` in the form of its state, and `places`. The common row is locked
-- first in all processes; its name is a prefix of the other one, so this is also the order of the names.
create or replace function intervalq.apply_keyed(
    queue text, command jsonb, now_override bigint, shared text, known jsonb, layout integer
) returns json
language plpgsql volatile
set search_path = pg_catalog, pg_temp
set lock_timeout = '4s'
as $$
declare
    op constant text := command ->> 'op';
    is_plain constant boolean := op in ('inspect', 'drop');
    own_pace constant boolean := known -> 'own_pace';
    common intervalq.queues := intervalq._read(shared, op, known ? 'settings' and not is_plain);
    r intervalq.queues := intervalq._read(queue, op, command ? 'settings' and not is_plain);
    now constant bigint := coalesce(now_override, (extract(epoch from clock_timestamp()) * 1000000)::bigint);
    has_common constant boolean := common.name is not null;
    stored constant boolean := r.name is not null;
    was_held boolean;
    is_written boolean := false;
    a intervalq._answer;
    k intervalq._keyed;
begin
    if layout <> 6 then
        raise exception 'no function for records of layout %', layout using errcode = '42883';
    end if;
    common := intervalq._present(common, now);
    if not is_plain then
        a := intervalq._opened(common, shared, command, known, now);
        common := a.state;
        if a.refused or common.name is null then
            a.state := null;
            k := row(a, common, false, '[]');
            return intervalq._written(k, queue, op, false, false, false, false);
        end if;
        is_written := not has_common or a.healed;
    end if;
    was_held := r.held_since is not null;
    if common.name is not null then
        r := case when stored then intervalq._paced(intervalq._taken_over(r, own_pace, op), common, own_pace) end;
        command := intervalq._paced_command(command, common, own_pace);
    end if;
    r := intervalq._present(r, now);
    was_held := was_held and r.name is not null;
    k.common := common;
    k.places := '[]';
    if op = 'drop' then
        delete from intervalq.queues q where q.name = queue;
        k.own := intervalq._no_answer(null, now);
    elsif op = 'advance' then
        if r.name is null or command ->> 'generation' is distinct from r.generation then
            known := jsonb_set(known, '{places}', '[]');  -- they belong to tickets of another record of the key
        end if;
        k := intervalq._advance_keyed(r, common, queue, command, known, now);
    else
        k.own := intervalq._done(r, queue, command, now);
    end if;
    k.written := is_written or coalesce(k.written, false);
    return intervalq._written(k, queue, op, stored, has_common, now_override is null, was_held);
end
$$;
