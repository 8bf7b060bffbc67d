-- Before a `Modify`: locks, the tasks that it names, and the changes that are refused.

-- intervalq._locks_of: the locks of all lines and marks that a command may touch.
create or replace function intervalq._locks_of(inserts jsonb, changes jsonb, named uuid[]) returns bigint[]
language plpgsql volatile
set search_path = pg_catalog, pg_temp
as $$
begin
    return (select coalesce(array_agg(x.l), '{}') from (
        select intervalq._lock('k', e ->> 2, e ->> 4) from jsonb_array_elements(inserts) as e
        where e ->> 4 is not null
        union all
        -- Commands that insert the same ids at the same time wait for each other, in the same order.
        select intervalq._lock('i', e ->> 0) from jsonb_array_elements(inserts) as e
        where e ->> 1 is not null
        union all
        select intervalq._lock('d', e ->> 2, e ->> 10) from jsonb_array_elements(inserts) as e
        where e ->> 10 is not null
        union all
        select intervalq._lock('k', r.queue, r.key)
        from (select y.* from intervalq.tasks y where y.id = any (named) offset 0) as r
        where r.key is not null
        union all
        select intervalq._lock('k', e ->> 2, r.key) from jsonb_array_elements(changes) as e,
            lateral (select y.* from intervalq.tasks y where y.id = (e ->> 0)::uuid limit 1) as r
        where e ->> 2 is not null and r.key is not null
    ) as x (l));
end
$$;


-- intervalq._coming: how many tasks the lines with limits will have before the inserts of a command, by queue and key.
-- Gaps between the first and the last place are counted too, unless that could exceed a limit. Also returns the tasks
-- that leave lines.
--   rows_named, known: of `_named`
create or replace function intervalq._coming(
    command jsonb, rows_named intervalq.tasks[], known jsonb, out coming jsonb, out gone uuid[]
)
language plpgsql volatile
set search_path = pg_catalog, pg_temp
as $$
declare
    inserts constant jsonb := command -> 'inserts';
    changes constant jsonb := command -> 'changes';
    few bigint;
    most bigint;
    n bigint;
    i integer;
    k text;
    p jsonb;
    t intervalq.tasks;
begin
    coming := '{}';
    gone := '{}';
    i := jsonb_array_length(inserts) + jsonb_array_length(changes) + jsonb_array_length(command -> 'deletes');
    for k, few, most in
        select jsonb_build_array(e -> 2, e -> 4)::text, min(x.most) - i, max(x.most) + i + 1
        from jsonb_array_elements(inserts) as e,
            lateral (values ((e ->> 12)::bigint + coalesce((e ->> 16)::integer, 1) - 1)) as x (most)
        where e ->> 4 is not null and e ->> 12 is not null group by 1
    loop
        select coalesce((
            select r.place from intervalq.tasks r where r.queue = k::jsonb ->> 0 and r.key = k::jsonb ->> 1
            order by r.place desc limit 1
        ) - (
            select r.place from intervalq.tasks r where r.queue = k::jsonb ->> 0 and r.key = k::jsonb ->> 1
            order by r.place limit 1
        ) + 1, 0) into n;
        if n > few then
            select count(*) into n from (
                select from intervalq.tasks r where r.queue = k::jsonb ->> 0 and r.key = k::jsonb ->> 1 limit most
            ) as r;
        end if;
        coming := coming || jsonb_build_object(k, n);
    end loop;
    for p in
        select e from jsonb_array_elements(command -> 'deletes') as e
        union all select e from jsonb_array_elements(changes) as e where e ->> 2 is not null
    loop
        t := rows_named[(known ->> (p ->> 0))::integer];
        continue when t.key is null or t.queue = p ->> 2;
        gone := gone || t.id;
        k := jsonb_build_array(t.queue, t.key)::text;
        if coming ? k then
            coming := coming || jsonb_build_object(k, (coming ->> k)::bigint - 1);
        end if;
        k := jsonb_build_array(p ->> 2, t.key)::text;
        if p ->> 2 is not null and coming ? k then
            coming := coming || jsonb_build_object(k, (coming ->> k)::bigint + 1);
        end if;
    end loop;
end
$$;


-- intervalq._held_of: how many of the first tasks of a key are claimed; gone: those that don't count.
create or replace function intervalq._held_of(q text, k text, gone uuid[], now bigint) returns bigint
language plpgsql volatile
set search_path = pg_catalog, pg_temp
as $$
declare
    most constant smallint := (
        select coalesce(x.per_key, 1) from intervalq.tasks x where x.queue = q and x.key = k
        order by x.place desc, x.id desc limit 1
    );
begin
    return (
        select count(*) from (
            select x.* from intervalq.tasks x where x.queue = q and x.key = k and not x.waiting
            order by x.place, x.id limit case when most = 1 then 1 end
        ) as r
        where r.id <> all (gone) and r.session is not null and (r.until is null or (
            r.until > now and r.until > now + intervalq._lag(r.modified, now)
        ))
    );
end
$$;


-- intervalq._full_inbox: the line that names the inbox that would exceed its limit; nulls: none would. Tasks that the
-- command removes make room.
--   rows_named, known: of `_named`; left_out: of `_leave_out`
create or replace function intervalq._full_inbox(
    command jsonb, rows_named intervalq.tasks[], known jsonb, left_out boolean[], now bigint
) returns intervalq.line
language plpgsql volatile
set search_path = pg_catalog, pg_temp
as $$
declare
    inserts constant jsonb := command -> 'inserts';
    coming jsonb;
    gone uuid[];
    n bigint;
    k text;
    p jsonb;
    l intervalq.line;
begin
    select c.coming, c.gone into coming, gone from intervalq._coming(command, rows_named, known) as c;
    for i in 0 .. jsonb_array_length(inserts) - 1 loop
        p := inserts -> i;
        continue when left_out[i] or p ->> 4 is null;
        k := jsonb_build_array(p -> 2, p -> 4)::text;
        continue when not coming ? k;
        n := coming ->> k;
        if (p ->> 13)::boolean then
            -- Only the first tasks of a key can be claimed, and all others are replaced.
            n := intervalq._held_of(p ->> 2, p ->> 4, gone, now);
        -- Those that may be claimed don't count as waiting.
        elsif n - coalesce((p ->> 16)::integer, 1) >= (p ->> 12)::bigint then
            l.kind := 'F';
            l.queue := p ->> 2;
            l.key := p ->> 4;
            l.place := (p ->> 12)::integer;
            return l;
        end if;
        coming := coming || jsonb_build_object(k, coalesce(n, 0) + 1);
    end loop;
    return null;
end
$$;


-- intervalq._named: lock the tasks that a command names or replaces and those that wait for them, and find which of its
-- new ones exist already.
--   named: tasks that it changes or deletes; locks: of `_lock_lines`, which it holds
-- Returns the tasks as they were; `known`, for each UUID its index in that array (0: only an insert names it); and
-- which of the named tasks are plain.
create or replace function intervalq._named(
    command jsonb, named uuid[], locks bigint[],
    out rows_named intervalq.tasks[], out known jsonb, out plain uuid[]
)
language plpgsql volatile
set search_path = pg_catalog, pg_temp
as $$
declare
    depends constant uuid[] := array(select (e ->> 0)::uuid from jsonb_array_elements(command -> 'depends') as e);
    replaced uuid[] := '{}';
    t intervalq.tasks;
begin
    rows_named := '{}';
    known := '{}';
    if locks <> '{}' and jsonb_path_exists(command -> 'inserts', 'strict $[*] ? (@[13] == true)') then
        replaced := array(
            select x.id from jsonb_array_elements(command -> 'inserts') as e,
                lateral (select y.id from intervalq.tasks y where y.queue = e ->> 2 and y.key = e ->> 4 offset 0) as x
            where (e ->> 13)::boolean
        );
    end if;
    if named || depends || replaced <> '{}' then
        perform intervalq._lock_tasks(named || replaced, depends);
    end if;
    for t in select r.* from intervalq.tasks r where r.id = any (named) order by r.id for update loop
        if t.key is not null and intervalq._lock('k', t.queue, t.key) <> all (locks) then
            raise exception 'a task was moved at the same moment' using errcode = '40001';
        end if;
        rows_named := rows_named || t;
        known := known || jsonb_build_object(t.id, cardinality(rows_named));
    end loop;
    if depends <> '{}' then
        for t in select r.* from intervalq.tasks r where r.id = any (depends) order by r.id for share loop
            rows_named := rows_named || t;
            known := known || jsonb_build_object(t.id, cardinality(rows_named));
        end loop;
    end if;
    plain := array(
        select u.u from unnest(named || depends) as u (u) where intervalq._is_plain(u.u) and not known ? u.u::text
    );
    if plain <> '{}' then
        for t in select x.* from intervalq._lock_plain(plain) as x loop
            rows_named := rows_named || t;
            known := known || jsonb_build_object(t.id, cardinality(rows_named));
        end loop;
        if exists (select from intervalq.tasks r where r.id = any (plain) and not known ? r.id::text) then
            raise exception 'a plain task became an ordinary one at the same moment' using errcode = '40001';
        end if;
    end if;
    if command -> 'inserts' <> '[]' then
        select known || coalesce(jsonb_object_agg(r.id, 0), '{}') into known from intervalq.tasks r
        where r.id = any (array(select (e ->> 0)::uuid from jsonb_array_elements(command -> 'inserts') as e))
            and not known ? r.id::text;
    end if;
end
$$;


-- intervalq._leave_out: which inserts are left out because a task with that id or dedupe key exists, with the lines of
-- the answer about them; and the UUIDs that must not exist, but do.
create or replace function intervalq._leave_out(
    inserts jsonb, known jsonb, now bigint,
    out left_out boolean[], out lines intervalq.line[], out collisions text[]
)
language plpgsql volatile
set search_path = pg_catalog, pg_temp
as $$
declare
    p jsonb;
    k text;
    there text;                  -- the id of the existing task
    taken jsonb := '{}';         -- queues and dedupe keys of inserts of this command, each with the id
begin
    left_out := '{}';
    lines := '{}';
    collisions := '{}';
    for i in 0 .. jsonb_array_length(inserts) - 1 loop
        p := inserts -> i;
        there := case when known ? (p ->> 0) and (p ->> 9)::boolean then coalesce(p ->> 1, p ->> 0) end;
        if there is null and p ->> 10 is not null then
            k := jsonb_build_array(p -> 2, p -> 10)::text;
            there := taken ->> k;
            if there is null then
                select m.id into there from intervalq.marks m
                where m.queue = p ->> 2 and m.key = p ->> 10 and (m.until is null or m.until > now);
            end if;
            if there is null then
                taken := taken || jsonb_build_object(k, coalesce(p ->> 1, p ->> 0));
            end if;
        end if;
        left_out[i] := there is not null;
        if there is not null then
            lines := lines || row(
                'e', p ->> 0, 0, '', 0, '', there, i, false, '', 0, 0, 0, '', 0, 0, '', 0, false, false, false, '', 0, 0, '',
                1, '', 0
            )::intervalq.line;
        elsif known ? (p ->> 0) then
            collisions := collisions || (p ->> 0);
        end if;
    end loop;
end
$$;


-- intervalq._refused: the line that says why a command is refused; nulls: it isn't. Every task that it names must
-- exist at its version, and nobody else may have claimed it.
--   rows_named, known, plain: of `_named`; collisions: of `_leave_out`; me: the session of the caller
create or replace function intervalq._refused(
    command jsonb, rows_named intervalq.tasks[], known jsonb, plain uuid[], collisions text[], me integer, now bigint
) returns intervalq.line
language plpgsql volatile
set search_path = pg_catalog, pg_temp
as $$
declare
    force constant boolean := (command ->> 'force')::boolean;
    missing_changes text[] := '{}';
    missing_deletes text[] := '{}';
    missing_depends text[] := '{}';
    claimed text[] := '{}';
    part text;
    p jsonb;
    t intervalq.tasks;
    is_mine boolean;
    is_free boolean;
    l intervalq.line;
begin
    for part, p in
        select 'changes', e from jsonb_array_elements(command -> 'changes') as e
        union all select 'deletes', e from jsonb_array_elements(command -> 'deletes') as e
        union all select 'depends', e from jsonb_array_elements(command -> 'depends') as e
    loop
        t := rows_named[(known ->> (p ->> 0))::integer];
        if t.id is null or (t.version <> (p ->> 1)::bigint and not force) then
            case part
                when 'changes' then missing_changes := missing_changes || (p ->> 0);
                when 'deletes' then missing_deletes := missing_deletes || (p ->> 0);
                else missing_depends := missing_depends || (p ->> 0);
            end case;
        elsif part <> 'depends' and not force then
            is_free := t.session is null
                or coalesce(t.until <= now or t.until <= now + intervalq._lag(t.modified, now), false);
            is_mine := not is_free and t.session is not distinct from me;
            if not (is_free or is_mine)
                or (part = 'changes' and (p ->> 8)::boolean and (is_free or t.id = any (plain)))
            then
                claimed := claimed || (p ->> 0);
            end if;
        end if;
    end loop;
    if cardinality(collisions || missing_changes || missing_deletes || missing_depends || claimed) > 0 then
        l.kind := 'D';
        l.json := json_build_object(
            'inserts', collisions, 'changes', missing_changes, 'deletes', missing_deletes,
            'depends', missing_depends, 'claims', claimed
        );
    end if;
    return l;
end
$$;
