-- The other commands, reading and writing of records, and what the store calls.

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
    if r.limits is not null then
        r := intervalq._uncount_behind(r);
    end if;
    r.void := r.ticket;
    r.due := r.at;
    return r;
end
$$;


-- intervalq._configure: the record with other settings.
create or replace function intervalq._configure(r intervalq.queues, command jsonb) returns intervalq.queues
language plpgsql immutable
as $$
declare
    old constant intervalq.queues := r;
    given constant jsonb := command -> 'limits';
    bounds constant jsonb := coalesce(
        command -> 'auto', case when command ? 'interval' then null else to_jsonb(r.auto[1:2]) end
    );
    early bigint;
    has_others boolean := false;
begin
    if given is not null then
        has_others := intervalq._given(r.limits)
            <> case given when '[]' then '[]' else jsonb_build_array(given) end;
    end if;
    r.interval := coalesce((command ->> 'interval')::bigint, r.interval);
    r.burst := coalesce((command ->> 'burst')::bigint, r.burst);
    if bounds is not null then
        r := intervalq._adapted(r, bounds, command ? 'interval');
    else
        r.auto := null;
    end if;
    if r.limits is not null then
        early := intervalq._lateness(old) - intervalq._lateness(r);
    end if;
    if r.interval > old.interval or r.burst <> old.burst or early > 0 or has_others then
        -- The slots handed out may be too close together for this; or with more credit, one that was missed
        -- already would count as in time again; or jobs in granted slots may begin later than the units of a
        -- new one allow for: take new ones.
        r := intervalq._revoke_all(r);
    end if;
    if early > 0 then
        r := intervalq._count_longer(r, early);
    end if;
    if has_others then
        r := intervalq._respread(r, given);
    end if;
    r.version := case when r.auto is null then intervalq._layout_of(r.limits) else 5 end;
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
            if command ? 'refusal' then
                r := intervalq._refused(r, command, now);
            else
                r.held_until := greatest(
                    r.held_until, least(9007199254740991, now + (command ->> 'length')::bigint)
                );
            end if;
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
    if jsonb_array_length(settings) > 5 then
        r.stepped := 0;
        r.limits := intervalq._fresh_limits(settings -> 5, now, command ? 'generation');
    end if;
    if command ? 'settings_auto' then
        r := intervalq._adapted(r, command -> 'settings_auto', true);
    end if;
    r.version := case when r.auto is null then intervalq._layout_of(r.limits) else 5 end;
    return r;
end
$$;


-- intervalq._read: the record of a queue, checked, with layout 2 to 5; nulls if there is none.
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
    elsif r.version > 5 then
        raise exception 'the record has layout %, this schema knows up to 5', r.version
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
            leases = r.leases, late = r.late, error = r.error, error_until = r.error_until,
            limits = r.limits, stepped = r.stepped, auto = r.auto
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
--   command: `Command.to_dict()`: its fields, but those that are None; slots are [ticket, due], [ticket, due,
--       cost] or [ticket, due, cost, units...]
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
    a intervalq._answer := row(null, 0, false, false, '{}', '{}', false, null, 0, '{}', '{}', '[]', 0, false);
    stored boolean;              -- there is a row
    alive boolean := false;      -- and a record in it that has not lapsed
    was_held boolean := false;
    now bigint;
begin
    if layout <> 5 then
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
    elsif alive and settings is not null and (
        (command ->> 'attach')::boolean and not intervalq._agree(r, command)
        or op = 'advance' and (r.limits is not null or jsonb_array_length(settings) > 5)
            and settings - 0 - 0 - 0 - 0 - 0 <> intervalq._given(r.limits)
    ) then
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
