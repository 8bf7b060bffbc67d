-- Slots of a record: granting, giving back, revoking, and finding those that were missed.

-- intervalq._grant: the record after a slot was granted.
--   t, slot_due: the ticket, and the last slot of its cost
--   lease: for how many microseconds its job counts as running; used only with max_running
create or replace function intervalq._grant(
    r intervalq.queues, t bigint, slot_due bigint, now bigint, lease bigint
) returns intervalq.queues
language plpgsql immutable
as $$
declare
    known_at integer;
begin
    r.current := greatest(r.current, t);
    r.current_due := greatest(r.current_due, slot_due);
    if r.max_running > 0 then
        known_at := array_position(r.running, t);
        if known_at is null then
            r.running := r.running || t;
            r.leases := r.leases || (now + lease);
        else
            r.leases[known_at] := now + lease;
        end if;
        r := intervalq._recheck(r, now);
    end if;
    return r;
end
$$;


-- intervalq._give_back: the record after freeing those of the slots that were the last ones issued.
--   slots: as in the command, in ticket order; tickets up to `above` are ignored
create or replace function intervalq._give_back(r intervalq.queues, slots jsonb, above bigint)
returns intervalq.queues
language plpgsql immutable
as $$
declare
    before constant bigint := r.due;
    last bigint := r.ticket;
    t bigint;
begin
    for i in reverse jsonb_array_length(slots) - 1 .. 0 loop
        t := (slots -> i ->> 0)::bigint;
        continue when t <= above;
        exit when t <> last or t <= r.revoked_through;
        if r.limits is not null and (slots -> i ->> 1)::bigint <= r.due then  -- otherwise it was given back already
            r := intervalq._uncount(r, slots -> i);
        end if;
        r.due := least(r.due, (slots -> i ->> 1)::bigint - r.interval);
        last := last - 1;
    end loop;
    if r.limits is not null and r.due < before and last <= greatest(r.current, r.revoked_through) then
        r.due := least(r.due, r.current_due);  -- nobody waits any more, so the next job may begin sooner
    end if;
    return r;
end
$$;


-- intervalq._sweep: delete a few ephemeral records that have lapsed by `now`.
-- It looks at one random page of the table: in the long run, about as many records are removed as are created, no index
-- is needed to find them, and nobody waits for a lock.
create or replace function intervalq._sweep(now bigint) returns void
language plpgsql volatile
as $$
declare
    pages constant bigint := pg_relation_size('intervalq.queues') / current_setting('block_size')::bigint;
    page constant bigint := floor(random() * pages);
begin
    delete from intervalq.queues d where d.ctid = any (array(
        select q.ctid from intervalq.queues q
        where q.ctid >= format('(%s,0)', page)::tid and q.ctid < format('(%s,0)', page + 1)::tid
            -- No record lapses sooner than this after its last step: this check avoids most of the work below.
            and q.ephemeral and q.last_now < now - 60000000 and q.version between 1 and 6 and intervalq._sound(q)
            and intervalq._lapses(intervalq._settle(q, now)) <= now
        limit 16
        for update skip locked
    ));
end
$$;


-- intervalq._set_back: the record after its queue's clock was set back, as a late grant of slots does.
create or replace function intervalq._set_back(r intervalq.queues, length bigint, slots jsonb)
returns intervalq.queues
language plpgsql immutable
as $$
begin
    r.held_total := r.held_total + length;
    r.late_total := r.late_total + length;
    if r.limits is not null then
        r := intervalq._bring_back(r, length, slots);
    end if;
    return r;
end
$$;


-- intervalq._set_back_for: the record after its queue's clock was set back by the time for which the first of these
-- slots is overdue. Tickets before it that were not granted would move behind a granted one, so they are dead. If
-- max_running holds the queue, the hold begins anew, so that no time counts both as late and as held.
create or replace function intervalq._set_back_for(r intervalq.queues, slots jsonb, length bigint, now bigint)
returns intervalq.queues
language plpgsql immutable
as $$
begin
    r := intervalq._set_back(r, length, slots);
    if r.held_since is not null then
        r.held_since := now;
    end if;
    r.revoked_through := greatest(r.revoked_through, (slots -> 0 ->> 0)::bigint - 1);
    return r;
end
$$;


-- intervalq._heal: the record after restoring lost tickets or late grants that the sender knows of.
--   mark: [ticket, due, late_total], the sender's high-water mark
create or replace function intervalq._heal(r intervalq.queues, mark jsonb) returns intervalq.queues
language plpgsql immutable
as $$
begin
    if (mark ->> 0)::bigint > r.ticket then
        if r.limits is not null then
            r := intervalq._count_lost(r, mark);
        end if;
        r.ticket := mark ->> 0;
        r.due := greatest(r.due, (mark ->> 1)::bigint);
    end if;
    if r.limits is not null then
        r := intervalq._moved(r, greatest(0, (mark ->> 2)::bigint - r.late_total));
    end if;
    return intervalq._set_back(r, greatest(0, (mark ->> 2)::bigint - r.late_total), '[]');
end
$$;


-- intervalq._are_last: whether these are all the tickets from the first of them to `current`.
create or replace function intervalq._are_last(slots jsonb, current bigint) returns boolean
language plpgsql immutable
as $$
declare
    next_one bigint := slots -> 0 ->> 0;
begin
    for i in 0 .. jsonb_array_length(slots) - 1 loop
        exit when next_one > current;
        if (slots -> i ->> 0)::bigint = next_one then
            next_one := next_one + 1;
        end if;
    end loop;
    return coalesce(next_one > current, false);
end
$$;


-- intervalq._listed: those of the slots that belong to these tickets.
create or replace function intervalq._listed(slots jsonb, tickets bigint[]) returns jsonb
language sql immutable
return (
    select coalesce(jsonb_agg(x.slot order by x.n), '[]')
    from jsonb_array_elements(slots) with ordinality as x (slot, n)
    where (x.slot ->> 0)::bigint = any (tickets)
);


-- intervalq._may_move: whether slots of the sender may come sooner: not those of keys under a common rate.
create or replace function intervalq._may_move(r intervalq.queues, command jsonb) returns boolean
language sql immutable
return r.limits is not null and r.auto is null and r.held_since is null and r.max_running = 0
    and (command ->> 'reach')::bigint >= 0 and not command ? 'apart';


-- intervalq._is_in_place: whether a slot with a lease can be granted again in a full queue. It can't if the interval
-- changed, and it would end behind the last granted one; nor if its units don't count where it is.
create or replace function intervalq._is_in_place(r intervalq.queues, slot jsonb) returns boolean
language sql immutable
return (slot ->> 1)::bigint + (coalesce((slot ->> 2)::numeric, 1) - 1) * r.interval <= r.current_due
    and (r.limits is null or intervalq._counts_in_place(r, slot));


-- intervalq._others: the tickets of the slots that aren't among these.
create or replace function intervalq._others(slots jsonb, tickets bigint[]) returns bigint[]
language sql immutable
return array(
    select (x.slot ->> 0)::bigint
    from jsonb_array_elements(slots) with ordinality as x (slot, n)
    where (x.slot ->> 0)::bigint <> all (tickets) order by x.n
);


-- intervalq._moved_away: the tickets of the listed slots that have leases, but can't be granted again in a queue that
-- is held only because it is full.
create or replace function intervalq._moved_away(r intervalq.queues, slots jsonb, now bigint) returns bigint[]
language sql immutable
return array(
    select (x.slot ->> 0)::bigint
    from jsonb_array_elements(slots) with ordinality as x (slot, n)
    where r.held_until <= now and (x.slot ->> 0)::bigint <= r.current and (x.slot ->> 0)::bigint = any (r.running)
        and not intervalq._is_in_place(r, x.slot)
    order by x.n
);


-- intervalq._usable: those of the listed slots that are valid and can be granted now. One of them may be the last
-- granted slot, even after it was moved to an earlier instant.
create or replace function intervalq._usable(r intervalq.queues, command jsonb, now bigint) returns jsonb
language plpgsql immutable
as $$
declare
    is_held constant boolean := r.held_since is not null;
    slots jsonb := command -> 'slots';
    alive bigint[] := '{}';
    t bigint;
    due bigint;
    cost numeric;
begin
    if is_held and r.held_until > now then
        return '[]';
    end if;
    for i in 0 .. jsonb_array_length(slots) - 1 loop
        t := slots -> i ->> 0;
        if not is_held and t > r.revoked_through and t <= r.ticket then
            alive := alive || t;
            continue;
        end if;
        due := slots -> i ->> 1;
        cost := coalesce((slots -> i ->> 2)::numeric, 1);
        -- While max_running alone holds the queue, slots that have a lease already are granted again.
        if not is_held and t = r.current and due = r.current_due and cost = 1 and intervalq._may_move(r, command)
            or is_held and t <= r.current and t = any (r.running) and intervalq._is_in_place(r, slots -> i)
        then
            alive := alive || t;
        end if;
    end loop;
    if cardinality(alive) < jsonb_array_length(slots) then
        slots := intervalq._listed(slots, alive);
    end if;
    return case when is_held and not intervalq._are_last(slots, r.current) then '[]' else slots end;
end
$$;


-- intervalq._is_late: whether a slot has come, by elapsed time, and will have passed before its job can begin.
create or replace function intervalq._is_late(r intervalq.queues, due bigint, notice bigint, now bigint)
returns boolean
language sql immutable
return due <= now - r.held_total and now - r.held_total + notice > intervalq._ends(r, due);
