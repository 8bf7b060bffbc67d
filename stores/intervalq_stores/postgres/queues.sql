-- The rules of `intervalq/rules.py` in PL/pgSQL: one row a queue, one statement a step.
--
-- Public, called by the store:
--   intervalq.apply(queue, command, now_override, layout)   one step on one record
--   intervalq.names()                                       the queues that have a record
--   intervalq.apply_all(steps, layout)                      one step on each of several records
-- Private: what begins with an underscore; only `apply` calls it, and sets the search path for all of it.
--
-- The file is whole, and may be run again: it makes schema `intervalq` or brings an older one up to its
-- version, all in one transaction. The store runs it on first use. Where its role may not create schemas, an
-- administrator runs it with `psql -f queues.sql`, and then, for that role:
--   grant usage on schema intervalq to some_role;
--   grant select on intervalq.version to some_role;
--   grant select, insert, update, delete on intervalq.queues to some_role;
--
-- All times are whole microseconds in bigint. 9007199254740991 (2**53 - 1) is FOREVER of the rules.
-- SQLSTATE of what is raised here: IQ001 a broken record, IQ002 something of a newer version, 22003 a number
-- beyond FOREVER (as Postgres's own overflow), 25006 a replica.

begin;

-- Names are resolved when the functions below are made, never by the path of a later caller.
set local search_path = pg_catalog, pg_temp;
set local client_min_messages = warning;

-- Many processes may begin at the same moment: the first one makes the schema, the others find it.
do $$
begin
    perform pg_advisory_xact_lock(7310027118246817121);  -- any number will do; it is only used here
    if to_regclass('intervalq.version') is not null then
        if (select max(v.number) from intervalq.version v) > 2 then
            raise exception 'schema intervalq is newer than this file, which makes version 2'
                using errcode = 'IQ002';
        end if;
    end if;
end
$$;

create schema if not exists intervalq;

-- The version of everything in this file, functions too: any change to it counts this up, here, in the check
-- above, in the last statement, and in `SCHEMA` of queues.py. What `create ... if not exists` and
-- `create or replace` can't do to an older version is added below as `alter ... if exists`. When an older
-- client can't work with the new functions, as with a new layout of records, `apply` takes another `layout`:
-- clients that are connected then fail with "undefined function", look at the version, and say so.
create table if not exists intervalq.version (
    one boolean primary key default true check (one),
    number integer not null
);

-- One row a queue; the columns are the fields of `rules.State.to_dict()`. There is no index beside the primary
-- key, and much room in each page: every step is an update, and stays within the page (HOT) with nothing to
-- index.
create table if not exists intervalq.queues (
    name text collate "C" primary key,
    version integer not null,
    generation text not null,
    interval bigint not null,
    burst bigint not null,
    max_running bigint not null,
    tolerance bigint not null,
    ephemeral boolean not null,
    ticket bigint not null,
    due bigint not null,
    current bigint not null,
    at bigint not null,
    void bigint not null,
    held bigint not null,
    held_since bigint,
    held_until bigint not null,
    seen bigint not null,
    running bigint[] not null,  -- tickets, each once
    leases bigint[] not null,   -- when the lease of each of them lapses
    late bigint not null default 0,
    error bigint not null default 0,
    error_until bigint not null default 0
) with (fillfactor = 50);

-- From version 1, whose rows have layout 1: each gets layout 2 when a step is done on it.
alter table if exists intervalq.queues
    add column if not exists late bigint not null default 0,
    add column if not exists error bigint not null default 0,
    add column if not exists error_until bigint not null default 0;
drop function if exists intervalq.apply(text, jsonb, bigint);
drop function if exists intervalq._shown(intervalq.queues);
drop function if exists intervalq._leases(bigint[], bigint[]);

-- What a step did, `rules.Answer`: a function that gives a type with a name costs far less than one with
-- several results. All functions with this type are made anew below.
drop type if exists intervalq._answer cascade;
create type intervalq._answer as (
    state intervalq.queues,  -- null: there is none
    now bigint,
    refused boolean,
    healed boolean,
    granted bigint[],
    missed bigint[],
    at_once boolean,
    first bigint[],          -- ticket, due, cost
    count bigint,
    costs bigint[],
    begun bigint,
    woken boolean
);


-- intervalq._sound: whether a record is one that the rules may have written, and all stores can hold.
-- As an expression it is inlined, and costs about a microsecond.
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
    and r.void between 0 and r.ticket
    and r.due between -9007199254740991 and 9007199254740991
    and r.at between -9007199254740991 and 9007199254740991
    and r.held between -9007199254740991 and 9007199254740991
    and r.held_until between -9007199254740991 and 9007199254740991
    and r.seen between -9007199254740991 and 9007199254740991
    and r.late between 0 and 9007199254740991
    and r.error between 0 and 9007199254740991
    and r.error_until between -9007199254740991 and 9007199254740991
    and (r.held_since is null or r.held_since between -9007199254740991 and 9007199254740991)
    and cardinality(r.running) = cardinality(r.leases)
    and (
        cardinality(r.running) = 0
        or array_ndims(r.running) = 1 and array_ndims(r.leases) = 1
        and 0 <= all (r.running) and 9007199254740991 >= all (r.running)
        and -9007199254740991 <= all (r.leases) and 9007199254740991 >= all (r.leases)
    ),
    false
);


-- intervalq._lapses: when a settled record may be forgotten (`rules.lapses`), on the store's clock.
-- In numeric: one record with a huge burst must not break the sweep of all the others.
create or replace function intervalq._lapses(r intervalq.queues) returns bigint
language sql immutable
return case
    when not r.ephemeral or r.held_since is not null or cardinality(r.running) > 0 then 9007199254740991
    else least(9007199254740991, r.due + r.held + (r.burst::numeric + 1) * r.interval + 60000000)::bigint
end;


-- intervalq._clock: the queue's clock when the store's reads `now`.
create or replace function intervalq._clock(r intervalq.queues, now bigint) returns bigint
language sql immutable
return coalesce(r.held_since, now) - r.held;


-- intervalq._window: the slots of a burst, as a length. Beyond 2**60 no more makes any difference, but might
-- overflow.
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


-- intervalq._credit: how far behind the clock a slot may lie because idle time was saved up for a burst.
create or replace function intervalq._credit(r intervalq.queues) returns bigint
language sql immutable
return case r.burst when 1 then 0 else intervalq._window(r) - r.interval end;


-- intervalq._ends: until when a job may begin in the slot at `due`, on the queue's clock.
-- That is its tolerance and the burst credit later.
create or replace function intervalq._ends(r intervalq.queues, due bigint) returns bigint
language sql immutable
return due + intervalq._tolerance(r) + intervalq._credit(r);


-- intervalq._settle: the record as it stands at `now` (`rules.settle`).
create or replace function intervalq._settle(r intervalq.queues, now bigint) returns intervalq.queues
language plpgsql stable
as $$
declare
    back constant bigint := r.seen - now;
    free_at bigint := 0;
begin
    if back > 0 then
        -- The clock was set back: all instants on it move along, so that the queue's clock just goes on.
        r.held := r.held - back;
        r.held_since := r.held_since - back;
        if r.held_until > 0 and r.held_until < 9007199254740991 then
            r.held_until := r.held_until - back;
        end if;
        r.error_until := case when r.error > 0 then r.error_until - back else 0 end;
        r.leases := array(select l - back from unnest(r.leases) with ordinality as x (l, n) order by n);
    end if;
    r.seen := now;
    if r.held_since is not null then
        if r.max_running > 0 and cardinality(r.running) >= r.max_running then
            -- When enough leases will have lapsed to let another job run.
            select l into free_at from unnest(r.leases) as x (l)
            order by l offset cardinality(r.running) - r.max_running limit 1;
        end if;
        if greatest(r.held_until, free_at) <= now then
            -- The hold ended at its own end, not when somebody came to look.
            r.held := r.held + greatest(r.held_until, free_at) - r.held_since;
            r.held_since := null;
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
    return r;
end
$$;


-- intervalq._recheck: the record with its hold begun or ended, as pause and running jobs demand.
create or replace function intervalq._recheck(r intervalq.queues, now bigint) returns intervalq.queues
language plpgsql immutable
as $$
declare
    stop constant boolean := r.held_until > now
        or (r.max_running > 0 and cardinality(r.running) >= r.max_running);
begin
    if stop and r.held_since is null then
        r.held_since := now;
        -- A slot before one that was already granted would move behind it now: it is dead.
        r.void := greatest(r.void, r.current);
    elsif not stop and r.held_since is not null then
        r.held := r.held + now - r.held_since;
        r.held_since := null;
    end if;
    return r;
end
$$;


-- intervalq._go: the record after a slot was granted.
--   t, slot_due: the ticket, and the last slot that it paid for
--   lease: microseconds that its job counts as running, used with a limit only
create or replace function intervalq._go(
    r intervalq.queues, t bigint, slot_due bigint, now bigint, lease bigint
) returns intervalq.queues
language plpgsql immutable
as $$
declare
    known_at integer;
begin
    r.current := greatest(r.current, t);
    r.at := greatest(r.at, slot_due);
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


-- intervalq._give_back: the record with those slots free again that are the very last ones issued.
--   slots: as in the command, in ticket order; those of tickets up to `above` are passed over.
create or replace function intervalq._give_back(r intervalq.queues, slots jsonb, above bigint)
returns intervalq.queues
language plpgsql immutable
as $$
declare
    last bigint := r.ticket;
    t bigint;
begin
    for i in reverse jsonb_array_length(slots) - 1 .. 0 loop
        t := (slots -> i ->> 0)::bigint;
        continue when t <= above;
        exit when t <> last or t <= r.void;
        r.due := least(r.due, (slots -> i ->> 1)::bigint - r.interval);
        last := last - 1;
    end loop;
    return r;
end
$$;


-- intervalq._sweep: delete a few ephemeral records that have lapsed by `now`.
-- It looks at one page of the table, at random: whoever makes records so removes about as many in the long
-- run, no index is needed to find them, and nobody waits for anybody's lock.
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
            -- None lapses earlier than this after its last step: saves most of the work below.
            and q.ephemeral and q.seen < now - 60000000 and q.version in (1, 2) and intervalq._sound(q)
            and intervalq._lapses(intervalq._settle(q, now)) <= now
        limit 16
        for update skip locked
    ));
end
$$;


-- intervalq._set_back: the record with its queue's clock set back: what comes of a late grant.
create or replace function intervalq._set_back(r intervalq.queues, length bigint) returns intervalq.queues
language plpgsql immutable
as $$
begin
    r.held := r.held + length;
    r.late := r.late + length;
    return r;
end
$$;


-- intervalq._set_back_for: the record with its queue's clock set back so far that a slot ends in `notice`.
-- Tickets before it would move behind what was granted: those that were not granted are dead. At the limit of
-- running jobs the hold begins anew: what counted as late is not held once more.
create or replace function intervalq._set_back_for(r intervalq.queues, slot jsonb, notice bigint, now bigint)
returns intervalq.queues
language plpgsql immutable
as $$
declare
    late constant bigint := now - r.held + notice - intervalq._ends(r, (slot ->> 1)::bigint);
begin
    r := intervalq._set_back(r, late);
    if r.held_since is not null then
        r.held_since := now;
    end if;
    r.void := greatest(r.void, (slot ->> 0)::bigint - 1);
    return r;
end
$$;


-- intervalq._heal: a record brought forward that has lost tickets or late grants which the sender knows of.
--   mark: [ticket, due, late_total]
create or replace function intervalq._heal(r intervalq.queues, mark jsonb) returns intervalq.queues
language plpgsql immutable
as $$
begin
    if (mark ->> 0)::bigint > r.ticket then
        r.ticket := mark ->> 0;
        r.due := greatest(r.due, (mark ->> 1)::bigint);
    end if;
    return intervalq._set_back(r, greatest(0, (mark ->> 2)::bigint - r.late));
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


-- intervalq._listed: the slots that have one of these tickets.
create or replace function intervalq._listed(slots jsonb, tickets bigint[]) returns jsonb
language sql immutable
return (
    select coalesce(jsonb_agg(x.slot order by x.n), '[]')
    from jsonb_array_elements(slots) with ordinality as x (slot, n)
    where (x.slot ->> 0)::bigint = any (tickets)
);


-- intervalq._usable: those of the slots that are alive, and can be granted while the queue is as it is.
create or replace function intervalq._usable(r intervalq.queues, slots jsonb, now bigint) returns jsonb
language plpgsql immutable
as $$
declare
    held constant boolean := r.held_since is not null;
    alive bigint[] := '{}';
    t bigint;
begin
    if held and r.held_until > now then
        return '[]';
    end if;
    for i in 0 .. jsonb_array_length(slots) - 1 loop
        t := slots -> i ->> 0;
        -- While the queue is only at its limit, those that have leases already are granted again.
        if not held and t > r.void and t <= r.ticket or held and t <= r.current and t = any (r.running) then
            alive := alive || t;
        end if;
    end loop;
    if cardinality(alive) < jsonb_array_length(slots) then
        slots := intervalq._listed(slots, alive);
    end if;
    return case when held and not intervalq._are_last(slots, r.current) then '[]' else slots end;
end
$$;


-- intervalq._is_late: whether a slot has come, by the time that has really passed, and will be over before
-- its job can begin.
create or replace function intervalq._is_late(r intervalq.queues, due bigint, notice bigint, now bigint)
returns boolean
language sql immutable
return due <= now - r.held and now - r.held + notice > intervalq._ends(r, due);


-- intervalq._use: the answer with the listed slots granted, or found dead; or neither.
create or replace function intervalq._use(a intervalq._answer, command jsonb, now bigint, known boolean)
returns intervalq._answer
language plpgsql immutable
as $$
declare
    r intervalq.queues := a.state;
    held constant boolean := r.held_since is not null;
    listed constant jsonb := command -> 'slots';
    slots constant jsonb := case when known then intervalq._usable(r, listed, now) else '[]' end;
    due bigint := slots -> 0 ->> 1;
    notice constant bigint := command ->> 'notice';
    earliest bigint;
    t bigint;
    kept bigint[] := '{}';
begin
    if held and slots = '[]' then
        return a;
    end if;
    if (slots -> 0 ->> 0)::bigint > r.current and due > intervalq._clock(r, now) + (command ->> 'ahead')::bigint then
        return a;  -- too far ahead: its sender has not heard that the queue's clock was set back
    end if;
    if intervalq._is_late(r, due, notice, now) and command ? 'until'
        and intervalq._are_last(slots, r.current)
    then
        if now > (command ->> 'until')::bigint
            or (command -> 'high_water_mark' ->> 2)::bigint is distinct from r.late
        then
            return a;  -- a copy, or sent before a late grant was heard of: it is asked again
        end if;
        r := intervalq._set_back_for(r, slots -> 0, notice, now);
        a.at_once := true;
    end if;
    earliest := intervalq._clock(r, now) - intervalq._tolerance(r) - intervalq._credit(r);
    for i in 0 .. jsonb_array_length(slots) - 1 loop
        due := slots -> i ->> 1;
        continue when due < earliest;
        t := slots -> i ->> 0;
        kept := kept || t;
        if held or r.held_since is null then  -- each may be the last one that the limit allows
            due := due + (coalesce((slots -> i ->> 2)::bigint, 1) - 1) * r.interval;
            r := intervalq._go(r, t, due, now, (command ->> 'lease')::bigint);
            a.granted := a.granted || t;
        end if;
    end loop;
    a.state := r;
    if not held and cardinality(kept) < jsonb_array_length(listed) then
        for i in 0 .. jsonb_array_length(listed) - 1 loop
            t := listed -> i ->> 0;
            if t <> all (kept) then
                a.missed := a.missed || t;
            end if;
        end loop;
    end if;
    return a;
end
$$;


-- intervalq._costs: what the first of the new tickets cost, in slots; the others cost one.
--   missed: slots that new tickets take the place of; given: the costs of the command
create or replace function intervalq._costs(missed jsonb, given jsonb) returns bigint[]
language sql immutable
return array(
    select coalesce((x.slot ->> 2)::bigint, 1)
    from jsonb_array_elements(missed) with ordinality as x (slot, n) order by x.n
) || array(
    select x.cost::bigint
    from jsonb_array_elements_text(given) with ordinality as x (cost, n) order by x.n
);


-- intervalq._starts: where the slots of `wanted` tickets begin, in slots behind the first one, and behind the
-- last of them: as far as there is `room`. In slots and numeric: costs times intervals would overflow.
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


-- intervalq._take: the answer with new tickets issued, and those granted whose slots are near.
--   costs: what the first of them cost; null: one slot each
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
        r := intervalq._go(
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


-- intervalq._known: the answer after what a sender says that knows the record: its mark, and slots that it
-- gives back.
create or replace function intervalq._known(a intervalq._answer, command jsonb) returns intervalq._answer
language plpgsql immutable
as $$
declare
    r intervalq.queues := a.state;
    mark constant jsonb := command -> 'high_water_mark';
begin
    if (mark ->> 0)::bigint > r.ticket or (mark ->> 2)::bigint > r.late then
        a.healed := true;
        r := intervalq._heal(r, mark);
    end if;
    if command -> 'release' <> '[]' then
        r := intervalq._give_back(r, command -> 'release', -9007199254740991);
    end if;
    a.state := r;
    return a;
end
$$;


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
    if command -> 'slots' <> '[]' then
        a := intervalq._use(a, command, now, known);
    end if;
    if a.missed <> '{}' then
        missed := intervalq._listed(command -> 'slots', a.missed);
        wanted := least(1000, take + cardinality(a.missed));
        if known then
            -- One that was granted before may have been used: this may be an old request.
            a.state := intervalq._give_back(a.state, missed, (a.state).current);
        end if;
    end if;
    if wanted = 0 or (a.state).held_since is not null then
        return a;
    end if;
    if missed <> '[]' or command -> 'costs' <> '[]' then
        costs := intervalq._costs(missed, command -> 'costs');
    end if;
    return intervalq._take(a, command, now, costs, wanted);
end
$$;


-- intervalq._finish: the record after jobs ended, and with the leases of those that still run renewed.
create or replace function intervalq._finish(r intervalq.queues, command jsonb, now bigint)
returns intervalq.queues
language plpgsql immutable
as $$
begin
    if command ->> 'generation' = r.generation and r.max_running > 0 then
        select coalesce(array_agg(x.t), '{}'), coalesce(array_agg(x.l), '{}') into r.running, r.leases
        from (
            select o.t, o.l from unnest(r.running, r.leases) as o (t, l)
            where not (command -> 'ended') @> to_jsonb(o.t) and not (command -> 'running') @> to_jsonb(o.t)
            union all
            select distinct e.t::bigint, now + (command ->> 'lease')::bigint
            from jsonb_array_elements_text(command -> 'running') as e (t)
        ) as x (t, l);
    end if;
    return r;
end
$$;


-- intervalq._revoke_all: the record with all tickets dead that were not yet granted.
create or replace function intervalq._revoke_all(r intervalq.queues) returns intervalq.queues
language plpgsql immutable
as $$
begin
    r.void := r.ticket;
    r.due := r.at;
    return r;
end
$$;


-- intervalq._configure: the record with other settings.
create or replace function intervalq._configure(r intervalq.queues, command jsonb) returns intervalq.queues
language plpgsql immutable
as $$
begin
    if (command ->> 'interval')::bigint > r.interval or (command ->> 'burst')::bigint <> r.burst then
        -- The slots handed out are too close together for this; or with more credit, one that was missed
        -- already would count as in time again: take new ones.
        r := intervalq._revoke_all(r);
    end if;
    r.interval := coalesce((command ->> 'interval')::bigint, r.interval);
    r.burst := coalesce((command ->> 'burst')::bigint, r.burst);
    r.max_running := coalesce((command ->> 'max_running')::bigint, r.max_running);
    if r.max_running = 0 then
        r.running := '{}';
        r.leases := '{}';
    end if;
    return r;
end
$$;


-- intervalq._change: the record after a command that is not an advance.
create or replace function intervalq._change(r intervalq.queues, command jsonb, now bigint)
returns intervalq.queues
language plpgsql immutable
as $$
begin
    case command ->> 'op'
        when 'hold' then
            r.held_until := greatest(
                r.held_until, least(9007199254740991, now + (command ->> 'length')::bigint)
            );
        when 'resume' then
            r.held_until := 0;
        when 'configure' then
            r := intervalq._configure(r, command);
        when 'finish' then
            r := intervalq._finish(r, command, now);
        when 'reclaim' then
            return intervalq._revoke_all(r);
        else
            raise exception 'no rule for %', command ->> 'op' using errcode = 'IQ002';
    end case;
    return intervalq._recheck(r, now);
end
$$;


-- intervalq._fresh: a new record.
create or replace function intervalq._fresh(queue text, command jsonb, now bigint) returns intervalq.queues
language plpgsql immutable
as $$
declare
    settings constant jsonb := command -> 'settings';
    r intervalq.queues;
begin
    r.name := queue;
    r.version := 2;
    r.generation := command ->> 'nonce';
    r.interval := settings ->> 0;
    r.burst := settings ->> 1;
    r.max_running := settings ->> 2;
    r.tolerance := settings ->> 3;
    r.ephemeral := settings ->> 4;
    r.ticket := 0;
    -- A sender that knows an earlier record proves that this one was lost, and that a job may have begun a
    -- moment ago: then one quiet interval. Else the queue is new and has been idle.
    r.due := now - case when command ? 'generation' then 0 else r.burst * r.interval end;
    r.current := 0;
    r.at := r.due;
    r.void := 0;
    r.held := 0;
    r.held_until := 0;
    r.seen := now;
    r.running := '{}';
    r.leases := '{}';
    r.late := 0;
    r.error := 0;
    r.error_until := 0;
    return r;
end
$$;


-- intervalq._read: the record of a queue, checked, with layout 2; nulls if there is none.
-- It is locked until the end of the transaction, unless it is only looked at.
create or replace function intervalq._read(queue text, op text, creates boolean) returns intervalq.queues
language plpgsql volatile
as $$
declare
    r intervalq.queues;
begin
    if op = 'inspect' then
        -- It doesn't lock: that would be a write. A replica's record may be old: nobody should go by it.
        if pg_is_in_recovery() then
            raise exception 'this server is a replica' using errcode = '25006';
        end if;
        select q.* into r from intervalq.queues q where q.name = queue;
    else
        select q.* into r from intervalq.queues q where q.name = queue for update;
        if not found and creates then
            -- One at a time makes the record; who waited here finds the row of the one before.
            perform pg_advisory_xact_lock(hashtextextended(queue, 7310027118246817121));
            select q.* into r from intervalq.queues q where q.name = queue for update;
        end if;
    end if;
    if not found then
        return r;
    elsif r.version > 2 then
        raise exception 'the record has layout %, this schema knows up to 2', r.version
            using errcode = 'IQ002';
    elsif r.version = 1 then
        r.version := 2;
        r.late := 0;
        r.error := 0;
        r.error_until := 0;
    end if;
    if r.version < 1 or not intervalq._sound(r) then
        raise exception 'broken record' using errcode = 'IQ001';
    end if;
    return r;
end
$$;


-- intervalq._save: the record is kept. `stored`: there is a row; `sweeps`: a new one makes room.
create or replace function intervalq._save(r intervalq.queues, stored boolean, sweeps boolean) returns void
language plpgsql volatile
as $$
begin
    if not intervalq._sound(r) then
        raise exception 'a number is beyond what a record holds' using errcode = '22003';
    elsif stored then
        update intervalq.queues q set
            version = r.version, generation = r.generation, interval = r.interval, burst = r.burst,
            max_running = r.max_running, tolerance = r.tolerance, ephemeral = r.ephemeral,
            ticket = r.ticket, due = r.due, current = r.current, at = r.at, void = r.void, held = r.held,
            held_since = r.held_since, held_until = r.held_until, seen = r.seen, running = r.running,
            leases = r.leases, late = r.late, error = r.error, error_until = r.error_until
        where q.name = r.name;
    else
        insert into intervalq.queues select r.*;
        if sweeps then
            perform intervalq._sweep(r.seen);
        end if;
    end if;
end
$$;


-- intervalq.apply: `rules.apply` on the record of one queue, atomically.
--   queue: its name
--   command: `Command.to_dict()`: its fields, but those that are None; slots are [ticket, due] or [ticket,
--       due, cost]
--   now_override: the store's clock in microseconds, in tests; null: the server's own clock
--   layout: that of the records which the client can read
-- Returns the fields of `rules.Answer`; `first` is [ticket, due, cost] or null, `state` is the row or null.
-- The lock's limit is below the time that a client waits: nothing is done for one who has given up.
create or replace function intervalq.apply(queue text, command jsonb, now_override bigint, layout integer)
returns json
language plpgsql volatile
set search_path = pg_catalog, pg_temp
set lock_timeout = '4s'
as $$
declare
    op constant text := command ->> 'op';
    settings constant jsonb := command -> 'settings';
    r intervalq.queues;
    a intervalq._answer := row(null, 0, false, false, '{}', '{}', false, null, 0, '{}', 0, false);
    stored boolean;              -- there is a row
    alive boolean := false;      -- and a record in it that has not lapsed
    was_held boolean := false;
    now bigint;
begin
    if layout <> 2 then
        raise exception 'no function for records of layout %', layout using errcode = '42883';
    end if;
    r := intervalq._read(queue, op, settings is not null and op <> 'drop');
    -- Only now, with the lock held: readings are in the order of the steps. Not now(), which is older.
    now := coalesce(now_override, (extract(epoch from clock_timestamp()) * 1000000)::bigint);
    a.now := now;
    stored := r.name is not null;
    if stored then
        was_held := r.held_since is not null;
        r := intervalq._settle(r, now);
        alive := intervalq._lapses(r) > now;
        was_held := was_held and alive;
    end if;
    if op = 'drop' then
        delete from intervalq.queues q where q.name = queue;
        a.woken := was_held;
    elsif op = 'inspect' or not alive and settings is null then
        a.state := case when alive then r end;
    elsif alive and settings is not null and (command ->> 'attach')::boolean and settings
        <> jsonb_build_array(r.interval, r.burst, r.max_running, r.tolerance, r.ephemeral::integer)
    then
        a.refused := true;
        a.state := r;
    else
        a.state := case when alive then r else intervalq._fresh(queue, command, now) end;
        if op = 'advance' then
            a := intervalq._advance(a, command, now);
        else
            a.state := intervalq._change(a.state, command, now);
        end if;
        perform intervalq._save(a.state, stored, now_override is null);
        a.woken := was_held and (a.state).held_since is null;
    end if;
    if a.woken then
        -- Channels have 63 bytes, names more; a channel a queue wakes nobody else.
        perform pg_notify('intervalq_' || left(encode(sha256(convert_to(queue, 'UTF8')), 'hex'), 40), '');
    end if;
    return row_to_json(a);
end
$$;


-- intervalq.names: the queues that have a record, sorted by code point.
create or replace function intervalq.names() returns setof text
language sql stable
begin atomic
    select q.name from intervalq.queues q order by q.name;
end;


-- intervalq.apply_all: `apply` for several commands, in this order; all of them are done, or none.
--   steps: of each its [queue, command, now_override]. Sorted by queue: as rows stay locked until all are
--     done, two callers with the same queues in a different order would wait for each other.
--   layout: see `apply`
-- An error has in its detail how many commands came before the one that failed.
create or replace function intervalq.apply_all(steps jsonb, layout integer)
returns setof json
language plpgsql volatile
set search_path = pg_catalog, pg_temp
as $$
declare
    step jsonb;
    done integer := 0;
begin
    for step in select e.value from jsonb_array_elements(steps) as e loop
        return next intervalq.apply(step ->> 0, step -> 1, (step ->> 2)::bigint, layout);
        done := done + 1;
    end loop;
exception when others then
    raise exception using errcode = sqlstate, message = sqlerrm, detail = done;
end
$$;


insert into intervalq.version (number) values (2)
on conflict (one) do update set number = excluded.number where version.number <> excluded.number;

commit;
