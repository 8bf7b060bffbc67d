-- The rules of `intervalq/rules.py` in PL/pgSQL: one row a queue, one statement a step.
--
-- Public, called by the store:
--   intervalq.apply(queue, command, now_override)   one step on one record
--   intervalq.names()                               the queues that have a record
-- Private: what begins with an underscore; only `apply` calls it.
--
-- The file is whole, and may be run again: it makes schema `intervalq` or brings an older one up to its
-- version, all in one transaction. The store runs it on first use. Where its role may not create schemas, an
-- administrator runs it with `psql -f postgres.sql`, and then, for that role:
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
        if (select max(v.number) from intervalq.version v) > 1 then
            raise exception 'schema intervalq is newer than this file, which makes version 1'
                using errcode = 'IQ002';
        end if;
    end if;
end
$$;

create schema if not exists intervalq;

-- The version of everything in this file, functions too: any change to it counts this up, here, in the check
-- above, in the last statement, and in `SCHEMA` of postgres.py. What `create ... if not exists` and
-- `create or replace` can't do to an older version is added below as `alter ... if exists`. When an older
-- client can't work with the new functions, `apply` gets other arguments: clients that are connected then
-- fail with "undefined function", look at the version, and say so.
create table if not exists intervalq.version (
    one boolean primary key default true check (one),
    number integer not null
);

-- One row a queue; the columns are the fields of `rules.State`. There is no index beside the primary key, and
-- much room in each page: every step is an update, and stays within the page (HOT) with nothing to index.
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
    leases bigint[] not null    -- when the lease of each of them lapses
) with (fillfactor = 50);


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
    and (r.held_since is null or r.held_since between -9007199254740991 and 9007199254740991)
    and cardinality(r.running) = cardinality(r.leases)
    and (
        cardinality(r.running) = 0
        or 0 <= all (r.running) and 9007199254740991 >= all (r.running)
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


-- intervalq._shard.leases: running jobs as an object of ticket and lapse; apart, so that `_shown` is inlined.
create or replace function intervalq._leases(running bigint[], leases bigint[]) returns jsonb
language sql immutable
return (select jsonb_object_agg(x.t, x.l) from unnest(running, leases) as x (t, l));


-- intervalq._shown: a record as `rules.State.from_dict` takes it.
create or replace function intervalq._shown(r intervalq.queues) returns jsonb
language sql stable
return jsonb_build_object(
    'version', r.version, 'generation', r.generation, 'interval', r.interval, 'burst', r.burst,
    'max_running', r.max_running, 'tolerance', r.tolerance, 'ephemeral', r.ephemeral,
    'ticket', r.ticket, 'due', r.due, 'current', r.current, 'at', r.at, 'void', r.void, 'held', r.held,
    'held_since', r.held_since, 'held_until', r.held_until, 'seen', r.seen,
    'running', case
        when cardinality(r.running) = 0 then '{}'::jsonb
        else intervalq._leases(r.running, r.leases)
    end
);


-- intervalq._settle: the record as it stands at `now` (`rules.settle`).
create or replace function intervalq._settle(r intervalq.queues, now bigint) returns intervalq.queues
language plpgsql stable
set search_path = pg_catalog, pg_temp
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
set search_path = pg_catalog, pg_temp
as $$
declare
    stop constant boolean := r.held_until > now
        or (r.max_running > 0 and cardinality(r.running) >= r.max_running);
begin
    if stop and r.held_since is null then
        r.held_since := now;
        -- A slot before one that was already told to go would move behind it now: it is dead.
        r.void := greatest(r.void, r.current);
    elsif not stop and r.held_since is not null then
        r.held := r.held + now - r.held_since;
        r.held_since := null;
    end if;
    return r;
end
$$;


-- intervalq._go: the record after the owner of a slot was told to go.
--   t, slot_due: the slot; lease: microseconds that its job counts as running, used with a limit only.
create or replace function intervalq._go(
    r intervalq.queues, t bigint, slot_due bigint, now bigint, lease bigint
) returns intervalq.queues
language plpgsql immutable
set search_path = pg_catalog, pg_temp
as $$
declare
    known_at constant integer := array_position(r.running, t);
begin
    r.current := greatest(r.current, t);
    r.at := greatest(r.at, slot_due);
    if r.max_running > 0 then
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
--   slots: [[ticket, due], ...] in ticket order; those of tickets up to `above` are passed over.
create or replace function intervalq._give_back(r intervalq.queues, slots jsonb, above bigint)
returns intervalq.queues
language plpgsql immutable
set search_path = pg_catalog, pg_temp
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
set search_path = pg_catalog, pg_temp
as $$
declare
    pages constant bigint := pg_relation_size('intervalq.queues') / current_setting('block_size')::bigint;
    page constant bigint := floor(random() * pages);
begin
    delete from intervalq.queues d where d.ctid = any (array(
        select q.ctid from intervalq.queues q
        where q.ctid >= format('(%s,0)', page)::tid and q.ctid < format('(%s,0)', page + 1)::tid
            -- None lapses earlier than this after its last step: saves most of the work below.
            and q.ephemeral and q.seen < now - 60000000 and q.version = 1 and intervalq._sound(q)
            and intervalq._lapses(intervalq._settle(q, now)) <= now
        limit 16
        for update skip locked
    ));
end
$$;


-- intervalq.apply: `rules.apply` on the record of one queue, atomically.
--   queue: its name
--   command: `Command.to_dict()`: its fields, but those that are None; slots are pairs [ticket, due]
--   now_override: the store's clock in microseconds, in tests; null: the server's own clock
-- Returns the fields of `rules.Answer`; `first` is a pair [ticket, due] or null.
-- The lock's limit is below the time that a client waits: nothing is done for one who has given up.
create or replace function intervalq.apply(queue text, command jsonb, now_override bigint)
returns jsonb
language plpgsql volatile
set search_path = pg_catalog, pg_temp
set lock_timeout = '4s'
as $$
declare
    op constant text := command ->> 'op';
    settings constant jsonb := command -> 'settings';
    r intervalq.queues;
    stored boolean;              -- there is a row
    alive boolean := false;      -- and a record in it that has not lapsed
    was_held boolean := false;
    now bigint;
    fields jsonb;                -- a list out of the command
    -- of Advance
    clock bigint;                -- the queue's clock
    credit bigint;
    late bigint;                 -- how late after its slot a job may begin
    known boolean;
    lease bigint;
    t bigint;
    slot_due bigint;
    dead jsonb := '[]';          -- the missed slots
    -- of the answer
    refused boolean := false;
    healed boolean := false;
    granted jsonb := '[]';
    missed jsonb := '[]';
    first jsonb;
    count bigint := 0;
    begun bigint := 0;
    woken boolean := false;
begin
    if op = 'inspect' then
        -- It doesn't lock: that would be a write. A replica's record may be old: nobody should go by it.
        if pg_is_in_recovery() then
            raise exception 'this server is a replica' using errcode = '25006';
        end if;
        select q.* into r from intervalq.queues q where q.name = queue;
        stored := found;
    else
        select q.* into r from intervalq.queues q where q.name = queue for update;
        stored := found;
        if not stored and settings is not null and op <> 'drop' then
            -- One at a time makes the record; who waited here finds the row of the one before.
            perform pg_advisory_xact_lock(hashtextextended(queue, 7310027118246817121));
            select q.* into r from intervalq.queues q where q.name = queue for update;
            stored := found;
        end if;
    end if;
    -- Only now, with the lock held: readings are in the order of the steps. Not now(), which is older.
    now := coalesce(now_override, (extract(epoch from clock_timestamp()) * 1000000)::bigint);

    if stored then
        if r.version > 1 then
            raise exception 'the record has layout %, this schema knows up to 1', r.version
                using errcode = 'IQ002';
        elsif r.version < 1 or not intervalq._sound(r) then
            raise exception 'broken record' using errcode = 'IQ001';
        end if;
        was_held := r.held_since is not null;
        r := intervalq._settle(r, now);
        alive := intervalq._lapses(r) > now;
        was_held := was_held and alive;
    end if;

    <<step>>
    begin
        exit step when op = 'inspect';
        if op = 'drop' then
            delete from intervalq.queues q where q.name = queue;
            woken := was_held;
            alive := false;
            exit step;
        end if;
        if not alive then
            exit step when settings is null;
            -- A sender that knows an earlier record proves that this one was lost, and that a job may have
            -- begun a moment ago: then one quiet interval. Else the queue is new and has been idle.
            r.name := queue;
            r.version := 1;
            r.generation := command ->> 'nonce';
            r.interval := settings ->> 0;
            r.burst := settings ->> 1;
            r.max_running := settings ->> 2;
            r.tolerance := settings ->> 3;
            r.ephemeral := settings ->> 4;
            r.ticket := 0;
            r.due := now - case when command ? 'generation' then 0 else r.burst * r.interval end;
            r.current := 0;
            r.at := r.due;
            r.void := 0;
            r.held := 0;
            r.held_since := null;
            r.held_until := 0;
            r.seen := now;
            r.running := '{}';
            r.leases := '{}';
            alive := true;
        elsif settings is not null and (command ->> 'attach')::boolean and settings
            <> jsonb_build_array(r.interval, r.burst, r.max_running, r.tolerance, r.ephemeral::integer)
        then
            refused := true;
            exit step;
        end if;
        known := coalesce(command ->> 'generation' = r.generation, false);

        if op = 'advance' then
            clock := coalesce(r.held_since, now) - r.held;
            -- Beyond 2**60 no more credit makes any difference, but might overflow.
            credit := case r.burst when 1 then 0
                else least((r.burst::numeric - 1) * r.interval, 1152921504606846976)::bigint end;
            late := least(r.burst::numeric * r.interval, 1152921504606846976)::bigint;
            late := coalesce(nullif(least(r.tolerance, late), 0), late / 10);
            lease := command ->> 'lease';
            if known then
                t := command -> 'mark' ->> 0;
                if t > r.ticket then
                    healed := true;
                    r.ticket := t;
                    r.due := greatest(r.due, (command -> 'mark' ->> 1)::bigint);
                end if;
                fields := command -> 'release';
                if fields <> '[]' then
                    r := intervalq._give_back(r, fields, -9007199254740991);
                end if;
            end if;

            if r.held_since is null then
                fields := command -> 'slots';
                for i in 0 .. jsonb_array_length(fields) - 1 loop
                    t := fields -> i ->> 0;
                    slot_due := fields -> i ->> 1;
                    if not known or t <= r.void or t > r.ticket
                        or clock > slot_due + late + credit
                    then
                        dead := dead || jsonb_build_array(fields -> i);
                        missed := missed || (fields -> i -> 0);
                    elsif r.held_since is null then
                        r := intervalq._go(r, t, slot_due, now, lease);
                        granted := granted || to_jsonb(t);
                    end if;
                end loop;
                if known and dead <> '[]' then
                    -- One that was told to go before may have been used: this may be an old request.
                    r := intervalq._give_back(r, dead, r.current);
                end if;
            end if;

            if r.held_since is null then
                slot_due := greatest(clock + (command ->> 'notice')::bigint - credit, r.due + r.interval);
                count := least(
                    (command ->> 'take')::bigint + jsonb_array_length(dead),
                    greatest(0, (9007199254740991 - slot_due) / r.interval),
                    1000
                );
            end if;
            if count > 0 then
                t := r.ticket + 1;
                first := jsonb_build_array(t, slot_due);
                r.ticket := r.ticket + count;
                r.due := slot_due + (count - 1) * r.interval;
                -- How far new slots are told to go at once, as an instant.
                clock := clock + (command ->> 'reach')::bigint;
                if r.max_running > 0 then
                    while begun < count and r.held_since is null and slot_due <= clock loop
                        r := intervalq._go(r, t + begun, slot_due, now, lease);
                        slot_due := slot_due + r.interval;
                        begun := begun + 1;
                    end loop;
                elsif slot_due <= clock then
                    begun := least(count, (clock - slot_due) / r.interval + 1);
                    r := intervalq._go(r, t + begun - 1, slot_due + (begun - 1) * r.interval, now, lease);
                end if;
            end if;

        elsif op = 'finish' then
            if known and r.max_running > 0 then
                select coalesce(array_agg(x.t), '{}'), coalesce(array_agg(x.l), '{}')
                into r.running, r.leases
                from (
                    select o.t, o.l from unnest(r.running, r.leases) as o (t, l)
                    where not (command -> 'ended') @> to_jsonb(o.t)
                        and not (command -> 'running') @> to_jsonb(o.t)
                    union all
                    select distinct e.t::bigint, now + (command ->> 'lease')::bigint
                    from jsonb_array_elements_text(command -> 'running') as e (t)
                ) as x (t, l);
            end if;
            r := intervalq._recheck(r, now);

        elsif op = 'hold' then
            r.held_until := greatest(
                r.held_until, least(9007199254740991, now + (command ->> 'length')::bigint)
            );
            r := intervalq._recheck(r, now);

        elsif op = 'resume' then
            r.held_until := 0;
            r := intervalq._recheck(r, now);

        elsif op = 'configure' then
            if (command ->> 'interval')::bigint > r.interval or (command ->> 'burst')::bigint <> r.burst then
                -- The slots handed out are too close together for this; or with more credit, one that was
                -- missed already would count as in time again: take new ones.
                r.void := r.ticket;
                r.due := r.at;
            end if;
            r.interval := coalesce((command ->> 'interval')::bigint, r.interval);
            r.burst := coalesce((command ->> 'burst')::bigint, r.burst);
            r.max_running := coalesce((command ->> 'max_running')::bigint, r.max_running);
            if r.max_running = 0 then
                r.running := '{}';
                r.leases := '{}';
            end if;
            r := intervalq._recheck(r, now);

        elsif op = 'reclaim' then
            r.void := r.ticket;
            r.due := r.at;

        else
            raise exception 'no rule for %', op using errcode = 'IQ002';
        end if;

        woken := was_held and r.held_since is null;
        if not intervalq._sound(r) then
            raise exception 'a number is beyond what a record holds' using errcode = '22003';
        end if;
        if stored then
            update intervalq.queues q set
                version = r.version, generation = r.generation, interval = r.interval, burst = r.burst,
                max_running = r.max_running, tolerance = r.tolerance, ephemeral = r.ephemeral,
                ticket = r.ticket, due = r.due, current = r.current, at = r.at, void = r.void, held = r.held,
                held_since = r.held_since, held_until = r.held_until, seen = r.seen, running = r.running,
                leases = r.leases
            where q.name = queue;
        else
            insert into intervalq.queues select r.*;
            if now_override is null then
                perform intervalq._sweep(now);
            end if;
        end if;
    end step;

    if woken then
        -- Channels have 63 bytes, names more; a channel a queue wakes nobody else.
        perform pg_notify('intervalq_' || left(encode(sha256(convert_to(queue, 'UTF8')), 'hex'), 40), '');
    end if;
    return jsonb_build_object(
        'state', case when alive then intervalq._shown(r) end, 'now', now, 'refused', refused,
        'healed', healed, 'granted', granted, 'missed', missed, 'first', first, 'count', count,
        'begun', begun, 'woken', woken
    );
end
$$;


-- intervalq.names: the queues that have a record, sorted by code point.
create or replace function intervalq.names() returns setof text
language sql stable
begin atomic
    select q.name from intervalq.queues q order by q.name;
end;


insert into intervalq.version (number) values (1)
on conflict (one) do update set number = excluded.number where version.number <> excluded.number;

commit;
