-- Advance: use granted slots, issue tickets, grant what is due.

-- intervalq._use: the answer after the listed slots were granted, reported as missed, or left for another request.
create or replace function intervalq._use(a intervalq._answer, command jsonb, now bigint, known boolean)
returns intervalq._answer
language plpgsql immutable
as $$
declare
    r intervalq.queues := a.state;
    is_held constant boolean := r.held_since is not null;
    listed constant jsonb := command -> 'slots';
    slots constant jsonb := case when known then intervalq._usable(r, command, now) else '[]' end;
    moved constant bigint[] := case when is_held and known then intervalq._moved_away(r, listed, now) else '{}' end;
    due bigint := slots -> 0 ->> 1;
    notice constant bigint := command ->> 'notice';
    overdue bigint;
    earliest bigint;
    t bigint;
    cost bigint;
    kept bigint[] := '{}';
    least bigint := 0;
begin
    if is_held and slots = '[]' then
        a.missed := moved;
        return a;
    end if;
    if (slots -> 0 ->> 0)::bigint > r.current and due > intervalq._clock(r, now) + (command ->> 'ahead')::bigint then
        return a;  -- too far ahead: its sender has not heard that the queue's clock was set back
    end if;
    if intervalq._is_late(r, due, notice, now) and command ? 'until'
        and intervalq._are_last(slots, r.current)
    then
        if now > (command ->> 'until')::bigint
            or (command -> 'high_water_mark' ->> 2)::bigint is distinct from r.late_total
        then
            return a;  -- a duplicate, or sent before its sender knew of a late grant: it will ask again
        end if;
        overdue := now - r.held_total + notice - intervalq._ends(r, due);
        if r.limits is null or not intervalq._are_passed(r, slots, overdue) then
            r := intervalq._set_back_for(r, slots, overdue, now);
            a.at_once := true;
        elsif is_held then
            return a;
        end if;
    end if;
    earliest := intervalq._clock(r, now) - intervalq._tolerance(r) - intervalq._credit(r);
    if not is_held and not a.at_once then
        least := r.revoked_through + 1;  -- one that came sooner can only be granted late
    end if;
    for i in 0 .. jsonb_array_length(slots) - 1 loop
        due := slots -> i ->> 1;
        t := slots -> i ->> 0;
        continue when due < earliest or t < least;
        kept := kept || t;
        if is_held or r.held_since is null then  -- each may be the last one that the limit allows
            cost := slots -> i ->> 2;
            if cost > 1 then
                -- The end of a ticket that was issued with a shorter interval may overflow.
                due := least(9007199254740991, due + (cost - 1)::numeric * r.interval);
            end if;
            r := intervalq._grant(r, t, due, now, (command ->> 'lease')::bigint);
            a.granted := a.granted || t;
        end if;
    end loop;
    a.state := r;
    if is_held then
        a.missed := moved;
    elsif cardinality(kept) < jsonb_array_length(listed) then
        a.missed := intervalq._others(listed, kept);
    end if;
    return a;
end
$$;


-- intervalq._costs: what the first of the new tickets cost, in slots; the others cost one.
--   missed: slots that new tickets replace; given: the costs of the command
create or replace function intervalq._costs(missed jsonb, given jsonb) returns bigint[]
language sql immutable
return array(
    select coalesce((x.slot ->> 2)::bigint, 1)
    from jsonb_array_elements(missed) with ordinality as x (slot, n) order by x.n
) || array(
    select x.cost::bigint
    from jsonb_array_elements_text(given) with ordinality as x (cost, n) order by x.n
);


-- intervalq._starts: the offsets of the slots of `wanted` tickets from the first one, and of the slot after the last,
-- as far as there is `room`. Counted in slots, as numeric: costs times intervals would overflow.
create or replace function intervalq._starts(costs bigint[], wanted bigint, room bigint) returns bigint[]
language sql immutable
return array(
    select x.start::bigint
    from (
        select i, sum(case i when 0 then 0 else coalesce(costs[i], 1) end) over (order by i) as start
        from generate_series(0, wanted::integer) as i
    ) as x
    where x.start <= room order by x.i
);


-- intervalq._take: the answer after new tickets were issued, and those whose slots are near were granted.
--   costs: the costs of the first tickets, in slots; null: one slot each
create or replace function intervalq._take(
    a intervalq._answer, command jsonb, now bigint, costs bigint[], wanted bigint
) returns intervalq._answer
language plpgsql immutable
as $$
declare
    r intervalq.queues := a.state;
    clock constant bigint := intervalq._clock(r, now);
    free constant bigint := r.due + r.interval;
    notice constant bigint := greatest(0, (command ->> 'notice')::bigint - intervalq._tolerance(r));
    due constant bigint := greatest(free, clock + notice - intervalq._credit(r));
    room constant bigint := (9007199254740991 - due) / r.interval;
    reach constant bigint := clock - due + case (command -> 'high_water_mark' ->> 0)::bigint <> r.ticket
        when true then least((command ->> 'reach')::bigint, (command ->> 'notice')::bigint)
        else (command ->> 'reach')::bigint
    end;
    t constant bigint := r.ticket;
    starts bigint[];  -- null: each one slot behind the one before
    near bigint := 0;
begin
    if costs is not null then
        starts := intervalq._starts(costs, wanted, room);
    end if;
    a.count := greatest(0, coalesce(cardinality(starts) - 1, least(wanted, room)));
    if a.count = 0 then
        return a;
    end if;
    a.first := array[t + 1, due, coalesce(costs[1], 1)];
    r.ticket := t + a.count;
    r.due := due + (coalesce(starts[a.count + 1], a.count) - 1) * r.interval;
    if starts[a.count + 1] > a.count then
        a.costs := array(select starts[i + 1] - starts[i] from generate_series(1, a.count) as i order by i);
    end if;
    if reach >= 0 and starts is null then
        near := least(a.count, reach / r.interval + 1);
    elsif reach >= 0 then
        near := (select count(*) from unnest(starts[:a.count]) as x (s) where x.s <= reach / r.interval);
    end if;
    while a.begun < near and r.held_since is null loop
        a.begun := case when r.max_running > 0 then a.begun + 1 else near end;
        r := intervalq._grant(
            r, t + a.begun, due + (coalesce(starts[a.begun + 1], a.begun) - 1) * r.interval, now,
            (command ->> 'lease')::bigint
        );
    end loop;
    if a.begun > 0 and a.granted = '{}' and free <= clock then
        a.at_once := true;
    end if;
    a.state := r;
    return a;
end
$$;


-- intervalq._known: the answer after applying what a sender that knows this record reports: its high-water mark, and
-- the slots that it gives back.
create or replace function intervalq._known(a intervalq._answer, command jsonb) returns intervalq._answer
language plpgsql immutable
as $$
declare
    r intervalq.queues := a.state;
    mark constant jsonb := command -> 'high_water_mark';
begin
    if (mark ->> 0)::bigint > r.ticket or (mark ->> 2)::bigint > r.late_total then
        a.healed := true;
        r := intervalq._heal(r, mark);
    end if;
    if r.limits is not null and command ? 'settled' then
        r := intervalq._correct(r, command -> 'settled');
    end if;
    if command -> 'release' <> '[]' then
        r := intervalq._give_back(r, command -> 'release', -9007199254740991);
    end if;
    a.state := r;
    return a;
end
$$;


-- intervalq._waits: whether the only listed slot waits for a window: it is too far ahead, and may come sooner.
create or replace function intervalq._waits(r intervalq.queues, command jsonb, now bigint) returns boolean
language sql immutable
return coalesce(
    intervalq._may_move(r, command) and jsonb_array_length(command -> 'slots') = 1
    and (command -> 'slots' -> 0 ->> 0)::bigint > greatest(r.current, r.revoked_through)
    and (command -> 'slots' -> 0 ->> 0)::bigint <= r.ticket
    and (command -> 'slots' -> 0 ->> 1)::bigint > intervalq._clock(r, now) + (command ->> 'ahead')::bigint,
    false
);


-- intervalq._advance: `rules.Advance`.
create or replace function intervalq._advance(a intervalq._answer, command jsonb, now bigint)
returns intervalq._answer
language plpgsql immutable
as $$
declare
    known constant boolean := coalesce(command ->> 'generation' = (a.state).generation, false);
    reported constant bigint := command ->> 'error';
    take constant bigint := command ->> 'take';
    wanted bigint := least(1000, take);
    missed jsonb := '[]';
    costs bigint[];
begin
    if known then
        a := intervalq._known(a, command);
    end if;
    if reported > 0 and reported >= (a.state).error then
        a.state.error := reported;
        a.state.error_until := now + 60000000;
    end if;
    if known and intervalq._waits(a.state, command, now) then
        a := intervalq._sooner(a, command -> 'slots' -> 0, command, now);
        if a.granted = '{}' then
            return a;
        end if;
        command := command || '{"reach": -9007199254740991}';  -- new tickets come behind it
    elsif command -> 'slots' <> '[]' then
        a := intervalq._use(a, command, now, known);
    end if;
    if a.missed <> '{}' then
        missed := intervalq._listed(command -> 'slots', a.missed);
        wanted := least(1000, take + cardinality(a.missed));
        if known then
            -- A slot that was already granted may have been used: this may be an old request.
            a.state := intervalq._give_back(a.state, missed, (a.state).current);
        end if;
    end if;
    if wanted = 0 or (a.state).held_since is not null then
        return a;
    end if;
    if (a.state).auto is not null then
        a.state := intervalq._grown(a.state, intervalq._clock(a.state, now));
    end if;
    if missed <> '[]' or command -> 'costs' <> '[]' then
        costs := intervalq._costs(missed, command -> 'costs');
    end if;
    if (a.state).limits is not null then
        return intervalq._take_limited(
            a, command, now, costs, intervalq._units(missed, command -> 'units', wanted), wanted
        );
    end if;
    return intervalq._take(a, command, now, costs, wanted);
end
$$;
