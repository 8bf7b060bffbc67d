-- The other commands, reading and writing of records, and what the store calls.

-- intervalq._finish: the record after jobs ended; leases of jobs that still run are renewed.
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


-- intervalq._revoke_all: the record after all tickets that were not granted yet were revoked.
create or replace function intervalq._revoke_all(r intervalq.queues) returns intervalq.queues
language plpgsql immutable
as $$
begin
    if r.limits is not null then
        r := intervalq._uncount_behind(r);
    end if;
    r.revoked_through := r.ticket;
    r.due := r.current_due;
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
    if r.interval > old.interval or r.burst <> old.burst or early <> 0 or has_others then
        -- Revoke them, because the slots issued so far may be too close together for the new settings; with a
        -- larger burst, a missed slot would count as in time again; or jobs in granted slots may begin later than
        -- the units counted for a new slot allow for.
        r := intervalq._revoke_all(r);
    end if;
    if early <> 0 then
        -- If jobs may begin later from now on, those in granted slots may not: slots behind them are granted.
        r := intervalq._count_longer(r, greatest(1, early));
    end if;
    if has_others then
        r := intervalq._respread(r, given);
    end if;
    r.max_running := coalesce((command ->> 'max_running')::bigint, r.max_running);
    if r.max_running = 0 then
        r.running := '{}';
        r.leases := '{}';
    end if;
    if command ? 'weight' then
        r.weight := nullif((command ->> 'weight')::bigint, 0);
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
    r.version := 6;
    r.generation := command ->> 'nonce';
    r.interval := settings ->> 0;
    r.burst := settings ->> 1;
    r.max_running := settings ->> 2;
    r.tolerance := settings ->> 3;
    r.ephemeral := settings ->> 4;
    r.ticket := 0;
    -- A sender that knows an earlier record proves that it was lost, and that a job may have begun a moment ago:
    -- then the new record begins with one quiet interval. Otherwise the queue is new and was idle.
    r.due := now - case when command ? 'generation' then 0 else r.burst * r.interval end;
    r.current := 0;
    r.current_due := r.due;
    r.revoked_through := 0;
    r.held_total := 0;
    r.held_until := 0;
    r.last_now := now;
    r.running := '{}';
    r.leases := '{}';
    r.late_total := 0;
    r.error := 0;
    r.error_until := 0;
    if jsonb_array_length(settings) > 5 then
        r.stepped := 0;
        r.limits := intervalq._fresh_limits(settings -> 5, now, command ? 'generation');
    end if;
    if command ? 'settings_auto' then
        r := intervalq._adapted(r, command -> 'settings_auto', true);
    end if;
    return r;
end
$$;


-- intervalq._read: the record of a queue, checked, with the present layout; nulls if there is none. It is locked until
-- the end of the transaction, unless the command only reads.
create or replace function intervalq._read(queue text, op text, creates boolean) returns intervalq.queues
language plpgsql volatile
as $$
declare
    r intervalq.queues;
begin
    if op = 'inspect' then
        -- A look takes no lock, which would be a write. A replica's record may be old, so it isn't used.
        if pg_is_in_recovery() then
            raise exception 'this server is a replica' using errcode = '25006';
        end if;
        select q.* into r from intervalq.queues q where q.name = queue;
    else
        select q.* into r from intervalq.queues q where q.name = queue for update;
        if not found and creates then
            -- Transactions create the record one at a time; those that waited here find the row of the first.
            perform pg_advisory_xact_lock(hashtextextended(queue, 7310027118246817121));
            select q.* into r from intervalq.queues q where q.name = queue for update;
        end if;
    end if;
    if not found then
        return r;
    elsif r.version > 6 then
        raise exception 'the record has layout %, this schema knows up to 6', r.version
            using errcode = 'IQ002';
    elsif r.version < 1 or not intervalq._sound(r) then
        raise exception 'broken record' using errcode = 'IQ001';
    end if;
    r.version := 6;
    return r;
end
$$;


-- intervalq._save: write the record.
--   stored: there is a row already
--   sweeps: a new row also removes some that have lapsed
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
            ticket = r.ticket, due = r.due, current = r.current, current_due = r.current_due,
            revoked_through = r.revoked_through, held_total = r.held_total, held_since = r.held_since,
            held_until = r.held_until, last_now = r.last_now, running = r.running, leases = r.leases,
            late_total = r.late_total, error = r.error, error_until = r.error_until,
            limits = r.limits, stepped = r.stepped, auto = r.auto, weight = r.weight
        where q.name = r.name;
    else
        insert into intervalq.queues select r.*;
        if sweeps then
            perform intervalq._sweep(r.last_now);
        end if;
    end if;
end
$$;


-- intervalq._present: a record as of now; nulls if there is none, or it has lapsed.
create or replace function intervalq._present(r intervalq.queues, now bigint) returns intervalq.queues
language plpgsql stable
as $$
begin
    if r.name is not null then
        r := intervalq._settle(r, now);
        if intervalq._lapses(r) <= now then
            r := null;
        end if;
    end if;
    return r;
end
$$;


-- intervalq._no_answer: the answer about a record before a step.
create or replace function intervalq._no_answer(r intervalq.queues, now bigint) returns intervalq._answer
language sql immutable
return row(r, now, false, false, '{}', '{}', false, null, 0, '{}', '{}', '[]', 0, false)::intervalq._answer;


-- intervalq._disagrees: whether the sender of a command must hear of the settings of a record first.
create or replace function intervalq._disagrees(r intervalq.queues, command jsonb) returns boolean
language sql immutable
return command ? 'settings' and (
    (command ->> 'attach')::boolean and not intervalq._agree(r, command)
    or command ->> 'op' = 'advance' and (r.limits is not null or jsonb_array_length(command -> 'settings') > 5)
        and (command -> 'settings') - 0 - 0 - 0 - 0 - 0 <> intervalq._given(r.limits)
);


-- intervalq._done: what a command does on a record, as it is now; one whose fields are null is none.
create or replace function intervalq._done(r intervalq.queues, queue text, command jsonb, now bigint)
returns intervalq._answer
language plpgsql stable
as $$
declare
    op constant text := command ->> 'op';
    settings constant jsonb := command -> 'settings';
    alive constant boolean := r.name is not null;
    a intervalq._answer := intervalq._no_answer(null, now);
begin
    if op = 'inspect' or not alive and settings is null then
        a.state := case when alive then r end;
    elsif alive and settings is not null and intervalq._disagrees(r, command) then
        a.refused := true;
        a.state := r;
    else
        a.state := case when alive then r else intervalq._fresh(queue, command, now) end;
        if op = 'advance' then
            a := intervalq._advance(a, command, now);
        else
            a.state := intervalq._change(a.state, command, now);
        end if;
    end if;
    return a;
end
$$;


-- intervalq.apply: `rules.apply` on the record of one queue, atomically.
--   queue: its name
--   command: `Command.to_dict()`: its fields except those that are None; slots are [ticket, due], [ticket, due,
--       cost] or [ticket, due, cost, units...]
--   now_override: the store's clock in microseconds, in tests; null: the server's own clock
--   layout: the layout of records that the client knows; any but the present one fails as an undefined function
-- Returns the fields of `rules.Answer`; `first` is [ticket, due, cost] or null, `state` is the row or null.
-- The lock's time limit is shorter than the time for which a client waits, so nothing is done for a client that gave
-- up.
create or replace function intervalq.apply(queue text, command jsonb, now_override bigint, layout integer)
returns json
language plpgsql volatile
set search_path = pg_catalog, pg_temp
set lock_timeout = '4s'
as $$
declare
    op constant text := command ->> 'op';
    r intervalq.queues;
    a intervalq._answer;
    stored boolean;  -- there is a row
    was_held boolean;
    now bigint;
begin
    if layout <> 6 then
        raise exception 'no function for records of layout %', layout using errcode = '42883';
    end if;
    r := intervalq._read(queue, op, command ? 'settings' and op <> 'drop');
    -- Read while the lock is held, so that readings are in the order of the steps. now() would be older.
    now := coalesce(now_override, (extract(epoch from clock_timestamp()) * 1000000)::bigint);
    stored := r.name is not null;
    was_held := r.held_since is not null;
    r := intervalq._present(r, now);
    was_held := was_held and r.name is not null;
    if op = 'drop' then
        delete from intervalq.queues q where q.name = queue;
        a := intervalq._no_answer(null, now);
        a.woken := was_held;
    elsif op = 'advance' and intervalq._has_own_pace(r) is not null then
        a := intervalq._no_answer(r, now);
        a.refused := true;  -- slots of a key under one rate are taken in steps on two records
    else
        a := intervalq._done(r, queue, command, now);
        if op <> 'inspect' and not a.refused and (a.state).name is not null then
            perform intervalq._save(a.state, stored, now_override is null);
            a.woken := was_held and (a.state).held_since is null;
        end if;
    end if;
    if a.woken then
        -- The name of a channel has at most 63 bytes, that of a queue more. One channel per queue wakes no others.
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


-- intervalq.apply_all: `apply` for several commands, in this order, all or nothing.
--   steps: an array of [queue, command, now_override]; for a command on the record of a key under a common rate,
--     [shared, known] follow: see `apply_keyed`. Sorted by queue, with its keys behind it: rows stay locked until all
--     steps are done, so two callers with the same queues in different orders would deadlock.
--   layout: see `apply`
-- The detail of an error is the number of commands before the one that failed.
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
        if step ->> 3 is null then
            return next intervalq.apply(step ->> 0, step -> 1, (step ->> 2)::bigint, layout);
        else
            return next intervalq.apply_keyed(
                step ->> 0, step -> 1, (step ->> 2)::bigint, step ->> 3, step -> 4, layout
            );
        end if;
        done := done + 1;
    end loop;
exception when others then
    raise exception using errcode = sqlstate, message = sqlerrm, detail = done;
end
$$;
