-- A record: its validation, what follows from its fields, and its clock.

-- intervalq._sound: whether the rules may have written this record, and all stores can hold it. A single expression is
-- inlined, and costs about a microsecond.
create or replace function intervalq._sound(r intervalq.queues) returns boolean
language sql immutable
return coalesce(
    r.generation <> ''
    and r.interval between 1 and 9007199254740991
    and r.burst between 1 and 9007199254740991
    and r.max_running between 0 and 9007199254740991
    and r.tolerance between 0 and 9007199254740991
    and r.ticket between 0 and 9007199254740991
    and r.current between 0 and r.ticket
    and r.revoked_through between 0 and r.ticket
    and r.due between -9007199254740991 and 9007199254740991
    and r.current_due between -9007199254740991 and 9007199254740991
    and r.held_total between -9007199254740991 and 9007199254740991
    and r.held_until between -9007199254740991 and 9007199254740991
    and r.last_now between -9007199254740991 and 9007199254740991
    and r.late_total between 0 and 9007199254740991
    and r.error between 0 and 9007199254740991
    and r.error_until between -9007199254740991 and 9007199254740991
    and (r.held_since is null or r.held_since between -9007199254740991 and 9007199254740991)
    and cardinality(r.running) = cardinality(r.leases)
    and (
        cardinality(r.running) = 0
        or array_ndims(r.running) = 1 and array_ndims(r.leases) = 1
        and 0 <= all (r.running) and 9007199254740991 >= all (r.running)
        and -9007199254740991 <= all (r.leases) and 9007199254740991 >= all (r.leases)
    )
    and (r.limits is null or intervalq._sound_limits(r))
    and (r.auto is null or intervalq._sound_auto(r))
    and (r.weight is null or r.weight between 1 and 1000),
    false
);


-- intervalq._lapses: when a settled record may be forgotten (`rules.lapses`), on the store's clock.
-- Computed as numeric: one record with a huge burst must not make the sweep of all others fail.
create or replace function intervalq._lapses(r intervalq.queues) returns bigint
language sql immutable
return case
    when not r.ephemeral or r.held_since is not null or cardinality(r.running) > 0 then 9007199254740991
    else least(
        9007199254740991,
        r.due + r.held_total + (r.burst::numeric + 1) * r.interval
        + case when r.weight is null then 60000000 else 604800000000 end
        + case when r.limits is null then 0 else intervalq._kept(r) end
    )::bigint
end;


-- intervalq._clock: the queue's clock when the store's reads `now`.
create or replace function intervalq._clock(r intervalq.queues, now bigint) returns bigint
language sql immutable
return coalesce(r.held_since, now) - r.held_total;


-- intervalq._window: the length of a burst's slots. It is capped at 2**60, beyond which it makes no difference but
-- might overflow.
create or replace function intervalq._window(r intervalq.queues) returns bigint
language sql immutable
return case r.burst
    when 1 then r.interval
    else least(r.burst::numeric * r.interval, 1152921504606846976)::bigint
end;


-- intervalq._tolerance: how late after its slot a job may begin.
create or replace function intervalq._tolerance(r intervalq.queues) returns bigint
language sql immutable
return coalesce(nullif(least(r.tolerance, intervalq._window(r)), 0), intervalq._window(r) / 10);


-- intervalq._credit: how far in the past a slot may lie, because idle time is saved up for a burst.
create or replace function intervalq._credit(r intervalq.queues) returns bigint
language sql immutable
return case r.burst when 1 then 0 else intervalq._window(r) - r.interval end;


-- intervalq._has_own_pace: whether a key under one rate has a pace of its own; null: this isn't the record of such a key.
create or replace function intervalq._has_own_pace(r intervalq.queues) returns boolean
language sql immutable
return case when r.generation like 'own:%' then true when r.generation like 'shared:%' then false end;


-- intervalq._generation_of: the generation of the record of a key under one rate.
create or replace function intervalq._generation_of(nonce text, own_pace boolean) returns text
language sql immutable
return case when own_pace then 'own:' else 'shared:' end || nonce;


-- intervalq._lateness: how long after its slot a job may begin, including the error of clocks; for limits only.
create or replace function intervalq._lateness(r intervalq.queues) returns bigint
language sql immutable
return 2 * r.error + case
    when r.auto is null then intervalq._tolerance(r) + intervalq._credit(r)
    else intervalq._latest(r)
end;


-- intervalq._ends: the time until which a job may begin in the slot at `due`, on the queue's clock: after it, by the
-- tolerance and the burst credit.
create or replace function intervalq._ends(r intervalq.queues, due bigint) returns bigint
language sql immutable
return due + intervalq._tolerance(r) + intervalq._credit(r);


-- intervalq._resumed: the record after its hold ended.
create or replace function intervalq._resumed(r intervalq.queues, now bigint) returns intervalq.queues
language plpgsql immutable
as $$
begin
    if r.limits is not null then
        r := intervalq._moved(r, now - r.held_since);
    end if;
    r.held_total := r.held_total + now - r.held_since;
    r.held_since := null;
    return r;
end
$$;


-- intervalq._settle: the record as it stands at `now` (`rules.settle`).
create or replace function intervalq._settle(r intervalq.queues, now bigint) returns intervalq.queues
language plpgsql stable
as $$
declare
    back constant bigint := r.last_now - now;
    free_at bigint := 0;
begin
    if back > 0 then
        -- The clock was set back: shift all instants on it, so that the queue's clock continues.
        if r.limits is not null then
            r := intervalq._stepped(r, now);
        end if;
        r.held_total := r.held_total - back;
        r.stepped := r.stepped + back;
        r.held_since := r.held_since - back;
        if r.held_until > 0 and r.held_until < 9007199254740991 then
            r.held_until := r.held_until - back;
        end if;
        r.error_until := case when r.error > 0 then r.error_until - back else 0 end;
        r.leases := array(select l - back from unnest(r.leases) with ordinality as x (l, n) order by n);
    end if;
    r.last_now := now;
    if r.held_since is not null then
        if r.max_running > 0 and cardinality(r.running) >= r.max_running then
            -- The time at which enough leases will have lapsed for another job to run.
            select l into free_at from unnest(r.leases) as x (l)
            order by l offset cardinality(r.running) - r.max_running limit 1;
        end if;
        if greatest(r.held_until, free_at) <= now then
            -- The hold ended at its own end, not at this reading.
            r := intervalq._resumed(r, greatest(r.held_until, free_at));
        end if;
    end if;
    if r.error > 0 and r.error_until <= now then
        r.error := 0;
        r.error_until := 0;
    end if;
    if r.held_until <= now then
        r.held_until := 0;
    end if;
    if now >= any (r.leases) then
        select coalesce(array_agg(t), '{}'), coalesce(array_agg(l), '{}') into r.running, r.leases
        from unnest(r.running, r.leases) as x (t, l) where l > now;
    end if;
    if r.limits is not null then
        r := intervalq._age(r);
    end if;
    return r;
end
$$;


-- intervalq._recheck: the record after its hold began or ended, as pauses and running jobs require.
create or replace function intervalq._recheck(r intervalq.queues, now bigint) returns intervalq.queues
language plpgsql immutable
as $$
declare
    stop constant boolean := r.held_until > now
        or (r.max_running > 0 and cardinality(r.running) >= r.max_running);
begin
    if stop and r.held_since is null then
        r.held_since := now;
        -- A slot before one that was already granted would now move behind it, so it is dead.
        r.revoked_through := greatest(r.revoked_through, r.current);
        if r.limits is not null then
            r := intervalq._stay(r);
        end if;
    elsif not stop and r.held_since is not null then
        r := intervalq._resumed(r, now);
    end if;
    return r;
end
$$;
