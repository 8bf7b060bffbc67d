SET check_function_bodies = false;

CREATE SCHEMA intervalq;

CREATE TYPE intervalq._limit AS (
	most bigint,
	"window" bigint,
	unit text,
	jitter bigint,
	used bigint[],
	ahead bigint[],
	edge bigint
);

CREATE TABLE intervalq.queues (
    name text NOT NULL COLLATE pg_catalog."C",
    version integer NOT NULL,
    generation text NOT NULL,
    "interval" bigint NOT NULL,
    burst bigint NOT NULL,
    max_running bigint NOT NULL,
    tolerance bigint NOT NULL,
    ephemeral boolean NOT NULL,
    ticket bigint NOT NULL,
    due bigint NOT NULL,
    current bigint NOT NULL,
    current_due bigint NOT NULL,
    revoked_through bigint NOT NULL,
    held_total bigint NOT NULL,
    held_since bigint,
    held_until bigint NOT NULL,
    last_now bigint NOT NULL,
    running bigint[] NOT NULL,
    leases bigint[] NOT NULL,
    late_total bigint DEFAULT 0 NOT NULL,
    error bigint DEFAULT 0 NOT NULL,
    error_until bigint DEFAULT 0 NOT NULL,
    limits intervalq._limit[],
    stepped bigint,
    auto bigint[]
)
WITH (fillfactor='50');

CREATE TYPE intervalq._answer AS (
	state intervalq.queues,
	now bigint,
	refused boolean,
	healed boolean,
	granted bigint[],
	missed bigint[],
	at_once boolean,
	first bigint[],
	count bigint,
	costs bigint[],
	dues bigint[],
	units jsonb,
	begun bigint,
	woken boolean
);

CREATE TYPE intervalq._got AS (
	common intervalq.queues,
	slots jsonb,
	granted bigint,
	at_once boolean
);

CREATE TYPE intervalq._keyed AS (
	own intervalq._answer,
	common intervalq.queues,
	written boolean,
	places jsonb
);

CREATE FUNCTION intervalq._adapted(r intervalq.queues, bounds jsonb, anew boolean) RETURNS intervalq.queues
    LANGUAGE plpgsql IMMUTABLE
    AS $$
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

CREATE FUNCTION intervalq._added(cells bigint[], size integer, place integer, more bigint) RETURNS bigint[]
    LANGUAGE plpgsql IMMUTABLE
    AS $$
begin
    if cells[place + 1] + more <= 0 then
        return cells[:place - 1] || cells[place + size:];
    end if;
    cells[place + 1] := cells[place + 1] + more;
    return cells;
end
$$;

CREATE FUNCTION intervalq._advance(a intervalq._answer, command jsonb, now bigint) RETURNS intervalq._answer
    LANGUAGE plpgsql IMMUTABLE
    AS $$
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
    if known and take = 0 and jsonb_array_length(command -> 'slots') = 1
        and intervalq._may_come_sooner(a.state, command -> 'slots' -> 0, command, now)
    then
        a := intervalq._sooner(a, command -> 'slots' -> 0, command, now);
        if a.count > 0 then
            return a;
        end if;
    end if;
    if command -> 'slots' <> '[]' then
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

CREATE FUNCTION intervalq._advance_keyed(r intervalq.queues, common intervalq.queues, queue text, command jsonb, known jsonb, now bigint) RETURNS intervalq._keyed
    LANGUAGE plpgsql STABLE
    AS $$
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
    k.common := case when k.written then intervalq._told(common, known) else common end;
    k.places := known -> 'places';
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

CREATE FUNCTION intervalq._again(r intervalq.queues, command jsonb) RETURNS jsonb
    LANGUAGE sql IMMUTABLE
    RETURN (SELECT COALESCE(jsonb_agg(e.value ORDER BY e.n), '[]'::jsonb) AS "coalesce" FROM jsonb_array_elements((_again.command -> 'slots'::text)) WITH ORDINALITY e(value, n) WHERE (((_again.command ->> 'generation'::text) = (_again.r).generation) AND (((e.value ->> 0))::bigint > (_again.r).revoked_through) AND (((e.value ->> 0))::bigint <= (_again.r).current)));

CREATE FUNCTION intervalq._age(r intervalq.queues) RETURNS intervalq.queues
    LANGUAGE plpgsql IMMUTABLE
    AS $$
declare
    late constant bigint := intervalq._lateness(r);
    lag constant bigint := r.held_total + r.stepped;
    over constant bigint := intervalq._clock(r, r.last_now) - late;
    l intervalq._limit;
    n integer;  -- how many numbers of the cells are removed
    stays bigint[];
begin
    for k in 1 .. cardinality(r.limits) loop
        l := r.limits[k];
        n := 0;
        while l.ahead[n + 1] <= over loop
            n := n + 2;
        end loop;
        if n > 0 then
            l.used := intervalq._put_used(l.used, intervalq._as_used(l.ahead[:n], lag));
            l.ahead := l.ahead[n + 1:];
            r.limits[k] := l;
        end if;
        n := 0;
        stays := '{}';
        while intervalq._expiry(
            l.used[n + 1] - lag, l.edge, l.window, l.jitter + late, r.held_total, r.error
        ) <= over loop
            if l.used[n + 3] > r.current_due then
                stays := stays || l.used[n + 1:n + 3];
            end if;
            n := n + 3;
        end loop;
        if cardinality(stays) < n then
            r.limits[k].used := stays || l.used[n + 1:];
        end if;
    end loop;
    return r;
end
$$;

CREATE FUNCTION intervalq._agree(r intervalq.queues, command jsonb) RETURNS boolean
    LANGUAGE plpgsql IMMUTABLE
    AS $$
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

CREATE FUNCTION intervalq._window(r intervalq.queues) RETURNS bigint
    LANGUAGE sql IMMUTABLE
    RETURN CASE (r).burst WHEN 1 THEN (r)."interval" ELSE (LEAST((((r).burst)::numeric * ((r)."interval")::numeric), ('1152921504606846976'::bigint)::numeric))::bigint END;

CREATE FUNCTION intervalq._tolerance(r intervalq.queues) RETURNS bigint
    LANGUAGE sql IMMUTABLE
    RETURN COALESCE(NULLIF(LEAST((r).tolerance, intervalq._window(r)), 0), (intervalq._window(r) / 10));

CREATE FUNCTION intervalq._agreed(common intervalq.queues) RETURNS bigint
    LANGUAGE sql IMMUTABLE
    RETURN GREATEST((1)::bigint, LEAST(intervalq._tolerance(common), ((common)."interval" - 1)));

CREATE FUNCTION intervalq._are_last(slots jsonb, current bigint) RETURNS boolean
    LANGUAGE plpgsql IMMUTABLE
    AS $$
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

CREATE FUNCTION intervalq._are_passed(r intervalq.queues, slots jsonb, length bigint) RETURNS boolean
    LANGUAGE plpgsql IMMUTABLE
    AS $$
declare
    late constant bigint := intervalq._lateness(r);
    l intervalq._limit;
    at bigint;
begin
    foreach l in array r.limits loop
        continue when l.edge is null;
        for i in 1 .. cardinality(l.ahead) by 2 loop
            at := l.ahead[i] + r.held_total + l.jitter + late;
            if intervalq._next_edge(at, l.edge, l.window)
                <> intervalq._next_edge(at + length, l.edge, l.window)
            then
                return true;
            end if;
        end loop;
        for i in 0 .. jsonb_array_length(slots) - 1 loop
            at := intervalq._cell_end((slots -> i ->> 1)::bigint, intervalq._cell(l)) + r.held_total + l.jitter + late;
            if intervalq._next_edge(at, l.edge, l.window)
                <> intervalq._next_edge(at + length, l.edge, l.window)
            then
                return true;
            end if;
        end loop;
    end loop;
    return false;
end
$$;

CREATE FUNCTION intervalq._as_used(ahead bigint[], later bigint) RETURNS bigint[]
    LANGUAGE plpgsql IMMUTABLE
    AS $$
declare
    cells bigint[] := '{}';
begin
    for i in 1 .. cardinality(ahead) by 2 loop
        cells := cells || array[ahead[i] + later, ahead[i + 1], ahead[i]];
    end loop;
    return cells;
end
$$;

CREATE FUNCTION intervalq._bring_back(r intervalq.queues, length bigint, slots jsonb) RETURNS intervalq.queues
    LANGUAGE plpgsql IMMUTABLE
    AS $$
declare
    over constant bigint := intervalq._clock(r, r.last_now) - intervalq._lateness(r);
    l intervalq._limit;
    back bigint[];
    stays bigint[];
    place integer;
    ends bigint;
    at bigint;
    units bigint;
begin
    for k in 1 .. cardinality(r.limits) loop
        l := r.limits[k];
        back := '{}';
        stays := '{}';
        for i in 1 .. cardinality(l.used) by 3 loop
            if l.used[i + 2] > over then
                back := back || array[l.used[i + 2], l.used[i + 1]];
            else
                stays := stays || l.used[i:i + 2];
            end if;
        end loop;
        l.used := stays;
        l.ahead := intervalq._put(l.ahead, back);
        back := '{}';
        for i in 0 .. jsonb_array_length(slots) - 1 loop
            units := (intervalq._taken_by(r, slots -> i))[k];
            at := (slots -> i ->> 1)::bigint + r.held_total + r.stepped;
            place := case
                when units > 0 and (slots -> i ->> 0)::bigint <= r.current then intervalq._fixed(l, at - length)
            end;
            if place is not null then
                l.used := intervalq._put_used(
                    intervalq._added(l.used, 3, place, -units),
                    array[intervalq._cell_end(at, intervalq._cell(l)), units, -9007199254740991]
                );
                continue;
            end if;
            ends := intervalq._cell_end((slots -> i ->> 1)::bigint, intervalq._cell(l));
            place := intervalq._place(l.ahead, 2, ends);
            if l.ahead[place] is distinct from ends then
                back := back || array[ends, units];
            end if;
        end loop;
        l.ahead := intervalq._put(l.ahead, back);
        r.limits[k] := l;
    end loop;
    return r;
end
$$;

CREATE FUNCTION intervalq._can_be_plain(settings jsonb) RETURNS boolean
    LANGUAGE sql IMMUTABLE
    RETURN ((settings IS NULL) OR (((settings -> 2) = '0'::jsonb) AND (NOT (EXISTS (SELECT FROM jsonb_array_elements((_can_be_plain.settings -> 5)) l(limit_of) WHERE (jsonb_array_length(l.limit_of) > 4))))));

CREATE FUNCTION intervalq._cell(l intervalq._limit) RETURNS bigint
    LANGUAGE sql IMMUTABLE
    RETURN ((((l)."window" + (l).jitter) + 63) / 64);

CREATE FUNCTION intervalq._cell_end(due bigint, cell bigint) RETURNS bigint
    LANGUAGE sql IMMUTABLE
    RETURN LEAST('9007199254740991'::bigint, ((due - (due % cell)) + CASE WHEN ((due % cell) < 0) THEN (0)::bigint ELSE cell END));

CREATE FUNCTION intervalq._change(r intervalq.queues, command jsonb, now bigint) RETURNS intervalq.queues
    LANGUAGE plpgsql IMMUTABLE
    AS $$
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

CREATE FUNCTION intervalq._clock(r intervalq.queues, now bigint) RETURNS bigint
    LANGUAGE sql IMMUTABLE
    RETURN (COALESCE((r).held_since, now) - (r).held_total);

CREATE FUNCTION intervalq._configure(r intervalq.queues, command jsonb) RETURNS intervalq.queues
    LANGUAGE plpgsql IMMUTABLE
    AS $$
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
        -- Revoke them, because the slots issued so far may be too close together for the new settings; with a
        -- larger burst, a missed slot would count as in time again; or jobs in granted slots may begin later than
        -- the units counted for a new slot allow for.
        r := intervalq._revoke_all(r);
    end if;
    if early > 0 then
        r := intervalq._count_longer(r, early);
    end if;
    if has_others then
        r := intervalq._respread(r, given);
    end if;
    r.max_running := coalesce((command ->> 'max_running')::bigint, r.max_running);
    if r.max_running = 0 then
        r.running := '{}';
        r.leases := '{}';
    end if;
    return r;
end
$$;

CREATE FUNCTION intervalq._correct(r intervalq.queues, settled jsonb) RETURNS intervalq.queues
    LANGUAGE plpgsql IMMUTABLE
    AS $$
declare
    lag constant bigint := r.held_total + r.stepped;
    late constant bigint := intervalq._lateness(r);
    over constant bigint := intervalq._clock(r, r.last_now) - late;
    l intervalq._limit;
    ends bigint;
    at bigint;  -- the earliest time on the server's clock at which its cell ended
    more bigint;
    part integer;
    place integer;
begin
    for k in 1 .. cardinality(r.limits) loop
        l := r.limits[k];
        for i in 0 .. jsonb_array_length(settled) - 1 loop
            more := settled -> i ->> (k + 1);
            ends := intervalq._cell_end((settled -> i ->> 0)::bigint, intervalq._cell(l));
            at := ends + (settled -> i ->> 1)::bigint;
            continue when coalesce(more, 0) = 0 
                or intervalq._expiry(
                    at - lag, l.edge, l.window, l.jitter + late, r.held_total, r.error
                ) <= over;
            part := (
                select min(n) from generate_series(1, cardinality(l.used), 3) as n
                where l.used[n + 2] = ends and l.used[n] >= at
            );
            place := intervalq._place(l.ahead, 2, ends);
            if part is not null then
                l.used := intervalq._added(l.used, 3, part, more);
            elsif l.ahead[place] = ends and more < 0 then
                l.ahead := intervalq._added(l.ahead, 2, place, more);
            elsif more > 0 and (l.ahead[place] = ends or ends > over) then
                l.ahead := intervalq._put(l.ahead, array[ends, more]);
            elsif more > 0 then
                l.used := intervalq._put_used(l.used, array[ends + lag, more, ends]);
            end if;
        end loop;
        r.limits[k] := l;
    end loop;
    return r;
end
$$;

CREATE FUNCTION intervalq._correct_fixed(r intervalq.queues, settled jsonb) RETURNS intervalq.queues
    LANGUAGE plpgsql IMMUTABLE
    AS $$
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
            ends := intervalq._cell_end(at, intervalq._cell(l));
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

CREATE FUNCTION intervalq._cost(slot jsonb) RETURNS bigint
    LANGUAGE sql IMMUTABLE
    RETURN COALESCE(((slot ->> 2))::bigint, (1)::bigint);

CREATE FUNCTION intervalq._costs(missed jsonb, given jsonb) RETURNS bigint[]
    LANGUAGE sql IMMUTABLE
    RETURN (ARRAY(SELECT COALESCE(((x.slot ->> 2))::bigint, (1)::bigint) AS "coalesce" FROM jsonb_array_elements(_costs.missed) WITH ORDINALITY x(slot, n) ORDER BY x.n) || ARRAY(SELECT (x.cost)::bigint AS cost FROM jsonb_array_elements_text(_costs.given) WITH ORDINALITY x(cost, n) ORDER BY x.n));

CREATE FUNCTION intervalq._count(r intervalq.queues, dues bigint[], taken bigint[]) RETURNS intervalq.queues
    LANGUAGE plpgsql IMMUTABLE
    AS $$
declare
    kinds constant integer := cardinality(r.limits);
    cells bigint[];
begin
    for k in 1 .. kinds loop
        cells := '{}';
        for i in 1 .. cardinality(dues) loop
            cells := cells || intervalq._cell_end(dues[i], intervalq._cell(r.limits[k]));
            cells := cells || taken[(i - 1) * kinds + k];
        end loop;
        r.limits[k].ahead := intervalq._put((r.limits[k]).ahead, cells);
    end loop;
    return r;
end
$$;

CREATE FUNCTION intervalq._count_longer(r intervalq.queues, length bigint) RETURNS intervalq.queues
    LANGUAGE plpgsql IMMUTABLE
    AS $$
declare
    l intervalq._limit;
begin
    for k in 1 .. cardinality(r.limits) loop
        l := r.limits[k];
        for i in 1 .. cardinality(l.used) by 3 loop
            l.used[i] := l.used[i] + length;
        end loop;
        l.used := intervalq._put_used('{}', l.used);
        l.used := intervalq._put_used(l.used, intervalq._as_used(l.ahead, r.held_total + r.stepped + length));
        l.ahead := '{}';
        r.limits[k] := l;
    end loop;
    return r;
end
$$;

CREATE FUNCTION intervalq._count_lost(r intervalq.queues, mark jsonb) RETURNS intervalq.queues
    LANGUAGE plpgsql IMMUTABLE
    AS $$
declare
    lost bigint[] := '{}';
    l intervalq._limit;
begin
    foreach l in array r.limits loop
        lost := lost || case l.unit
            when 'starts' then least(l.most, (mark ->> 0)::bigint - r.ticket)
            else l.most
        end;
    end loop;
    return intervalq._count(r, array[(mark ->> 1)::bigint], lost);
end
$$;

CREATE FUNCTION intervalq._counting(l intervalq._limit, lag bigint, last_due bigint) RETURNS bigint[]
    LANGUAGE plpgsql IMMUTABLE
    AS $$
declare
    cells bigint[] := '{}';
    last bigint := -9007199254740991;
    is_sorted boolean := true;
    ends bigint;
begin
    for i in 1 .. cardinality(l.used) by 3 loop
        ends := l.used[i] - lag;
        if l.used[i + 2] > last_due then
            ends := greatest(ends, l.used[i + 2]);
        end if;
        is_sorted := is_sorted and ends >= last;
        last := ends;
        cells := cells || array[ends, l.used[i + 1]];
    end loop;
    cells := cells || l.ahead;
    if not is_sorted or last > l.ahead[1] then
        cells := array(
            select x.number
            from generate_series(1, cardinality(cells), 2) as i,
                lateral (values (1, cells[i]), (2, cells[i + 1])) as x (n, number)
            order by cells[i], i, x.n
        );
    end if;
    return cells;
end
$$;

CREATE FUNCTION intervalq._credit(r intervalq.queues) RETURNS bigint
    LANGUAGE sql IMMUTABLE
    RETURN CASE (r).burst WHEN 1 THEN (0)::bigint ELSE (intervalq._window(r) - (r)."interval") END;

CREATE FUNCTION intervalq._given(limits intervalq._limit[]) RETURNS jsonb
    LANGUAGE sql IMMUTABLE
    RETURN CASE WHEN (limits IS NULL) THEN '[]'::jsonb ELSE jsonb_build_array((SELECT jsonb_agg((jsonb_build_array(x.most, x."window", x.unit, x.jitter) || CASE WHEN (x.edge IS NULL) THEN '[]'::jsonb ELSE jsonb_build_array(x.edge) END) ORDER BY x.n) AS jsonb_agg FROM unnest(_given.limits) WITH ORDINALITY x(most, "window", unit, jitter, used, ahead, edge, n))) END;

CREATE FUNCTION intervalq._disagrees(r intervalq.queues, command jsonb) RETURNS boolean
    LANGUAGE sql IMMUTABLE
    RETURN ((command ? 'settings'::text) AND ((((command ->> 'attach'::text))::boolean AND (NOT intervalq._agree(r, command))) OR (((command ->> 'op'::text) = 'advance'::text) AND (((r).limits IS NOT NULL) OR (jsonb_array_length((command -> 'settings'::text)) > 5)) AND (((((((command -> 'settings'::text) - 0) - 0) - 0) - 0) - 0) <> intervalq._given((r).limits)))));

CREATE FUNCTION intervalq._done(r intervalq.queues, queue text, command jsonb, now bigint) RETURNS intervalq._answer
    LANGUAGE plpgsql STABLE
    AS $$
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

CREATE FUNCTION intervalq._ends(r intervalq.queues, due bigint) RETURNS bigint
    LANGUAGE sql IMMUTABLE
    RETURN ((due + intervalq._tolerance(r)) + intervalq._credit(r));

CREATE FUNCTION intervalq._next_edge(at bigint, edge bigint, width bigint) RETURNS bigint
    LANGUAGE sql IMMUTABLE
    RETURN (at + ((((edge - at) % width) + width) % width));

CREATE FUNCTION intervalq._expiry(ends bigint, edge bigint, width bigint, late bigint, held_total bigint, error bigint) RETURNS bigint
    LANGUAGE sql IMMUTABLE
    RETURN CASE WHEN (edge IS NULL) THEN (((ends + width) + late) + error) ELSE ((intervalq._next_edge(((ends + held_total) + late), edge, width) - held_total) + error) END;

CREATE FUNCTION intervalq._finish(r intervalq.queues, command jsonb, now bigint) RETURNS intervalq.queues
    LANGUAGE plpgsql IMMUTABLE
    AS $$
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

CREATE FUNCTION intervalq._fit(r intervalq.queues, costs bigint[], taken bigint[], wanted bigint, due bigint, clock bigint, apart bigint) RETURNS bigint[]
    LANGUAGE plpgsql IMMUTABLE
    AS $$
declare
    kinds constant integer := cardinality(r.limits);
    found bigint[];
    cells bigint[] := '{}';    -- the cells of all limits; each limit's are followed by space for the new slots
    firsts integer[] := '{}';  -- for each limit: the first place in `cells` that still counts,
    lasts integer[] := '{}';   -- and the last one
    counted bigint[] := '{}';  -- the units between them
    edges bigint[] := '{}';    -- with `widths` and `delays`, when units expire: see `_expiry`
    widths bigint[] := '{}';
    delays bigint[] := '{}';
    over bigint;               -- the time until which the first of them count
    lengths bigint[] := '{}';  -- the lengths of the cells
    most bigint[] := '{}';
    l intervalq._limit;
    counting bigint[];
    at bigint;
    latest bigint;
    units bigint;
begin
    for k in 1 .. kinds loop
        l := r.limits[k];
        counting := intervalq._counting(l, r.held_total + r.stepped,
            case when greatest(r.current, r.revoked_through) < r.ticket then r.current_due else 9007199254740991 end);
        firsts[k] := cardinality(cells) + 1;
        lasts[k] := cardinality(cells) + cardinality(counting);
        counted[k] := (select coalesce(sum(counting[i]), 0) from generate_series(2, cardinality(counting), 2) as i);
        edges[k] := l.edge;
        widths[k] := l.window;
        delays[k] := l.jitter + intervalq._lateness(r);
        lengths[k] := intervalq._cell(l);
        most[k] := l.most;
        cells := cells || counting || array_fill(0::bigint, array[2 * wanted::integer]);
    end loop;
    for i in 0 .. wanted loop  -- 0: when the first one would have had room
        latest := case i when 0 then least(due, clock) else due end;
        for k in 1 .. kinds loop
            units := least(taken[greatest(i - 1, 0) * kinds + k], most[k]);
            continue when units = 0;
            at := case i when 0 then least(due, clock) else due end;
            while firsts[k] < lasts[k] loop
                over := intervalq._expiry(cells[firsts[k]], edges[k], widths[k], delays[k], r.held_total, r.error);
                exit when over > at and counted[k] + units <= most[k];
                at := greatest(at, over);
                counted[k] := counted[k] - cells[firsts[k] + 1];
                firsts[k] := firsts[k] + 2;
            end loop;
            latest := greatest(latest, at);
        end loop;
        exit when i > apart and latest > due;
        due := greatest(due, latest);
        exit when i > 0 and coalesce(costs[i], 1) > (9007199254740991 - due) / r.interval;
        found := found || case i when 0 then latest else due end;
        continue when i = 0;
        for k in 1 .. kinds loop
            units := taken[(i - 1) * kinds + k];
            continue when units = 0;
            cells[lasts[k] + 1:lasts[k] + 2] := array[intervalq._cell_end(due, lengths[k]), units];
            lasts[k] := lasts[k] + 2;
            counted[k] := counted[k] + units;
        end loop;
        due := due + coalesce(costs[i], 1) * r.interval;
    end loop;
    return found;
end
$$;

CREATE FUNCTION intervalq._fix(r intervalq.queues, slots jsonb, before bigint) RETURNS intervalq.queues
    LANGUAGE plpgsql IMMUTABLE
    AS $$
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
            ends := intervalq._cell_end(due, intervalq._cell(l));
            place := intervalq._place(l.ahead, 2, ends);
            if l.ahead[place] = ends then
                l.ahead := intervalq._added(l.ahead, 2, place, -taken[k]);
            end if;
            ends := intervalq._cell_end(due + r.held_total + r.stepped, intervalq._cell(l));
            l.used := intervalq._put_used(l.used, array[ends, taken[k], -9007199254740991]);
            r.limits[k] := l;
        end loop;
    end loop;
    return r;
end
$$;

CREATE FUNCTION intervalq._fixed(l intervalq._limit, at bigint) RETURNS integer
    LANGUAGE plpgsql IMMUTABLE
    AS $$
declare
    ends constant bigint := intervalq._cell_end(at, intervalq._cell(l));
    place constant integer := intervalq._place(l.used, 3, ends);
begin
    return case
        when l.edge is null and l.used[place] = ends and l.used[place + 2] = -9007199254740991 then place
    end;
end
$$;

CREATE FUNCTION intervalq._for_common(slots jsonb, own integer) RETURNS jsonb
    LANGUAGE sql IMMUTABLE
    RETURN CASE WHEN (own = 0) THEN slots ELSE (SELECT COALESCE(jsonb_agg((jsonb_build_array((e.value -> 0), (e.value -> 1), intervalq._cost(e.value)) || jsonb_path_query_array(e.value, '$[$"from" to last]'::jsonpath, jsonb_build_object('from', (3 + _for_common.own)))) ORDER BY e.n), '[]'::jsonb) AS "coalesce" FROM jsonb_array_elements(_for_common.slots) WITH ORDINALITY e(value, n)) END;

CREATE FUNCTION intervalq._for_one_turn(r intervalq.queues, common intervalq.queues, command jsonb, known jsonb, now bigint) RETURNS jsonb
    LANGUAGE plpgsql IMMUTABLE
    AS $$
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

CREATE FUNCTION intervalq._fresh(queue text, command jsonb, now bigint) RETURNS intervalq.queues
    LANGUAGE plpgsql IMMUTABLE
    AS $$
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

CREATE FUNCTION intervalq._fresh_limits(given jsonb, now bigint, was_lost boolean) RETURNS intervalq._limit[]
    LANGUAGE sql IMMUTABLE
    RETURN ARRAY(SELECT ROW(((x.l ->> 0))::bigint, ((x.l ->> 1))::bigint, (x.l ->> 2), ((x.l ->> 3))::bigint, CASE WHEN _fresh_limits.was_lost THEN ARRAY[_fresh_limits.now, ((x.l ->> 0))::bigint, _fresh_limits.now] ELSE '{}'::bigint[] END, '{}'::bigint[], ((x.l ->> 4))::bigint)::intervalq._limit AS "row" FROM jsonb_array_elements(_fresh_limits.given) WITH ORDINALITY x(l, n) ORDER BY x.n);

CREATE FUNCTION intervalq._give_back(r intervalq.queues, slots jsonb, above bigint) RETURNS intervalq.queues
    LANGUAGE plpgsql IMMUTABLE
    AS $$
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

CREATE FUNCTION intervalq._grant(r intervalq.queues, t bigint, slot_due bigint, now bigint, lease bigint) RETURNS intervalq.queues
    LANGUAGE plpgsql IMMUTABLE
    AS $$
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

CREATE FUNCTION intervalq._granted(a intervalq._answer, command jsonb, is_limited boolean) RETURNS jsonb
    LANGUAGE plpgsql IMMUTABLE
    AS $_$
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
$_$;

CREATE FUNCTION intervalq._grown(r intervalq.queues, clock bigint) RETURNS intervalq.queues
    LANGUAGE plpgsql IMMUTABLE
    AS $$
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

CREATE FUNCTION intervalq._heal(r intervalq.queues, mark jsonb) RETURNS intervalq.queues
    LANGUAGE plpgsql IMMUTABLE
    AS $$
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

CREATE FUNCTION intervalq._in_row(a intervalq._answer) RETURNS bigint
    LANGUAGE plpgsql IMMUTABLE
    AS $$
begin
    for i in 2 .. a.begun loop
        if a.dues[i] <> a.dues[i - 1] + coalesce(a.costs[i - 1], 1) * (a.state).interval then
            return i - 1;
        end if;
    end loop;
    return a.begun;
end
$$;

CREATE FUNCTION intervalq._interval_at(auto bigint[], due bigint) RETURNS bigint
    LANGUAGE plpgsql IMMUTABLE
    AS $$
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

CREATE FUNCTION intervalq._is_late(r intervalq.queues, due bigint, notice bigint, now bigint) RETURNS boolean
    LANGUAGE sql IMMUTABLE
    RETURN ((due <= (now - (r).held_total)) AND (((now - (r).held_total) + notice) > intervalq._ends(r, due)));

CREATE FUNCTION intervalq._is_plain(r intervalq.queues) RETURNS boolean
    LANGUAGE sql IMMUTABLE
    RETURN (((r).burst = 1) AND ((r).max_running = 0) AND (((r).limits IS NULL) OR (NOT (EXISTS (SELECT FROM unnest((_is_plain.r).limits) x(most, "window", unit, jitter, used, ahead, edge) WHERE (x.edge IS NOT NULL))))));

CREATE FUNCTION intervalq._kept(r intervalq.queues) RETURNS bigint
    LANGUAGE plpgsql IMMUTABLE
    AS $$
declare
    l intervalq._limit;
    longest bigint := 0;
begin
    foreach l in array r.limits loop
        longest := greatest(longest, l.window + l.jitter + intervalq._cell(l));
    end loop;
    return longest + intervalq._lateness(r) + r.error;
end
$$;

CREATE FUNCTION intervalq._known(a intervalq._answer, command jsonb) RETURNS intervalq._answer
    LANGUAGE plpgsql IMMUTABLE
    AS $$
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

CREATE FUNCTION intervalq._known_places(common intervalq.queues, known jsonb, run jsonb) RETURNS jsonb
    LANGUAGE plpgsql IMMUTABLE
    AS $$
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

CREATE FUNCTION intervalq._lapses(r intervalq.queues) RETURNS bigint
    LANGUAGE sql IMMUTABLE
    RETURN CASE WHEN ((NOT (r).ephemeral) OR ((r).held_since IS NOT NULL) OR (cardinality((r).running) > 0)) THEN '9007199254740991'::bigint ELSE (LEAST(('9007199254740991'::bigint)::numeric, ((((((r).due + (r).held_total))::numeric + ((((r).burst)::numeric + (1)::numeric) * ((r)."interval")::numeric)) + (60000000)::numeric) + (CASE WHEN ((r).limits IS NULL) THEN (0)::bigint ELSE intervalq._kept(r) END)::numeric)))::bigint END;

CREATE FUNCTION intervalq._latest(r intervalq.queues) RETURNS bigint
    LANGUAGE plpgsql IMMUTABLE
    AS $$
begin
    r.interval := r.auto[1];
    return intervalq._tolerance(r) + intervalq._credit(r);
end
$$;

CREATE FUNCTION intervalq._lateness(r intervalq.queues) RETURNS bigint
    LANGUAGE sql IMMUTABLE
    RETURN ((2 * (r).error) + CASE WHEN ((r).auto IS NULL) THEN (intervalq._tolerance(r) + intervalq._credit(r)) ELSE intervalq._latest(r) END);

CREATE FUNCTION intervalq._listed(slots jsonb, tickets bigint[]) RETURNS jsonb
    LANGUAGE sql IMMUTABLE
    RETURN (SELECT COALESCE(jsonb_agg(x.slot ORDER BY x.n), '[]'::jsonb) AS "coalesce" FROM jsonb_array_elements(_listed.slots) WITH ORDINALITY x(slot, n) WHERE (((x.slot ->> 0))::bigint = ANY (_listed.tickets)));

CREATE FUNCTION intervalq._may_move(r intervalq.queues, command jsonb) RETURNS boolean
    LANGUAGE sql IMMUTABLE
    RETURN (((r).limits IS NOT NULL) AND ((r).auto IS NULL) AND ((r).held_since IS NULL) AND ((r).max_running = 0) AND (((command ->> 'reach'::text))::bigint >= 0) AND (NOT (command ? 'apart'::text)));

CREATE FUNCTION intervalq._may_come_sooner(r intervalq.queues, slot jsonb, command jsonb, now bigint) RETURNS boolean
    LANGUAGE sql IMMUTABLE
    RETURN COALESCE((intervalq._may_move(r, command) AND (((slot ->> 0))::bigint = (GREATEST((r).current, (r).revoked_through) + 1)) AND (((slot ->> 0))::bigint <= (r).ticket) AND (((slot ->> 1))::bigint > (intervalq._clock(r, now) + ((command ->> 'ahead'::text))::bigint))), false);

CREATE FUNCTION intervalq._moved(r intervalq.queues, length bigint) RETURNS intervalq.queues
    LANGUAGE plpgsql IMMUTABLE
    AS $$
declare
    clock constant bigint := intervalq._clock(r, r.last_now);
    late constant bigint := intervalq._lateness(r);
    l intervalq._limit;
    are_among boolean := false;
    first bigint;
    last bigint;
begin
    if greatest(r.current, r.revoked_through) = r.ticket then
        return r;
    end if;
    foreach l in array r.limits loop
        continue when l.edge is null or l.ahead = '{}';
        first := least(l.ahead[1] - intervalq._cell(l), clock) + least(0, length);
        last := l.ahead[cardinality(l.ahead) - 1] + l.jitter + late + greatest(0, length);
        are_among := are_among or intervalq._next_edge(first + r.held_total + 1, l.edge, l.window) < last + r.held_total;
    end loop;
    if not are_among then
        return r;
    end if;
    for k in 1 .. cardinality(r.limits) loop
        l := r.limits[k];
        continue when l.edge is null;
        r.limits[k] := intervalq._stayed(l, intervalq._cell_end(r.current_due, intervalq._cell(l)), r.held_total + r.stepped);
    end loop;
    return intervalq._revoke_all(r);
end
$$;

CREATE FUNCTION intervalq._moved(r intervalq.queues, common intervalq.queues, command jsonb, known jsonb, again jsonb, now bigint) RETURNS intervalq.queues
    LANGUAGE plpgsql IMMUTABLE
    AS $$
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

CREATE FUNCTION intervalq._new_slots(a intervalq._answer) RETURNS jsonb
    LANGUAGE sql IMMUTABLE
    RETURN (SELECT COALESCE(jsonb_agg(jsonb_build_array((((_new_slots.a).first[1] + x.i) - 1), COALESCE(((_new_slots.a).dues[x.i])::numeric, (((_new_slots.a).first[2])::numeric + (x.behind * ((_new_slots.a).state."interval")::numeric))), x.cost) ORDER BY x.i), '[]'::jsonb) AS "coalesce" FROM (SELECT i.i, COALESCE((_new_slots.a).costs[i.i], (1)::bigint) AS cost, (sum(COALESCE((_new_slots.a).costs[i.i], (1)::bigint)) OVER (ORDER BY i.i) - (COALESCE((_new_slots.a).costs[i.i], (1)::bigint))::numeric) AS behind FROM generate_series((1)::bigint, (_new_slots.a).count) i(i)) x);

CREATE FUNCTION intervalq._no_answer(r intervalq.queues, now bigint) RETURNS intervalq._answer
    LANGUAGE sql IMMUTABLE
    RETURN ROW(r, now, false, false, '{}'::bigint[], '{}'::bigint[], false, NULL::bigint[], (0)::bigint, '{}'::bigint[], '{}'::bigint[], '[]'::jsonb, (0)::bigint, false)::intervalq._answer;

CREATE FUNCTION intervalq._opened(common intervalq.queues, queue text, command jsonb, known jsonb, now bigint) RETURNS intervalq._answer
    LANGUAGE sql STABLE
    RETURN intervalq._done(common, queue, jsonb_strip_nulls(jsonb_build_object('op', 'advance', 'settings', (known -> 'settings'::text), 'attach', (command -> 'attach'::text), 'generation', (known -> 'generation'::text), 'nonce', (known -> 'nonce'::text), 'high_water_mark', (known -> 'high_water_mark'::text), 'slots', '[]'::jsonb, 'release', '[]'::jsonb, 'take', 0, 'costs', '[]'::jsonb, 'error', 0, 'notice', 0, 'reach', 0, 'lease', 0)), now);

CREATE FUNCTION intervalq._paced(r intervalq.queues, common intervalq.queues, own_pace boolean) RETURNS intervalq.queues
    LANGUAGE plpgsql IMMUTABLE
    AS $$
declare
    late constant bigint := case when r.limits is not null then intervalq._lateness(r) end;
    early bigint;
begin
    if not own_pace then
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

CREATE FUNCTION intervalq._paced_command(command jsonb, common intervalq.queues, own_pace boolean) RETURNS jsonb
    LANGUAGE sql IMMUTABLE
    RETURN CASE WHEN (command ? 'settings'::text) THEN (command || jsonb_build_object('settings', jsonb_set(jsonb_set(jsonb_set((command -> 'settings'::text), '{0}'::text[], CASE WHEN own_pace THEN ((command -> 'settings'::text) -> 0) ELSE to_jsonb((common)."interval") END), '{1}'::text[], '1'::jsonb), '{3}'::text[], to_jsonb(intervalq._agreed(common))))) ELSE command END;

CREATE FUNCTION intervalq._place(cells bigint[], size integer, ends bigint) RETURNS integer
    LANGUAGE plpgsql IMMUTABLE
    AS $$
declare
    n constant integer := cardinality(cells) / size;
    low integer := 0;  -- the number of cells that end earlier
    high integer := n;
    middle integer;
begin
    if n > 0 and cells[(n - 1) * size + 1] < ends then
        return n * size + 1;  -- the usual case
    end if;
    while low < high loop
        middle := (low + high) / 2;
        if cells[middle * size + 1] < ends then
            low := middle + 1;
        else
            high := middle;
        end if;
    end loop;
    return low * size + 1;
end
$$;

CREATE FUNCTION intervalq._placed(a intervalq._answer, g intervalq._got, run jsonb, own integer, again jsonb, before bigint) RETURNS intervalq._answer
    LANGUAGE plpgsql IMMUTABLE
    AS $_$
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
$_$;

CREATE FUNCTION intervalq._places_of(common intervalq.queues, command jsonb, known jsonb, reach jsonb, run jsonb, instant bigint, now bigint) RETURNS intervalq._got
    LANGUAGE plpgsql STABLE
    AS $$
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

CREATE FUNCTION intervalq._present(r intervalq.queues, now bigint) RETURNS intervalq.queues
    LANGUAGE plpgsql STABLE
    AS $$
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

CREATE FUNCTION intervalq._put(cells bigint[], others bigint[]) RETURNS bigint[]
    LANGUAGE plpgsql IMMUTABLE
    AS $$
declare
    n integer := cardinality(cells);
    ends bigint;
    units bigint;
    place integer;
begin
    for i in 1 .. cardinality(others) by 2 loop
        ends := least(9007199254740991, others[i]);
        units := others[i + 1];
        continue when units = 0;
        place := intervalq._place(cells, 2, ends);
        if place < n and (cells[place] = ends or n >= 8000) then
            cells[place + 1] := cells[place + 1] + units;
        elsif n >= 8000 then
            cells[n - 1] := ends;
            cells[n] := cells[n] + units;
        elsif place > n then
            cells := cells || ends;
            cells := cells || units;
        else
            cells := cells[:place - 1] || array[ends, units] || cells[place:];
        end if;
        n := cardinality(cells);
    end loop;
    return cells;
end
$$;

CREATE FUNCTION intervalq._put_used(cells bigint[], others bigint[]) RETURNS bigint[]
    LANGUAGE plpgsql IMMUTABLE
    AS $$
declare
    n integer := cardinality(cells);
    ends bigint;
    place integer;
begin
    for i in 1 .. cardinality(others) by 3 loop
        ends := least(9007199254740991, others[i]);
        place := intervalq._place(cells, 3, ends);
        if place > n and n >= 12000 then
            place := n - 2;
            cells[place] := ends;
        end if;
        if place < n and (cells[place] = ends or n >= 12000) then
            cells[place + 1] := cells[place + 1] + others[i + 1];
            cells[place + 2] := greatest(cells[place + 2], others[i + 2]);
        else
            cells := cells[:place - 1] || array[ends, others[i + 1], others[i + 2]] || cells[place:];
        end if;
        n := cardinality(cells);
    end loop;
    return cells;
end
$$;

CREATE FUNCTION intervalq._read(queue text, op text, creates boolean) RETURNS intervalq.queues
    LANGUAGE plpgsql
    AS $$
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

CREATE FUNCTION intervalq._recheck(r intervalq.queues, now bigint) RETURNS intervalq.queues
    LANGUAGE plpgsql IMMUTABLE
    AS $$
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

CREATE FUNCTION intervalq._refused(r intervalq.queues, command jsonb, now bigint) RETURNS intervalq.queues
    LANGUAGE plpgsql IMMUTABLE
    AS $$
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

CREATE FUNCTION intervalq._respread(r intervalq.queues, given jsonb) RETURNS intervalq.queues
    LANGUAGE plpgsql IMMUTABLE
    AS $$
declare
    others constant intervalq._limit[] := r.limits;
    l intervalq._limit;
    source intervalq._limit;
    cell bigint;
begin
    if given = '[]' then
        r.limits := null;
        r.stepped := null;
        return r;
    end if;
    r.stepped := coalesce(r.stepped, 0);
    r.limits := intervalq._fresh_limits(given, 0, false);
    for k in 1 .. cardinality(r.limits) loop
        l := r.limits[k];
        cell := intervalq._cell(l);
        -- The next longer window has counted all that matters, a shorter one only a part of it.
        select x.most, x."window", x.unit, x.jitter, x.used, x.ahead, x.edge into source
        from unnest(others) with ordinality as x (most, "window", unit, jitter, used, ahead, edge, n)
        where x.unit = l.unit
        order by x."window" < l."window", abs(x."window" - l."window"), x.n
        limit 1;
        continue when source.unit is null;
        if intervalq._cell(source) = cell then
            l.used := source.used;
            l.ahead := source.ahead;
        else
            for i in 1 .. cardinality(source.used) by 3 loop
                l.used := l.used || array[source.used[i], source.used[i + 1], case source.used[i + 2]
                    when -9007199254740991 then -9007199254740991
                    else intervalq._cell_end(source.used[i + 2] - 1, cell)
                end];
            end loop;
            for i in 1 .. cardinality(source.ahead) by 2 loop
                l.ahead := intervalq._put(
                    l.ahead,
                    array[intervalq._cell_end(least(source.ahead[i] - 1, r.current_due), cell), source.ahead[i + 1]]
                );
            end loop;
        end if;
        r.limits[k] := l;
    end loop;
    return r;
end
$$;

CREATE FUNCTION intervalq._resumed(r intervalq.queues, now bigint) RETURNS intervalq.queues
    LANGUAGE plpgsql IMMUTABLE
    AS $$
begin
    if r.limits is not null then
        r := intervalq._moved(r, now - r.held_since);
    end if;
    r.held_total := r.held_total + now - r.held_since;
    r.held_since := null;
    return r;
end
$$;

CREATE FUNCTION intervalq._revoke_all(r intervalq.queues) RETURNS intervalq.queues
    LANGUAGE plpgsql IMMUTABLE
    AS $$
begin
    if r.limits is not null then
        r := intervalq._uncount_behind(r);
    end if;
    r.revoked_through := r.ticket;
    r.due := r.current_due;
    return r;
end
$$;

CREATE FUNCTION intervalq._save(r intervalq.queues, stored boolean, sweeps boolean) RETURNS void
    LANGUAGE plpgsql
    AS $$
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
            limits = r.limits, stepped = r.stepped, auto = r.auto
        where q.name = r.name;
    else
        insert into intervalq.queues select r.*;
        if sweeps then
            perform intervalq._sweep(r.last_now);
        end if;
    end if;
end
$$;

CREATE FUNCTION intervalq._set_back(r intervalq.queues, length bigint, slots jsonb) RETURNS intervalq.queues
    LANGUAGE plpgsql IMMUTABLE
    AS $$
begin
    r.held_total := r.held_total + length;
    r.late_total := r.late_total + length;
    if r.limits is not null then
        r := intervalq._bring_back(r, length, slots);
    end if;
    return r;
end
$$;

CREATE FUNCTION intervalq._set_back_for(r intervalq.queues, slots jsonb, length bigint, now bigint) RETURNS intervalq.queues
    LANGUAGE plpgsql IMMUTABLE
    AS $$
begin
    r := intervalq._set_back(r, length, slots);
    if r.held_since is not null then
        r.held_since := now;
    end if;
    r.revoked_through := greatest(r.revoked_through, (slots -> 0 ->> 0)::bigint - 1);
    return r;
end
$$;

CREATE FUNCTION intervalq._settle(r intervalq.queues, now bigint) RETURNS intervalq.queues
    LANGUAGE plpgsql STABLE
    AS $$
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

CREATE FUNCTION intervalq._shares(r intervalq.queues) RETURNS boolean
    LANGUAGE sql IMMUTABLE
    RETURN (((r).burst = 1) AND ((r).max_running = 0));

CREATE FUNCTION intervalq._sooner(a intervalq._answer, slot jsonb, command jsonb, now bigint) RETURNS intervalq._answer
    LANGUAGE plpgsql IMMUTABLE
    AS $$
declare
    r intervalq.queues := a.state;
    counted constant intervalq.queues := intervalq._uncount(r, slot);
    before intervalq.queues := intervalq._uncount_behind(counted);
    clock constant bigint := intervalq._clock(r, now);
    free constant bigint := r.current_due + r.interval;
    notice constant bigint := greatest(0, (command ->> 'notice')::bigint - intervalq._tolerance(r));
    cost constant bigint := coalesce((slot ->> 2)::bigint, 1);
    taken constant bigint[] := intervalq._taken_by(r, slot);
    found constant bigint[] := intervalq._fit(
        before, array[cost], taken, 1, greatest(free, clock + notice - intervalq._credit(r)), clock, null
    );
    ends constant bigint := found[2] + (cost - 1) * r.interval;
begin
    if found[2] is null or found[2] > clock + (command ->> 'ahead')::bigint or found[2] >= (slot ->> 1)::bigint then
        return a;
    end if;
    before := intervalq._count(before, found[2:2], taken);
    for k in 1 .. cardinality(r.limits) loop
        before.limits[k].ahead := intervalq._put(
            (before.limits[k]).ahead,
            array(
                select x.number
                from generate_series(1, cardinality((counted.limits[k]).ahead), 2) as i,
                    lateral (values (1, (counted.limits[k]).ahead[i]), (2, (counted.limits[k]).ahead[i + 1]))
                        as x (n, number)
                where (counted.limits[k]).ahead[i]
                    > intervalq._cell_end(r.current_due, intervalq._cell(r.limits[k]))
                order by i, x.n
            )
        );
    end loop;
    if (slot ->> 0)::bigint = r.ticket then
        before.due := ends;
    end if;
    a.state := before;
    a.first := array[(slot ->> 0)::bigint, found[2], cost];
    a.count := 1;
    a.begun := 1;
    a.dues := found[2:2];
    a.units := jsonb_build_array(slot - 0 - 0 - 0);
    a.costs := case when cost > 1 then array[cost] else '{}' end;
    a.at_once := free <= clock and found[1] <= clock;
    a.state := intervalq._grant(before, a.first[1], ends, now, (command ->> 'lease')::bigint);
    a.state.revoked_through := greatest((a.state).revoked_through, a.first[1]);
    return a;
end
$$;

CREATE FUNCTION intervalq._sound_auto(r intervalq.queues) RETURNS boolean
    LANGUAGE sql IMMUTABLE
    RETURN COALESCE(((array_ndims((r).auto) = 1) AND (array_lower((r).auto, 1) = 1) AND (cardinality((r).auto) = 6) AND ((r).auto[1] <= '86400000000'::bigint) AND (((r).auto[2] >= 1) AND ((r).auto[2] <= (r).auto[1])) AND (((r).auto[4] >= 1) AND ((r).auto[4] <= '86400000000'::bigint)) AND (((r).auto[3] = 0) OR (((r).auto[3] <= (r).auto[4]) AND ((r).auto[4] <= (2 * (r).auto[3])))) AND (((r).auto[5] >= '-9007199254740991'::bigint) AND ((r).auto[5] <= '9007199254740991'::bigint)) AND (((r).auto[6] >= 0) AND ((r).auto[6] <= (r).ticket))), false);

CREATE FUNCTION intervalq._sound_limits(r intervalq.queues) RETURNS boolean
    LANGUAGE plpgsql IMMUTABLE
    AS $$
declare
    l intervalq._limit;
begin
    if (
        r.stepped between 0 and 9007199254740991
        and array_ndims(r.limits) = 1 and array_lower(r.limits, 1) = 1 and cardinality(r.limits) <= 16
    ) is not true then
        return false;
    end if;
    foreach l in array r.limits loop
        if (
            l.most between 1 and 9007199254740991
            and l.window between 1 and 9007199254740991
            and l.unit is not null
            and l.jitter between 0 and 9007199254740991
            and (l.edge is null or l.edge >= 0 and l.edge < l.window)
            and intervalq._sound_cells(l.used, 3) and intervalq._sound_cells(l.ahead, 2)
        ) is not true then
            return false;
        end if;
    end loop;
    return true;
end
$$;

CREATE FUNCTION intervalq._sound(r intervalq.queues) RETURNS boolean
    LANGUAGE sql IMMUTABLE
    RETURN COALESCE((((r).generation <> ''::text) AND (((r)."interval" >= 1) AND ((r)."interval" <= '9007199254740991'::bigint)) AND (((r).burst >= 1) AND ((r).burst <= '9007199254740991'::bigint)) AND (((r).max_running >= 0) AND ((r).max_running <= '9007199254740991'::bigint)) AND (((r).tolerance >= 0) AND ((r).tolerance <= '9007199254740991'::bigint)) AND (((r).ticket >= 0) AND ((r).ticket <= '9007199254740991'::bigint)) AND (((r).current >= 0) AND ((r).current <= (r).ticket)) AND (((r).revoked_through >= 0) AND ((r).revoked_through <= (r).ticket)) AND (((r).due >= '-9007199254740991'::bigint) AND ((r).due <= '9007199254740991'::bigint)) AND (((r).current_due >= '-9007199254740991'::bigint) AND ((r).current_due <= '9007199254740991'::bigint)) AND (((r).held_total >= '-9007199254740991'::bigint) AND ((r).held_total <= '9007199254740991'::bigint)) AND (((r).held_until >= '-9007199254740991'::bigint) AND ((r).held_until <= '9007199254740991'::bigint)) AND (((r).last_now >= '-9007199254740991'::bigint) AND ((r).last_now <= '9007199254740991'::bigint)) AND (((r).late_total >= 0) AND ((r).late_total <= '9007199254740991'::bigint)) AND (((r).error >= 0) AND ((r).error <= '9007199254740991'::bigint)) AND (((r).error_until >= '-9007199254740991'::bigint) AND ((r).error_until <= '9007199254740991'::bigint)) AND (((r).held_since IS NULL) OR (((r).held_since >= '-9007199254740991'::bigint) AND ((r).held_since <= '9007199254740991'::bigint))) AND (cardinality((r).running) = cardinality((r).leases)) AND ((cardinality((r).running) = 0) OR ((array_ndims((r).running) = 1) AND (array_ndims((r).leases) = 1) AND (0 <= ALL ((r).running)) AND ('9007199254740991'::bigint >= ALL ((r).running)) AND ('-9007199254740991'::bigint <= ALL ((r).leases)) AND ('9007199254740991'::bigint >= ALL ((r).leases)))) AND (((r).limits IS NULL) OR intervalq._sound_limits(r)) AND (((r).auto IS NULL) OR intervalq._sound_auto(r))), false);

CREATE FUNCTION intervalq._sound_cells(cells bigint[], size integer) RETURNS boolean
    LANGUAGE plpgsql IMMUTABLE
    AS $$
begin
    if cells = '{}' then
        return true;
    elsif (
        array_ndims(cells) = 1 and array_lower(cells, 1) = 1
        and cardinality(cells) % size = 0 and cardinality(cells) <= 4000 * size
        and -9007199254740991 <= all (cells) and 9007199254740991 >= all (cells)
    ) is not true then
        return false;
    end if;
    for i in 1 .. cardinality(cells) by size loop
        if cells[i + 1] < 1 or cells[i] >= cells[i + size] then
            return false;
        end if;
    end loop;
    return true;
end
$$;

CREATE FUNCTION intervalq._starts(costs bigint[], wanted bigint, room bigint) RETURNS bigint[]
    LANGUAGE sql IMMUTABLE
    RETURN ARRAY(SELECT (x.start)::bigint AS start FROM (SELECT i.i, sum(CASE i.i WHEN 0 THEN (0)::bigint ELSE COALESCE((_starts.costs)[i.i], (1)::bigint) END) OVER (ORDER BY i.i) AS start FROM generate_series(0, (_starts.wanted)::integer) i(i)) x WHERE (x.start <= (_starts.room)::numeric) ORDER BY x.i);

CREATE FUNCTION intervalq._stay(r intervalq.queues) RETURNS intervalq.queues
    LANGUAGE plpgsql IMMUTABLE
    AS $$
declare
    l intervalq._limit;
begin
    for k in 1 .. cardinality(r.limits) loop
        l := r.limits[k];
        r.limits[k] := intervalq._stayed(
            l, intervalq._cell_end(r.current_due, intervalq._cell(l))
            - case when greatest(r.current, r.revoked_through) < r.ticket then intervalq._cell(l) else 0 end,
            r.held_total + r.stepped
        );
    end loop;
    return r;
end
$$;

CREATE FUNCTION intervalq._stayed(l intervalq._limit, last bigint, lag bigint) RETURNS intervalq._limit
    LANGUAGE plpgsql IMMUTABLE
    AS $$
declare
    n integer := 0;
begin
    while l.ahead[n + 1] <= last loop
        n := n + 2;
    end loop;
    if n > 0 then
        l.used := intervalq._put_used(l.used, intervalq._as_used(l.ahead[:n], lag));
        l.ahead := l.ahead[n + 1:];
    end if;
    return l;
end
$$;

CREATE FUNCTION intervalq._stepped(r intervalq.queues, now bigint) RETURNS intervalq.queues
    LANGUAGE plpgsql IMMUTABLE
    AS $$
declare
    late constant bigint := intervalq._lateness(r);
    l intervalq._limit;
    kept bigint;
begin
    r := intervalq._moved(r, now - r.last_now);
    for k in 1 .. cardinality(r.limits) loop
        l := r.limits[k];
        continue when l.edge is null;
        kept := late + ((r.last_now - late - l.edge) % l.window + l.window) % l.window;
        if ((now - l.edge) % l.window + l.window) % l.window > kept then
            r.limits[k].used := intervalq._put_used(
                l.used, array[r.last_now + r.stepped, l.most, -9007199254740991]
            );
        end if;
    end loop;
    return r;
end
$$;

CREATE FUNCTION intervalq._sweep(now bigint) RETURNS void
    LANGUAGE plpgsql
    AS $$
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

CREATE FUNCTION intervalq._take(a intervalq._answer, command jsonb, now bigint, costs bigint[], wanted bigint) RETURNS intervalq._answer
    LANGUAGE plpgsql IMMUTABLE
    AS $$
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

CREATE FUNCTION intervalq._take_limited(a intervalq._answer, command jsonb, now bigint, costs bigint[], units jsonb, wanted bigint) RETURNS intervalq._answer
    LANGUAGE plpgsql IMMUTABLE
    AS $$
declare
    r intervalq.queues := a.state;
    clock constant bigint := intervalq._clock(r, now);
    free constant bigint := r.due + r.interval;
    notice constant bigint := greatest(0, (command ->> 'notice')::bigint - intervalq._tolerance(r));
    due constant bigint := greatest(free, clock + notice - intervalq._credit(r));
    taken constant bigint[] := intervalq._taken(r, costs, units, wanted);
    found constant bigint[] := intervalq._fit(
        r, costs, taken, wanted, due, clock, (command ->> 'apart')::bigint
    );
    dues constant bigint[] := found[2:];
    reach constant bigint := clock + case (command -> 'high_water_mark' ->> 0)::bigint <> r.ticket
        when true then least((command ->> 'reach')::bigint, (command ->> 'notice')::bigint)
        else (command ->> 'reach')::bigint
    end;
    t constant bigint := r.ticket;
begin
    a.count := cardinality(dues);
    if a.count = 0 then
        return a;
    end if;
    a.first := array[t + 1, dues[1], coalesce(costs[1], 1)];
    a.dues := dues;
    a.units := case when a.count < wanted then intervalq._units('[]', units, a.count) else units end;
    if 1 < any (costs[:a.count]) then
        a.costs := array(select coalesce(costs[i], 1) from generate_series(1, a.count) as i order by i);
    end if;
    r := intervalq._count(r, dues, taken);
    r.ticket := t + a.count;
    r.due := dues[a.count] + (coalesce(costs[a.count], 1) - 1) * r.interval;
    while a.begun < a.count and dues[a.begun + 1] <= reach and r.held_since is null loop
        a.begun := a.begun + 1;
        -- Without a limit of running jobs, only the last one matters.
        if r.max_running > 0 or a.begun = a.count or dues[a.begun + 1] > reach then
            r := intervalq._grant(
                r, t + a.begun, dues[a.begun] + (coalesce(costs[a.begun], 1) - 1) * r.interval, now,
                (command ->> 'lease')::bigint
            );
        end if;
    end loop;
    if a.begun > 0 and a.granted = '{}' and free <= clock and found[1] <= clock then
        a.at_once := true;
    end if;
    a.state := r;
    return a;
end
$$;

CREATE FUNCTION intervalq._taken(r intervalq.queues, costs bigint[], units jsonb, wanted bigint) RETURNS bigint[]
    LANGUAGE plpgsql IMMUTABLE
    AS $$
declare
    kinds constant integer := cardinality(r.limits);
    starts boolean[] := '{}';
    taken bigint[] := '{}';
    each jsonb;
begin
    for k in 1 .. kinds loop
        starts[k] := (r.limits[k]).unit = 'starts';
    end loop;
    for i in 1 .. wanted loop
        each := units -> (i - 1);
        for k in 1 .. kinds loop
            taken := taken || case
                when each <> '[]' then coalesce((each ->> (k - 1))::bigint, 0)
                when starts[k] then coalesce(costs[i], 1)
                else 0
            end;
        end loop;
    end loop;
    return taken;
end
$$;

CREATE FUNCTION intervalq._taken_by(r intervalq.queues, slot jsonb) RETURNS bigint[]
    LANGUAGE sql IMMUTABLE
    RETURN intervalq._taken(r, ARRAY[((slot ->> 2))::bigint], jsonb_build_array((((slot - 0) - 0) - 0)), (1)::bigint);

CREATE FUNCTION intervalq._time_to_return(peak bigint) RETURNS bigint
    LANGUAGE sql IMMUTABLE
    RETURN CASE peak WHEN 0 THEN (0)::bigint ELSE LEAST(GREATEST((32000000)::bigint, (320 * peak)), '86400000000'::bigint) END;

CREATE FUNCTION intervalq._told(common intervalq.queues, known jsonb) RETURNS intervalq.queues
    LANGUAGE plpgsql IMMUTABLE
    AS $$
begin
    if common.limits is not null then
        common := intervalq._correct(intervalq._age(common), coalesce(known -> 'settled', '[]'));
    end if;
    return intervalq._give_back(common, known -> 'release', -9007199254740991);
end
$$;

CREATE FUNCTION intervalq._turn(slots jsonb, most bigint, step bigint, current bigint, revoked_through bigint) RETURNS jsonb
    LANGUAGE plpgsql IMMUTABLE
    AS $$
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

CREATE FUNCTION intervalq._uncount(r intervalq.queues, slot jsonb) RETURNS intervalq.queues
    LANGUAGE plpgsql IMMUTABLE
    AS $$
declare
    taken constant bigint[] := intervalq._taken_by(r, slot);
    is_granted constant boolean := (slot ->> 0)::bigint <= r.current;
    l intervalq._limit;
    units bigint;
    ends bigint;
    place integer;
begin
    for k in 1 .. cardinality(r.limits) loop
        l := r.limits[k];
        units := taken[k];
        continue when units = 0;
        place := case when is_granted then intervalq._fixed(l, (slot ->> 1)::bigint + r.held_total + r.stepped) end;
        if place is not null then
            r.limits[k].used := intervalq._added(l.used, 3, place, -units);
            continue;
        end if;
        ends := intervalq._cell_end((slot ->> 1)::bigint, intervalq._cell(l));
        place := cardinality(l.ahead) - 1;
        while l.ahead[place] > ends loop
            place := place - 2;
        end loop;
        if l.ahead[place] <> ends then
            null;  -- the cell was merged with another one: the units stay counted
        elsif l.ahead[place + 1] > units then
            r.limits[k].ahead[place + 1] := l.ahead[place + 1] - units;
        elsif l.ahead[place + 1] <= units then
            r.limits[k].ahead := l.ahead[:place - 1] || l.ahead[place + 2:];
        end if;
    end loop;
    return r;
end
$$;

CREATE FUNCTION intervalq._uncount_behind(r intervalq.queues) RETURNS intervalq.queues
    LANGUAGE plpgsql IMMUTABLE
    AS $$
declare
    l intervalq._limit;
    n integer;
begin
    for k in 1 .. cardinality(r.limits) loop
        l := r.limits[k];
        n := cardinality(l.ahead);
        while l.ahead[n - 1] > intervalq._cell_end(r.current_due, intervalq._cell(l)) loop
            n := n - 2;
        end loop;
        r.limits[k].ahead := l.ahead[:n];
    end loop;
    return r;
end
$$;

CREATE FUNCTION intervalq._units(missed jsonb, given jsonb, wanted bigint) RETURNS jsonb
    LANGUAGE sql IMMUTABLE
    RETURN (SELECT COALESCE(jsonb_agg(x.units ORDER BY x.n), '[]'::jsonb) AS "coalesce" FROM (SELECT (((e.slot - 0) - 0) - 0) AS "?column?", e.n FROM jsonb_array_elements(_units.missed) WITH ORDINALITY e(slot, n) UNION ALL SELECT e.units, (jsonb_array_length(_units.missed) + e.n) FROM jsonb_array_elements(_units.given) WITH ORDINALITY e(units, n)) x(units, n) WHERE (x.n <= _units.wanted));

CREATE FUNCTION intervalq._usable(r intervalq.queues, command jsonb, now bigint) RETURNS jsonb
    LANGUAGE plpgsql IMMUTABLE
    AS $$
declare
    is_held constant boolean := r.held_since is not null;
    slots jsonb := command -> 'slots';
    alive bigint[] := '{}';
    t bigint;
    ends numeric;
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
        ends := (slots -> i ->> 1)::bigint + (coalesce((slots -> i ->> 2)::numeric, 1) - 1) * r.interval;
        -- While max_running alone holds the queue, slots that have a lease already are granted again.
        if not is_held and t = r.current and ends = r.current_due and intervalq._may_move(r, command)
            or is_held and t <= r.current and t = any (r.running) and ends <= r.current_due
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

CREATE FUNCTION intervalq._use(a intervalq._answer, command jsonb, now bigint, known boolean) RETURNS intervalq._answer
    LANGUAGE plpgsql IMMUTABLE
    AS $$
declare
    r intervalq.queues := a.state;
    is_held constant boolean := r.held_since is not null;
    listed constant jsonb := command -> 'slots';
    slots constant jsonb := case when known then intervalq._usable(r, command, now) else '[]' end;
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
    if not is_held and cardinality(kept) < jsonb_array_length(listed) then
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

CREATE FUNCTION intervalq._waited(r intervalq.queues, length bigint, again jsonb, before bigint) RETURNS intervalq.queues
    LANGUAGE plpgsql IMMUTABLE
    AS $$
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

CREATE FUNCTION intervalq._with_units(slots jsonb, units jsonb) RETURNS jsonb
    LANGUAGE sql IMMUTABLE
    RETURN (SELECT jsonb_agg((e.value || COALESCE((_with_units.units -> ((e.n - 1))::integer), '[]'::jsonb)) ORDER BY e.n) AS jsonb_agg FROM jsonb_array_elements(_with_units.slots) WITH ORDINALITY e(value, n));

CREATE FUNCTION intervalq._written(k intervalq._keyed, queue text, op text, stored boolean, has_common boolean, sweeps boolean, was_held boolean) RETURNS json
    LANGUAGE plpgsql
    AS $$
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

CREATE FUNCTION intervalq.apply(queue text, command jsonb, now_override bigint, layout integer) RETURNS json
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET lock_timeout TO '4s'
    AS $$
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

CREATE FUNCTION intervalq.apply_all(steps jsonb, layout integer) RETURNS SETOF json
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
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

CREATE FUNCTION intervalq.apply_keyed(queue text, command jsonb, now_override bigint, shared text, known jsonb, layout integer) RETURNS json
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET lock_timeout TO '4s'
    AS $$
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
        r := case when stored then intervalq._paced(r, common, own_pace) end;
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

CREATE FUNCTION intervalq.names() RETURNS SETOF text
    LANGUAGE sql STABLE
    BEGIN ATOMIC
 SELECT q.name
    FROM intervalq.queues q
   ORDER BY q.name;
END;

CREATE TABLE intervalq.version (
    one boolean DEFAULT true NOT NULL,
    number integer NOT NULL,
    CONSTRAINT version_one_check CHECK (one)
);

INSERT INTO intervalq.queues VALUES ('api:b', 6, '460a6a3a29ef48c8', 50000, 1, 0, 5000, true, 1, 1795901835731588, 1, 1795901835731588, 0, 42864, NULL, 0, 1795901835758911, '{}', '{}', 42864, 0, 0, '{"(5000,60000000,tokens,0,\"{1795901835937500,10,-9007199254740991}\",{},)"}', 0, NULL);
INSERT INTO intervalq.queues VALUES ('alone', 6, '414a42510d2deb98', 10000, 1, 0, 0, false, 1, 1795901835819023, 1, 1795901835819023, 0, 36027, NULL, 0, 1795901835844716, '{}', '{}', 36027, 0, 0, NULL, NULL, NULL);
INSERT INTO intervalq.queues VALUES ('api:a', 6, '29eefc4c9b740109', 50000, 1, 0, 5000, true, 2, 1795901835656071, 2, 1795901835656071, 1, 37022, NULL, 0, 1795901835666909, '{}', '{}', 37022, 0, 0, '{"(5000,60000000,tokens,0,\"{1795901835937500,20,-9007199254740991}\",{},)"}', 0, NULL);
INSERT INTO intervalq.queues VALUES ('api', 6, 'a7006b495235a90d', 50000, 1, 0, 0, false, 3, 1795901835706071, 3, 1795901835706071, 2, 68381, NULL, 0, 1795901835758911, '{}', '{}', 68381, 0, 0, '{"(600,60000000,starts,0,{},\"{1795901835937500,3}\",)","(30000,60000000,tokens,0,{},\"{1795901835937500,30}\",)"}', 0, NULL);

INSERT INTO intervalq.version VALUES (true, 12);

ALTER TABLE ONLY intervalq.queues
    ADD CONSTRAINT queues_pkey PRIMARY KEY (name);

ALTER TABLE ONLY intervalq.version
    ADD CONSTRAINT version_pkey PRIMARY KEY (one);
