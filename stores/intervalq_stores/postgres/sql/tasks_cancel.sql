-- `Cancel`: cancels tasks, whoever has claimed them.

-- intervalq._tell_cancelled: notify the sessions whose claims were cancelled: lines x, with at most eight tasks in a
-- notification, so that they fit.
create or replace function intervalq._tell_cancelled(ids uuid[]) returns void
language plpgsql volatile
set search_path = pg_catalog, pg_temp
as $$
begin
    perform pg_notify('intervalq_tasks', x.who || ' ' || json_agg(json_build_array('x', x.id, x.version)))
    from (
        select s.id as who, coalesce(t.own, t.id::text) as id, t.version, u.o
        from unnest(ids) with ordinality as u (id, o) join intervalq.tasks t on t.id = u.id
        join intervalq.sessions s on s.number = t.session
    ) as x group by x.who, x.o / 8;
end
$$;


-- intervalq.cancel: `rules.Cancel`; ids: UUIDs, each once. Returns an array: the UUIDs that were removed, and those
-- whose sessions are told to end the work on them.
create or replace function intervalq.cancel(ids uuid[], now bigint) returns jsonb
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
    locks constant bigint[] := intervalq._locks_of('[]', '[]', ids);
    there record;
    held uuid[];
    t intervalq.tasks;
    removed uuid[] := '{}';
    stopping uuid[] := '{}';
    woken text[] := '{}';
begin
    perform intervalq._lock_lines(locks);
    there := intervalq._named('{"depends": [], "inserts": []}', ids, locks);
    now := intervalq._now(now);
    held := array(
        select x.id from unnest(there.rows_named) as x join intervalq.sessions s on s.number = x.session
        where x.until is null and s.gone is null
    );
    if there.plain <> '{}' then
        -- Those that are claimed become ordinary tasks, which can be cancelled. Sessions may have found nothing because
        -- of our locks.
        perform intervalq._take_plain(array(
            select x from unnest(there.rows_named) as x where x.id = any (there.plain)
        ), held, now);
        woken := array(select distinct x.queue from unnest(there.rows_named) as x where x.id = any (there.plain));
    end if;
    foreach t in array there.rows_named loop
        if t.id = any (held) then
            stopping := stopping || t.id;
            update intervalq.tasks x set version = x.version + 1, modified = now, cancelled = true
            where x.id = t.id and not x.cancelled;
        else
            removed := removed || t.id;
            if t.id <> all (there.plain) then
                woken := woken || intervalq._remove(t, 'cancelled', null, null, now, true);
            end if;
        end if;
    end loop;
    perform intervalq._tell_cancelled(stopping);
    woken := array_remove(woken, null);
    if woken <> '{}' then
        perform intervalq._wake(woken);
    end if;
    return jsonb_build_array(removed, stopping);
end
$$;
