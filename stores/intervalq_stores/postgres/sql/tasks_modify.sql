-- `Modify`: inserts, changes and deletes tasks.

-- intervalq._carry_out: apply a command that was not refused. Returns the lines of its answer, and the queues of tasks
-- that became ready.
--   rows_named, known, plain: of `_named`; left_out: of `_leave_out`; me: the session of the caller
create or replace function intervalq._carry_out(
    command jsonb, rows_named intervalq.tasks[], known jsonb, plain uuid[], named uuid[], left_out boolean[],
    me integer, now bigint, out lines intervalq.line[], out woken text[]
)
language plpgsql volatile
set search_path = pg_catalog, pg_temp
as $$
declare
    t intervalq.tasks;
    p jsonb;
    after record;
begin
    lines := '{}';
    woken := '{}';
    if plain <> '{}' then
        perform intervalq._take_plain(array(
            select x from unnest(rows_named) as x where x.id = any (plain) and x.id = any (named)
        ), array(select (e ->> 0)::uuid from jsonb_array_elements(command -> 'changes') as e), now);
        -- Sessions that found nothing because of our locks.
        woken := array(select distinct x.queue from unnest(rows_named) as x where x.id = any (plain));
    end if;
    for p in select e from jsonb_array_elements(command -> 'deletes') as e loop
        continue when (p ->> 0)::uuid = any (plain);
        t := rows_named[(known ->> (p ->> 0))::integer];
        woken := woken || intervalq._remove(
            t, case when t.session = me and not t.cancelled then 'done' else 'cancelled' end, p -> 3, me, now, true
        );
    end loop;
    for p in select e from jsonb_array_elements(command -> 'changes') as e loop
        after := intervalq._change(rows_named[(known ->> (p ->> 0))::integer], p, me, now);
        t := after.t;
        woken := woken || after.woken || case when t.ready <= now + 5000000 then t.queue end;
        lines := lines || intervalq._line('c', t);
    end loop;
    for i in 0 .. jsonb_array_length(command -> 'inserts') - 1 loop
        continue when left_out[i];
        t := intervalq._insert(command -> 'inserts' -> i, now);
        woken := woken || case when t.ready <= now + 5000000 then t.queue end;
        lines := lines || intervalq._line('i', t);
    end loop;
    woken := array_remove(woken, null);
end
$$;


-- intervalq.modify: `rules.Modify`.
--   who: the session of the caller; empty: none
--   command: {"force", "inserts": [..], "changes": [..], "deletes": [[uuid, version, null, kept]..], "depends":
--     [[uuid, version]..]}; see `_leave` for kept, `_insert` and `_change` for the others
-- Returns lines: i, an inserted task; c, a changed one; e, an insert that was left out, with its number as place and
-- the id of the existing task as key; or a single line: D, a DependencyError, with the UUIDs as json; F, InboxFull,
-- with queue, key, and the limit as place.
create or replace function intervalq.modify(who text, now bigint, command jsonb) returns setof intervalq.line
language plpgsql volatile
set search_path = pg_catalog, pg_temp
set lock_timeout = '4s'
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set enable_hashjoin = off
set enable_mergejoin = off
set enable_bitmapscan = off
as $$
declare
    inserts constant jsonb := command -> 'inserts';
    changes constant jsonb := command -> 'changes';
    named constant uuid[] := array(
        select (e ->> 0)::uuid from jsonb_array_elements(changes || (command -> 'deletes')) as e
    );
    locks constant bigint[] := intervalq._locks_of(inserts, changes, named || array(
        select (e ->> 0)::uuid from jsonb_array_elements(command -> 'depends') as e
    ));
    me integer;
    there record;
    others record;
    done record;
    l intervalq.line;
    t intervalq.tasks;
begin
    select s.number into me from intervalq.sessions s
    where s.id = who and s.gone is null;
    perform intervalq._lock_lines(locks);
    there := intervalq._named(command, named, locks);
    -- Only `work` and `beat` note the clock: this may run in a user's transaction, which would keep others waiting.
    now := intervalq._now(now);

    others := intervalq._leave_out(inserts, there.known, now);
    l := intervalq._refused(command, there.rows_named, there.known, there.plain, others.collisions, me, now);
    if l.kind is null and locks <> '{}' and jsonb_path_exists(inserts, 'strict $[*] ? (@[12] != null)') then
        l := intervalq._full_inbox(command, there.rows_named, there.known, others.left_out, now);
    end if;
    if l.kind is not null then
        return next l;
        return;
    end if;

    done := intervalq._carry_out(
        command, there.rows_named, there.known, there.plain, named, others.left_out, me, now
    );
    foreach l in array others.lines || done.lines loop
        if locks <> '{}' and l.kind <> 'e' and l.key is not null then
            -- A later part of the command may have changed the task again: the last of a line may be the first now.
            select r.* into t from intervalq.tasks r where r.id = intervalq._id(l.id);
            if found then
                l := intervalq._line(l.kind, t);
            end if;
        end if;
        return next l;
    end loop;
    if done.woken <> '{}' then
        perform intervalq._wake(done.woken);
    end if;
end
$$;


-- intervalq.insert_plain: many inserts that have only a queue, a value and a time.
--   queues, jsons: joined by character 31, which no JSON text contains; a single queue is that of all tasks
--   ats: null: now
-- An id that exists violates uniqueness: checking first would cost a third more.
create or replace function intervalq.insert_plain(
    ids uuid[], queues text, jsons text, ats bigint[], now bigint
) returns bigint
language plpgsql volatile
set search_path = pg_catalog, pg_temp
set lock_timeout = '4s'
as $$
declare
    names text[];
    items constant text[] := string_to_array(jsons, chr(31));
    n integer;
begin
    now := intervalq._now(now);
    if ats is null and strpos(queues, chr(31)) = 0 then
        n := intervalq._hand(queues, ids, items, now);
        if n < cardinality(ids) then
            insert into intervalq.tasks (id, ready, at, created, modified, queue, json)
            select u.id, now, now, now, now, queues, u.json from unnest(ids[n + 1 :], items[n + 1 :]) as u (id, json);
        end if;
    else
        names := string_to_array(queues, chr(31));
        insert into intervalq.tasks (id, ready, at, created, modified, queue, json)
        select u.id, coalesce(u.at, now), coalesce(u.at, now), now, now, coalesce(u.queue, queues), u.json
        from unnest(
            ids, items, ats, case when cardinality(names) > 1 then names end
        ) as u (id, json, at, queue);
        names := array(
            select distinct coalesce(u.queue, queues)
            from unnest(ids, ats, case when cardinality(names) > 1 then names end) as u (id, at, queue)
            where coalesce(u.at, now) <= now + 5000000
        );
        perform intervalq._wake(names);
    end if;
    return now;
end
$$;
