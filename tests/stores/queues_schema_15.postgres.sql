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
    auto bigint[],
    weight bigint
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
    AS $$$$;

CREATE FUNCTION intervalq._added(cells bigint[], size integer, place integer, more bigint) RETURNS bigint[]
    LANGUAGE plpgsql IMMUTABLE
    AS $$$$;

CREATE FUNCTION intervalq._advance(a intervalq._answer, command jsonb, now bigint) RETURNS intervalq._answer
    LANGUAGE plpgsql IMMUTABLE
    AS $$$$;

CREATE FUNCTION intervalq._advance_keyed(r intervalq.queues, common intervalq.queues, queue text, command jsonb, known jsonb, now bigint) RETURNS intervalq._keyed
    LANGUAGE plpgsql STABLE
    AS $$$$;

CREATE FUNCTION intervalq._again(r intervalq.queues, command jsonb) RETURNS jsonb
    LANGUAGE sql IMMUTABLE
    RETURN (SELECT COALESCE(jsonb_agg(e.value ORDER BY e.n), '[]'::jsonb) AS "coalesce" FROM jsonb_array_elements((_again.command -> 'slots'::text)) WITH ORDINALITY e(value, n) WHERE (((_again.command ->> 'generation'::text) = (_again.r).generation) AND (((e.value ->> 0))::bigint > (_again.r).revoked_through) AND (((e.value ->> 0))::bigint <= (_again.r).current)));

CREATE FUNCTION intervalq._age(r intervalq.queues) RETURNS intervalq.queues
    LANGUAGE plpgsql IMMUTABLE
    AS $$$$;

CREATE FUNCTION intervalq._agree(r intervalq.queues, command jsonb) RETURNS boolean
    LANGUAGE plpgsql IMMUTABLE
    AS $$$$;

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
    AS $$$$;

CREATE FUNCTION intervalq._are_passed(r intervalq.queues, slots jsonb, length bigint) RETURNS boolean
    LANGUAGE plpgsql IMMUTABLE
    AS $$$$;

CREATE FUNCTION intervalq._as_used(ahead bigint[], later bigint) RETURNS bigint[]
    LANGUAGE plpgsql IMMUTABLE
    AS $$$$;

CREATE FUNCTION intervalq._block(l intervalq._limit) RETURNS bigint
    LANGUAGE sql IMMUTABLE
    RETURN ((((l)."window" + (l).jitter) + 63) / 64);

CREATE FUNCTION intervalq._bring_back(r intervalq.queues, length bigint, slots jsonb) RETURNS intervalq.queues
    LANGUAGE plpgsql IMMUTABLE
    AS $$$$;

CREATE FUNCTION intervalq._can_be_plain(settings jsonb) RETURNS boolean
    LANGUAGE sql IMMUTABLE
    RETURN ((settings IS NULL) OR (((settings -> 2) = '0'::jsonb) AND (NOT (EXISTS (SELECT FROM jsonb_array_elements((_can_be_plain.settings -> 5)) l(limit_of) WHERE (jsonb_array_length(l.limit_of) > 4))))));

CREATE FUNCTION intervalq._cell_end(due bigint, block bigint) RETURNS bigint
    LANGUAGE sql IMMUTABLE
    RETURN LEAST('9007199254740991'::bigint, ((due - (((due % block) + block) % block)) + LEAST(block, ((((((due % block) + block) % block) / ((block + 2) / 3)) + 1) * ((block + 2) / 3)))));

CREATE FUNCTION intervalq._change(r intervalq.queues, command jsonb, now bigint) RETURNS intervalq.queues
    LANGUAGE plpgsql IMMUTABLE
    AS $$$$;

CREATE FUNCTION intervalq._clock(r intervalq.queues, now bigint) RETURNS bigint
    LANGUAGE sql IMMUTABLE
    RETURN (COALESCE((r).held_since, now) - (r).held_total);

CREATE FUNCTION intervalq._configure(r intervalq.queues, command jsonb) RETURNS intervalq.queues
    LANGUAGE plpgsql IMMUTABLE
    AS $$$$;

CREATE FUNCTION intervalq._correct(r intervalq.queues, settled jsonb) RETURNS intervalq.queues
    LANGUAGE plpgsql IMMUTABLE
    AS $$$$;

CREATE FUNCTION intervalq._correct_fixed(r intervalq.queues, settled jsonb) RETURNS intervalq.queues
    LANGUAGE plpgsql IMMUTABLE
    AS $$$$;

CREATE FUNCTION intervalq._cost(slot jsonb) RETURNS bigint
    LANGUAGE sql IMMUTABLE
    RETURN COALESCE(((slot ->> 2))::bigint, (1)::bigint);

CREATE FUNCTION intervalq._costs(missed jsonb, given jsonb) RETURNS bigint[]
    LANGUAGE sql IMMUTABLE
    RETURN (ARRAY(SELECT COALESCE(((x.slot ->> 2))::bigint, (1)::bigint) AS "coalesce" FROM jsonb_array_elements(_costs.missed) WITH ORDINALITY x(slot, n) ORDER BY x.n) || ARRAY(SELECT (x.cost)::bigint AS cost FROM jsonb_array_elements_text(_costs.given) WITH ORDINALITY x(cost, n) ORDER BY x.n));

CREATE FUNCTION intervalq._count(r intervalq.queues, dues bigint[], taken bigint[]) RETURNS intervalq.queues
    LANGUAGE plpgsql IMMUTABLE
    AS $$$$;

CREATE FUNCTION intervalq._count_longer(r intervalq.queues, length bigint) RETURNS intervalq.queues
    LANGUAGE plpgsql IMMUTABLE
    AS $$$$;

CREATE FUNCTION intervalq._count_lost(r intervalq.queues, mark jsonb) RETURNS intervalq.queues
    LANGUAGE plpgsql IMMUTABLE
    AS $$$$;

CREATE FUNCTION intervalq._counting(l intervalq._limit, lag bigint, last_due bigint) RETURNS bigint[]
    LANGUAGE plpgsql IMMUTABLE
    AS $$$$;

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
    AS $$$$;

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
    AS $$$$;

CREATE FUNCTION intervalq._fit(r intervalq.queues, costs bigint[], taken bigint[], wanted bigint, due bigint, clock bigint, apart bigint) RETURNS bigint[]
    LANGUAGE plpgsql IMMUTABLE
    AS $$$$;

CREATE FUNCTION intervalq._fix(r intervalq.queues, slots jsonb, before bigint) RETURNS intervalq.queues
    LANGUAGE plpgsql IMMUTABLE
    AS $$$$;

CREATE FUNCTION intervalq._fixed(l intervalq._limit, at bigint) RETURNS integer
    LANGUAGE plpgsql IMMUTABLE
    AS $$$$;

CREATE FUNCTION intervalq._for_common(slots jsonb, own integer) RETURNS jsonb
    LANGUAGE sql IMMUTABLE
    RETURN CASE WHEN (own = 0) THEN slots ELSE (SELECT COALESCE(jsonb_agg((jsonb_build_array((e.value -> 0), (e.value -> 1), intervalq._cost(e.value)) || jsonb_path_query_array(e.value, '$[$"from" to last]'::jsonpath, jsonb_build_object('from', (3 + _for_common.own)))) ORDER BY e.n), '[]'::jsonb) AS "coalesce" FROM jsonb_array_elements(_for_common.slots) WITH ORDINALITY e(value, n)) END;

CREATE FUNCTION intervalq._for_one_turn(r intervalq.queues, common intervalq.queues, command jsonb, known jsonb, now bigint) RETURNS jsonb
    LANGUAGE plpgsql IMMUTABLE
    AS $$$$;

CREATE FUNCTION intervalq._fresh(queue text, command jsonb, now bigint) RETURNS intervalq.queues
    LANGUAGE plpgsql IMMUTABLE
    AS $$$$;

CREATE FUNCTION intervalq._fresh_limits(given jsonb, now bigint, was_lost boolean) RETURNS intervalq._limit[]
    LANGUAGE sql IMMUTABLE
    RETURN ARRAY(SELECT ROW(((x.l ->> 0))::bigint, ((x.l ->> 1))::bigint, (x.l ->> 2), ((x.l ->> 3))::bigint, CASE WHEN _fresh_limits.was_lost THEN ARRAY[_fresh_limits.now, ((x.l ->> 0))::bigint, _fresh_limits.now] ELSE '{}'::bigint[] END, '{}'::bigint[], ((x.l ->> 4))::bigint)::intervalq._limit AS "row" FROM jsonb_array_elements(_fresh_limits.given) WITH ORDINALITY x(l, n) ORDER BY x.n);

CREATE FUNCTION intervalq._generation_of(nonce text, own_pace boolean) RETURNS text
    LANGUAGE sql IMMUTABLE
    RETURN (CASE WHEN own_pace THEN 'own:'::text ELSE 'shared:'::text END || nonce);

CREATE FUNCTION intervalq._give_back(r intervalq.queues, slots jsonb, above bigint) RETURNS intervalq.queues
    LANGUAGE plpgsql IMMUTABLE
    AS $$$$;

CREATE FUNCTION intervalq._grant(r intervalq.queues, t bigint, slot_due bigint, now bigint, lease bigint) RETURNS intervalq.queues
    LANGUAGE plpgsql IMMUTABLE
    AS $$$$;

CREATE FUNCTION intervalq._granted(a intervalq._answer, command jsonb, is_limited boolean) RETURNS jsonb
    LANGUAGE plpgsql IMMUTABLE
    AS $$$$;

CREATE FUNCTION intervalq._granted_end(l intervalq._limit, current_due bigint) RETURNS bigint
    LANGUAGE plpgsql IMMUTABLE
    AS $$$$;

CREATE FUNCTION intervalq._grown(r intervalq.queues, clock bigint) RETURNS intervalq.queues
    LANGUAGE plpgsql IMMUTABLE
    AS $$$$;

CREATE FUNCTION intervalq._has_own_pace(r intervalq.queues) RETURNS boolean
    LANGUAGE sql IMMUTABLE
    RETURN CASE WHEN ((r).generation ~~ 'own:%'::text) THEN true WHEN ((r).generation ~~ 'shared:%'::text) THEN false ELSE NULL::boolean END;

CREATE FUNCTION intervalq._heal(r intervalq.queues, mark jsonb) RETURNS intervalq.queues
    LANGUAGE plpgsql IMMUTABLE
    AS $$$$;

CREATE FUNCTION intervalq._in_row(a intervalq._answer) RETURNS bigint
    LANGUAGE plpgsql IMMUTABLE
    AS $$$$;

CREATE FUNCTION intervalq._interval_at(auto bigint[], due bigint) RETURNS bigint
    LANGUAGE plpgsql IMMUTABLE
    AS $$$$;

CREATE FUNCTION intervalq._is_late(r intervalq.queues, due bigint, notice bigint, now bigint) RETURNS boolean
    LANGUAGE sql IMMUTABLE
    RETURN ((due <= (now - (r).held_total)) AND (((now - (r).held_total) + notice) > intervalq._ends(r, due)));

CREATE FUNCTION intervalq._is_plain(r intervalq.queues) RETURNS boolean
    LANGUAGE sql IMMUTABLE
    RETURN (((r).burst = 1) AND ((r).max_running = 0) AND (((r).limits IS NULL) OR (NOT (EXISTS (SELECT FROM unnest((_is_plain.r).limits) x(most, "window", unit, jitter, used, ahead, edge) WHERE (x.edge IS NOT NULL))))));

CREATE FUNCTION intervalq._kept(r intervalq.queues) RETURNS bigint
    LANGUAGE plpgsql IMMUTABLE
    AS $$$$;

CREATE FUNCTION intervalq._known(a intervalq._answer, command jsonb) RETURNS intervalq._answer
    LANGUAGE plpgsql IMMUTABLE
    AS $$$$;

CREATE FUNCTION intervalq._known_places(common intervalq.queues, known jsonb, run jsonb) RETURNS jsonb
    LANGUAGE plpgsql IMMUTABLE
    AS $$$$;

CREATE FUNCTION intervalq._lapses(r intervalq.queues) RETURNS bigint
    LANGUAGE sql IMMUTABLE
    RETURN CASE WHEN ((NOT (r).ephemeral) OR ((r).held_since IS NOT NULL) OR (cardinality((r).running) > 0)) THEN '9007199254740991'::bigint ELSE (LEAST(('9007199254740991'::bigint)::numeric, ((((((r).due + (r).held_total))::numeric + ((((r).burst)::numeric + (1)::numeric) * ((r)."interval")::numeric)) + (CASE WHEN ((r).weight IS NULL) THEN (60000000)::bigint ELSE '604800000000'::bigint END)::numeric) + (CASE WHEN ((r).limits IS NULL) THEN (0)::bigint ELSE intervalq._kept(r) END)::numeric)))::bigint END;

CREATE FUNCTION intervalq._latest(r intervalq.queues) RETURNS bigint
    LANGUAGE plpgsql IMMUTABLE
    AS $$$$;

CREATE FUNCTION intervalq._lateness(r intervalq.queues) RETURNS bigint
    LANGUAGE sql IMMUTABLE
    RETURN ((2 * (r).error) + CASE WHEN ((r).auto IS NULL) THEN (intervalq._tolerance(r) + intervalq._credit(r)) ELSE intervalq._latest(r) END);

CREATE FUNCTION intervalq._listed(slots jsonb, tickets bigint[]) RETURNS jsonb
    LANGUAGE sql IMMUTABLE
    RETURN (SELECT COALESCE(jsonb_agg(x.slot ORDER BY x.n), '[]'::jsonb) AS "coalesce" FROM jsonb_array_elements(_listed.slots) WITH ORDINALITY x(slot, n) WHERE (((x.slot ->> 0))::bigint = ANY (_listed.tickets)));

CREATE FUNCTION intervalq._may_move(r intervalq.queues, command jsonb) RETURNS boolean
    LANGUAGE sql IMMUTABLE
    RETURN (((r).limits IS NOT NULL) AND ((r).auto IS NULL) AND ((r).held_since IS NULL) AND ((r).max_running = 0) AND (((command ->> 'reach'::text))::bigint >= 0) AND (NOT (command ? 'apart'::text)));

CREATE FUNCTION intervalq._moved(r intervalq.queues, length bigint) RETURNS intervalq.queues
    LANGUAGE plpgsql IMMUTABLE
    AS $$$$;

CREATE FUNCTION intervalq._moved(r intervalq.queues, common intervalq.queues, command jsonb, known jsonb, again jsonb, now bigint) RETURNS intervalq.queues
    LANGUAGE plpgsql IMMUTABLE
    AS $$$$;

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
    AS $$$$;

CREATE FUNCTION intervalq._paced_command(command jsonb, common intervalq.queues, own_pace boolean) RETURNS jsonb
    LANGUAGE sql IMMUTABLE
    RETURN CASE WHEN (command ? 'settings'::text) THEN (command || jsonb_build_object('nonce', intervalq._generation_of((command ->> 'nonce'::text), own_pace), 'settings', jsonb_set(jsonb_set(jsonb_set((command -> 'settings'::text), '{0}'::text[], CASE WHEN own_pace THEN ((command -> 'settings'::text) -> 0) ELSE to_jsonb((common)."interval") END), '{1}'::text[], '1'::jsonb), '{3}'::text[], to_jsonb(intervalq._agreed(common))))) ELSE command END;

CREATE FUNCTION intervalq._place(cells bigint[], size integer, ends bigint) RETURNS integer
    LANGUAGE plpgsql IMMUTABLE
    AS $$$$;

CREATE FUNCTION intervalq._placed(a intervalq._answer, g intervalq._got, run jsonb, own integer, again jsonb, before bigint) RETURNS intervalq._answer
    LANGUAGE plpgsql IMMUTABLE
    AS $$$$;

CREATE FUNCTION intervalq._places_of(common intervalq.queues, command jsonb, known jsonb, reach jsonb, run jsonb, instant bigint, now bigint) RETURNS intervalq._got
    LANGUAGE plpgsql STABLE
    AS $$$$;

CREATE FUNCTION intervalq._present(r intervalq.queues, now bigint) RETURNS intervalq.queues
    LANGUAGE plpgsql STABLE
    AS $$$$;

CREATE FUNCTION intervalq._put(cells bigint[], others bigint[]) RETURNS bigint[]
    LANGUAGE plpgsql IMMUTABLE
    AS $$$$;

CREATE FUNCTION intervalq._put_used(cells bigint[], others bigint[]) RETURNS bigint[]
    LANGUAGE plpgsql IMMUTABLE
    AS $$$$;

CREATE FUNCTION intervalq._read(queue text, op text, creates boolean) RETURNS intervalq.queues
    LANGUAGE plpgsql
    AS $$$$;

CREATE FUNCTION intervalq._recheck(r intervalq.queues, now bigint) RETURNS intervalq.queues
    LANGUAGE plpgsql IMMUTABLE
    AS $$$$;

CREATE FUNCTION intervalq._refused(r intervalq.queues, command jsonb, now bigint) RETURNS intervalq.queues
    LANGUAGE plpgsql IMMUTABLE
    AS $$$$;

CREATE FUNCTION intervalq._reported(common intervalq.queues, known jsonb) RETURNS intervalq.queues
    LANGUAGE plpgsql IMMUTABLE
    AS $$$$;

CREATE FUNCTION intervalq._respread(r intervalq.queues, given jsonb) RETURNS intervalq.queues
    LANGUAGE plpgsql IMMUTABLE
    AS $$$$;

CREATE FUNCTION intervalq._resumed(r intervalq.queues, now bigint) RETURNS intervalq.queues
    LANGUAGE plpgsql IMMUTABLE
    AS $$$$;

CREATE FUNCTION intervalq._revoke_all(r intervalq.queues) RETURNS intervalq.queues
    LANGUAGE plpgsql IMMUTABLE
    AS $$$$;

CREATE FUNCTION intervalq._save(r intervalq.queues, stored boolean, sweeps boolean) RETURNS void
    LANGUAGE plpgsql
    AS $$$$;

CREATE FUNCTION intervalq._set_back(r intervalq.queues, length bigint, slots jsonb) RETURNS intervalq.queues
    LANGUAGE plpgsql IMMUTABLE
    AS $$$$;

CREATE FUNCTION intervalq._set_back_for(r intervalq.queues, slots jsonb, length bigint, now bigint) RETURNS intervalq.queues
    LANGUAGE plpgsql IMMUTABLE
    AS $$$$;

CREATE FUNCTION intervalq._settle(r intervalq.queues, now bigint) RETURNS intervalq.queues
    LANGUAGE plpgsql STABLE
    AS $$$$;

CREATE FUNCTION intervalq._shares(r intervalq.queues) RETURNS boolean
    LANGUAGE sql IMMUTABLE
    RETURN (((r).burst = 1) AND ((r).max_running = 0));

CREATE FUNCTION intervalq._sooner(a intervalq._answer, slot jsonb, command jsonb, now bigint) RETURNS intervalq._answer
    LANGUAGE plpgsql IMMUTABLE
    AS $$$$;

CREATE FUNCTION intervalq._sound_auto(r intervalq.queues) RETURNS boolean
    LANGUAGE sql IMMUTABLE
    RETURN COALESCE(((array_ndims((r).auto) = 1) AND (array_lower((r).auto, 1) = 1) AND (cardinality((r).auto) = 6) AND ((r).auto[1] <= '86400000000'::bigint) AND (((r).auto[2] >= 1) AND ((r).auto[2] <= (r).auto[1])) AND (((r).auto[4] >= 1) AND ((r).auto[4] <= '86400000000'::bigint)) AND (((r).auto[3] = 0) OR (((r).auto[3] <= (r).auto[4]) AND ((r).auto[4] <= (2 * (r).auto[3])))) AND (((r).auto[5] >= '-9007199254740991'::bigint) AND ((r).auto[5] <= '9007199254740991'::bigint)) AND (((r).auto[6] >= 0) AND ((r).auto[6] <= (r).ticket))), false);

CREATE FUNCTION intervalq._sound_limits(r intervalq.queues) RETURNS boolean
    LANGUAGE plpgsql IMMUTABLE
    AS $$$$;

CREATE FUNCTION intervalq._sound(r intervalq.queues) RETURNS boolean
    LANGUAGE sql IMMUTABLE
    RETURN COALESCE((((r).generation <> ''::text) AND (((r)."interval" >= 1) AND ((r)."interval" <= '9007199254740991'::bigint)) AND (((r).burst >= 1) AND ((r).burst <= '9007199254740991'::bigint)) AND (((r).max_running >= 0) AND ((r).max_running <= '9007199254740991'::bigint)) AND (((r).tolerance >= 0) AND ((r).tolerance <= '9007199254740991'::bigint)) AND (((r).ticket >= 0) AND ((r).ticket <= '9007199254740991'::bigint)) AND (((r).current >= 0) AND ((r).current <= (r).ticket)) AND (((r).revoked_through >= 0) AND ((r).revoked_through <= (r).ticket)) AND (((r).due >= '-9007199254740991'::bigint) AND ((r).due <= '9007199254740991'::bigint)) AND (((r).current_due >= '-9007199254740991'::bigint) AND ((r).current_due <= '9007199254740991'::bigint)) AND (((r).held_total >= '-9007199254740991'::bigint) AND ((r).held_total <= '9007199254740991'::bigint)) AND (((r).held_until >= '-9007199254740991'::bigint) AND ((r).held_until <= '9007199254740991'::bigint)) AND (((r).last_now >= '-9007199254740991'::bigint) AND ((r).last_now <= '9007199254740991'::bigint)) AND (((r).late_total >= 0) AND ((r).late_total <= '9007199254740991'::bigint)) AND (((r).error >= 0) AND ((r).error <= '9007199254740991'::bigint)) AND (((r).error_until >= '-9007199254740991'::bigint) AND ((r).error_until <= '9007199254740991'::bigint)) AND (((r).held_since IS NULL) OR (((r).held_since >= '-9007199254740991'::bigint) AND ((r).held_since <= '9007199254740991'::bigint))) AND (cardinality((r).running) = cardinality((r).leases)) AND ((cardinality((r).running) = 0) OR ((array_ndims((r).running) = 1) AND (array_ndims((r).leases) = 1) AND (0 <= ALL ((r).running)) AND ('9007199254740991'::bigint >= ALL ((r).running)) AND ('-9007199254740991'::bigint <= ALL ((r).leases)) AND ('9007199254740991'::bigint >= ALL ((r).leases)))) AND (((r).limits IS NULL) OR intervalq._sound_limits(r)) AND (((r).auto IS NULL) OR intervalq._sound_auto(r)) AND (((r).weight IS NULL) OR (((r).weight >= 1) AND ((r).weight <= 1000)))), false);

CREATE FUNCTION intervalq._sound_cells(cells bigint[], size integer) RETURNS boolean
    LANGUAGE plpgsql IMMUTABLE
    AS $$$$;

CREATE FUNCTION intervalq._starts(costs bigint[], wanted bigint, room bigint) RETURNS bigint[]
    LANGUAGE sql IMMUTABLE
    RETURN ARRAY(SELECT (x.start)::bigint AS start FROM (SELECT i.i, sum(CASE i.i WHEN 0 THEN (0)::bigint ELSE COALESCE((_starts.costs)[i.i], (1)::bigint) END) OVER (ORDER BY i.i) AS start FROM generate_series(0, (_starts.wanted)::integer) i(i)) x WHERE (x.start <= (_starts.room)::numeric) ORDER BY x.i);

CREATE FUNCTION intervalq._stay(r intervalq.queues) RETURNS intervalq.queues
    LANGUAGE plpgsql IMMUTABLE
    AS $$$$;

CREATE FUNCTION intervalq._stayed(l intervalq._limit, last bigint, lag bigint) RETURNS intervalq._limit
    LANGUAGE plpgsql IMMUTABLE
    AS $$$$;

CREATE FUNCTION intervalq._stepped(r intervalq.queues, now bigint) RETURNS intervalq.queues
    LANGUAGE plpgsql IMMUTABLE
    AS $$$$;

CREATE FUNCTION intervalq._sweep(now bigint) RETURNS void
    LANGUAGE plpgsql
    AS $$$$;

CREATE FUNCTION intervalq._take(a intervalq._answer, command jsonb, now bigint, costs bigint[], wanted bigint) RETURNS intervalq._answer
    LANGUAGE plpgsql IMMUTABLE
    AS $$$$;

CREATE FUNCTION intervalq._take_limited(a intervalq._answer, command jsonb, now bigint, costs bigint[], units jsonb, wanted bigint) RETURNS intervalq._answer
    LANGUAGE plpgsql IMMUTABLE
    AS $$$$;

CREATE FUNCTION intervalq._taken(r intervalq.queues, costs bigint[], units jsonb, wanted bigint) RETURNS bigint[]
    LANGUAGE plpgsql IMMUTABLE
    AS $$$$;

CREATE FUNCTION intervalq._taken_by(r intervalq.queues, slot jsonb) RETURNS bigint[]
    LANGUAGE sql IMMUTABLE
    RETURN intervalq._taken(r, ARRAY[((slot ->> 2))::bigint], jsonb_build_array((((slot - 0) - 0) - 0)), (1)::bigint);

CREATE FUNCTION intervalq._taken_over(r intervalq.queues, own_pace boolean, op text) RETURNS intervalq.queues
    LANGUAGE plpgsql IMMUTABLE
    AS $$$$;

CREATE FUNCTION intervalq._time_to_return(peak bigint) RETURNS bigint
    LANGUAGE sql IMMUTABLE
    RETURN CASE peak WHEN 0 THEN (0)::bigint ELSE LEAST(GREATEST((32000000)::bigint, (320 * peak)), '86400000000'::bigint) END;

CREATE FUNCTION intervalq._turn(slots jsonb, most bigint, step bigint, current bigint, revoked_through bigint) RETURNS jsonb
    LANGUAGE plpgsql IMMUTABLE
    AS $$$$;

CREATE FUNCTION intervalq._uncount(r intervalq.queues, slot jsonb) RETURNS intervalq.queues
    LANGUAGE plpgsql IMMUTABLE
    AS $$$$;

CREATE FUNCTION intervalq._uncount_behind(r intervalq.queues) RETURNS intervalq.queues
    LANGUAGE plpgsql IMMUTABLE
    AS $$$$;

CREATE FUNCTION intervalq._units(missed jsonb, given jsonb, wanted bigint) RETURNS jsonb
    LANGUAGE sql IMMUTABLE
    RETURN (SELECT COALESCE(jsonb_agg(x.units ORDER BY x.n), '[]'::jsonb) AS "coalesce" FROM (SELECT (((e.slot - 0) - 0) - 0) AS "?column?", e.n FROM jsonb_array_elements(_units.missed) WITH ORDINALITY e(slot, n) UNION ALL SELECT e.units, (jsonb_array_length(_units.missed) + e.n) FROM jsonb_array_elements(_units.given) WITH ORDINALITY e(units, n)) x(units, n) WHERE (x.n <= _units.wanted));

CREATE FUNCTION intervalq._usable(r intervalq.queues, command jsonb, now bigint) RETURNS jsonb
    LANGUAGE plpgsql IMMUTABLE
    AS $$$$;

CREATE FUNCTION intervalq._use(a intervalq._answer, command jsonb, now bigint, known boolean) RETURNS intervalq._answer
    LANGUAGE plpgsql IMMUTABLE
    AS $$$$;

CREATE FUNCTION intervalq._waited(r intervalq.queues, length bigint, again jsonb, before bigint) RETURNS intervalq.queues
    LANGUAGE plpgsql IMMUTABLE
    AS $$$$;

CREATE FUNCTION intervalq._waits(r intervalq.queues, command jsonb, now bigint) RETURNS boolean
    LANGUAGE sql IMMUTABLE
    RETURN COALESCE((intervalq._may_move(r, command) AND (jsonb_array_length((command -> 'slots'::text)) = 1) AND (((((command -> 'slots'::text) -> 0) ->> 0))::bigint > GREATEST((r).current, (r).revoked_through)) AND (((((command -> 'slots'::text) -> 0) ->> 0))::bigint <= (r).ticket) AND (((((command -> 'slots'::text) -> 0) ->> 1))::bigint > (intervalq._clock(r, now) + ((command ->> 'ahead'::text))::bigint))), false);

CREATE FUNCTION intervalq._weighted(known jsonb, r intervalq.queues) RETURNS jsonb
    LANGUAGE sql IMMUTABLE
    RETURN (known || jsonb_strip_nulls(jsonb_build_object('own_pace', intervalq._has_own_pace(r), 'weight', CASE WHEN (NOT intervalq._has_own_pace(r)) THEN (r).weight ELSE NULL::bigint END)));

CREATE FUNCTION intervalq._with_units(slots jsonb, units jsonb) RETURNS jsonb
    LANGUAGE sql IMMUTABLE
    RETURN (SELECT jsonb_agg((e.value || COALESCE((_with_units.units -> ((e.n - 1))::integer), '[]'::jsonb)) ORDER BY e.n) AS jsonb_agg FROM jsonb_array_elements(_with_units.slots) WITH ORDINALITY e(value, n));

CREATE FUNCTION intervalq._written(k intervalq._keyed, queue text, op text, stored boolean, has_common boolean, sweeps boolean, was_held boolean) RETURNS json
    LANGUAGE plpgsql
    AS $$$$;

CREATE FUNCTION intervalq.apply(queue text, command jsonb, now_override bigint, layout integer) RETURNS json
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET lock_timeout TO '4s'
    AS $$$$;

CREATE FUNCTION intervalq.apply_all(steps jsonb, layout integer) RETURNS SETOF json
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$$$;

CREATE FUNCTION intervalq.apply_keyed(queue text, command jsonb, now_override bigint, shared text, known jsonb, layout integer) RETURNS json
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET lock_timeout TO '4s'
    AS $$$$;

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

INSERT INTO intervalq.queues VALUES ('api:b', 6, 'shared:b61f088ec3ec19d0', 50000, 1, 0, 5000, true, 1, 1795944676030779, 1, 1795944676030779, 0, 54636, NULL, 0, 1795944676077829, '{}', '{}', 54636, 0, 0, '{"(5000,60000000,tokens,0,\"{1795944676250000,10,-9007199254740991}\",{},)"}', 0, NULL, NULL);
INSERT INTO intervalq.queues VALUES ('alone', 6, 'dd94bb7a264c3729', 10000, 1, 0, 0, false, 1, 1795944676116710, 1, 1795944676116710, 0, 0, NULL, 0, 1795944676102992, '{}', '{}', 0, 0, 0, NULL, NULL, NULL, NULL);
INSERT INTO intervalq.queues VALUES ('api:a', 6, 'shared:b57326509643892f', 50000, 1, 0, 5000, true, 2, 1795944675971004, 2, 1795944675971004, 1, 43355, NULL, 0, 1795944675969388, '{}', '{}', 43355, 0, 0, '{"(5000,60000000,tokens,0,\"{1795944676250000,20,-9007199254740991}\",{},)"}', 0, NULL, NULL);
INSERT INTO intervalq.queues VALUES ('api', 6, 'bfaa18d550cf94e4', 50000, 1, 0, 0, false, 3, 1795944676021004, 3, 1795944676021004, 2, 64411, NULL, 0, 1795944676077829, '{}', '{}', 64411, 0, 0, '{"(600,60000000,starts,0,\"{1795944675980855,1,1795944675937500}\",\"{1795944676250000,2}\",)","(30000,60000000,tokens,0,\"{1795944675980855,10,1795944675937500}\",\"{1795944676250000,20}\",)"}', 0, NULL, NULL);

INSERT INTO intervalq.version VALUES (true, 15);

ALTER TABLE ONLY intervalq.queues
    ADD CONSTRAINT queues_pkey PRIMARY KEY (name);

ALTER TABLE ONLY intervalq.version
    ADD CONSTRAINT version_pkey PRIMARY KEY (one);
