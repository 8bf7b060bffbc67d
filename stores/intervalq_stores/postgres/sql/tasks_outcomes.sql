-- Outcomes of kept tasks: repeats intervalq/tasks/_spec/outcome.py and leave.py, which have the reasons.

-- intervalq._with_error: the errors of a kept task after another attempt failed.
create or replace function intervalq._with_error(errors text, error text, attempt integer, now bigint) returns text
language sql immutable
return case
    when length(errors) >= 32000 then errors
    else errors || case when errors = '' then '' else chr(30) end || now::text || ' ' || attempt::text || ' ' || error
end;

-- intervalq._errors_of: the errors of a task's attempts; of one that wasn't kept until now, only the last one is known.
create or replace function intervalq._errors_of(
    errors text, keep_for bigint, error text, attempt integer, begun boolean
) returns text
language sql immutable
return case
    when errors <> '' or keep_for > 0 or error = '' then errors
    else '0 ' || (attempt - begun::integer)::text || ' ' || error
end;

create or replace function intervalq._is_dead(queue text) returns boolean
language sql immutable
return right(queue, 5) = '.dead';


-- intervalq._width: outcomes that are kept for this long are dropped together by periods, each of this length: a day,
-- or up to an eighth of the time for which they are kept.
create or replace function intervalq._width(keep_for bigint) returns bigint
language sql immutable
return case
    when keep_for <= 691200000000 then 86400000000
    when keep_for <= 5529600000000 then 691200000000
    else 5529600000000
end;

-- intervalq._slot: the slot of an outcome that is kept for this long, and until that instant. Each width has ten slots,
-- more than there are periods in the longest time.
create or replace function intervalq._slot(keep_for bigint, until bigint) returns smallint
language sql immutable
return (
    case when keep_for <= 691200000000 then 0 when keep_for <= 5529600000000 then 10 else 20 end
    + until / intervalq._width(keep_for) % 10
)::smallint;


-- intervalq._note_period: note that outcomes were written at this moment which are kept for this long.
create or replace function intervalq._note_period(keep_for bigint, now bigint) returns void
language plpgsql volatile
set search_path = pg_catalog, pg_temp
as $$
declare
    place constant smallint := intervalq._slot(keep_for, now + keep_for);
    ends constant bigint := (
        ((now + keep_for) / intervalq._width(keep_for) + 1) * intervalq._width(keep_for)
    );
begin
    -- There may be several equal rows: nobody waits for another transaction that writes the first one.
    if not exists (select from intervalq.outcome_periods p where p.slot = place and p.over = ends) then
        insert into intervalq.outcome_periods (slot, over) values (place, ends);
    end if;
end
$$;


-- intervalq._tell: notify those who wait for the outcomes of these tasks, which were written before in this transaction.
-- A notice has up to 200 ids, because it may have 8000 bytes.
create or replace function intervalq._tell(ids uuid[]) returns void
language plpgsql volatile
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set enable_bitmapscan = off
as $$
declare
    notice text;
begin
    if intervalq._fresh() then
        for notice in
            with notified as (
                delete from intervalq.awaited a where a.ctid = any (array(
                    select x.ctid from intervalq.awaited x where x.id = any (ids) for update skip locked
                )) returning a.who, a.id
            ), numbered as (
                select t.who, t.id, row_number() over (partition by t.who) / 200 as n
                from (select distinct * from notified) as t
            )
            select t.who || ' ' || string_agg(t.id::text, ' ') from numbered t group by t.who, t.n
        loop
            perform pg_notify('intervalq_ended', notice);
        end loop;
    else
        -- It can't see who began to wait meanwhile, and reading that table might abort the user's transaction.
        perform pg_notify('intervalq_ended', '* ' || string_agg(u.id::text, ' '))
        from unnest(ids) with ordinality as u (id, o) group by u.o / 200;
    end if;
end
$$;

-- intervalq.await_outcomes: the listener wants to be notified of the outcomes of these tasks. It looks for them after
-- that, and now and then: an end that is committed at this moment may not have seen this. Rows of which
-- nobody was notified within a day are swept.
create or replace function intervalq.await_outcomes(who text, ids uuid[], now bigint) returns void
language plpgsql volatile
set search_path = pg_catalog, pg_temp
as $$
begin
    now := intervalq._now(now);
    delete from intervalq.awaited a where a.ctid = any (array(
        select x.ctid from intervalq.awaited x where x.until < now order by x.until limit 1000 for update skip locked
    ));
    insert into intervalq.awaited (id, until, who) select u.u, now + 86400000000, who from unnest(ids) as u (u);
end
$$;

create or replace function intervalq.leave_outcomes(who text, ids uuid[]) returns void
language plpgsql volatile
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set enable_bitmapscan = off
as $$
begin
    delete from intervalq.awaited a where a.ctid = any (array(
        select x.ctid from intervalq.awaited x where x.id = any (ids) and x.who = leave_outcomes.who
        for update skip locked
    ));
end
$$;


-- intervalq._leave: write the outcome of a task that ends, if it is kept.
--   ended_as: how it ended; kept: [keep_for, result, took], what its end says about the outcome, or null
--   me: the session that ended it; null: none
create or replace function intervalq._leave(
    t intervalq.tasks, ended_as text, kept jsonb, now bigint, me integer
) returns void
language plpgsql volatile
set search_path = pg_catalog, pg_temp
as $$
declare
    keep constant bigint := coalesce(nullif(t.keep_for, 0), (kept ->> 0)::bigint, 0);
    took constant bigint := coalesce((kept ->> 2)::bigint, 0);
    s intervalq.sessions;
begin
    if keep = 0 or (ended_as = 'cancelled' and intervalq._is_dead(t.queue)) then
        return;
    end if;
    if ended_as <> 'cancelled' then
        select x.* into s from intervalq.sessions x where x.number = me;
    end if;
    insert into intervalq.outcomes (
        slot, id, own, queue, key, state, json, result, attempts, errors, created, started, ended, host, pid, until,
        number, together
    ) values (
        intervalq._slot(keep, now + keep), t.id, t.own, t.queue, t.key, ended_as, t.json,
        case when ended_as = 'done' then coalesce(kept ->> 1, '') else '' end,
        t.attempt + (ended_as = 'done' and not t.begun)::integer,
        intervalq._errors_of(t.errors, t.keep_for, t.error, t.attempt, t.begun),
        t.created, case when took > 0 then now - took else 0 end, now,
        coalesce(s.host, ''), coalesce(s.pid, 0), now + keep, nextval('intervalq.outcome_numbers'), array[t.id]
    );
    perform intervalq._note_period(keep, now);
    -- By its id: a scan of the table would also read the dead rows that earlier waits have left.
    if not intervalq._fresh() or exists (select from intervalq.awaited a where a.id = t.id) then
        perform intervalq._tell(array[t.id]);
    end if;
end
$$;


-- intervalq._done_alike: `_done`, for tasks that are all to be kept for the same time. Those that have another time of
-- their own need more than this.
create or replace function intervalq._done_alike(
    ids uuid[], versions integer[], keep_for bigint, durations bigint[], results text, me integer, now bigint,
    out done uuid[], out ended text[]
)
language plpgsql volatile
set search_path = pg_catalog, pg_temp
set enable_hashjoin = on  -- `work` has it off: a nested loop would compare each task with each
as $$
declare
    texts constant text[] := string_to_array(results, chr(31));
    place constant smallint := intervalq._slot(keep_for, now + keep_for);
    number constant bigint := nextval('intervalq.outcome_numbers');
    s intervalq.sessions;
begin
    select x.* into s from intervalq.sessions x where x.number = me;
    -- As in `_settle_all`. Deleting by a join with the arrays would take half as long again.
    with gone as (
        delete from intervalq.tasks t where t.id = any (ids) and ((t.id, t.version) in (
            select d.id, d.version from unnest(ids, versions) as d (id, version)
        )) is true and t.session is not distinct from me and (t.keep_for = 0 or t.keep_for = _done_alike.keep_for)
            and t.key is null and t.dedupe is null and not t.cancelled
        returning t.id, t.own, t.queue, t.json, t.follow_up, t.attempt + (not t.begun)::integer as attempts, t.created,
            intervalq._errors_of(t.errors, t.keep_for, t.error, t.attempt, t.begun) as errors
    ), left_ones as (
        insert into intervalq.outcomes (
            slot, id, own, queue, state, json, result, attempts, errors, created, started, ended, host, pid, until,
            number, together, queues
        )
        select place, g.id, g.own, g.queue, 'done', g.json, coalesce(d.result, ''), g.attempts, g.errors, g.created,
            case when d.took > 0 then now - d.took else 0 end, now, s.host, s.pid, now + keep_for, number,
            case when g.id = f.id then ids end, case when g.id = f.id then array(select distinct x.queue from gone x) end
        from (select x.id from gone x limit 1) as f, gone g join unnest(ids, durations, texts) as d (id, took, result)
            on d.id = g.id
        where keep_for > 0
    )
    select coalesce(array_agg(g.id), '{}'), array_agg(g.follow_up) filter (where g.follow_up is not null)
    into done, ended from gone g;
    if done <> '{}' and keep_for > 0 then
        perform intervalq._note_period(keep_for, now);
        if not intervalq._fresh() or exists (select from intervalq.awaited a where a.id = any (done)) then
            perform intervalq._tell(done);
        end if;
    end if;
end
$$;


-- intervalq._done: remove tasks that are done and write the outcomes of those that are kept, in one statement for each
-- time for which they are kept. Returns the UUIDs of those that were removed: the others are not the session's, or need
-- more than that; and the follow-ups of those that were removed, each as often as they are.
--   keep_fors, durations, results: for each task what its end says about the outcome, only one keep_for if all are the
--     same; results are joined by character 31, null: there are none
create or replace function intervalq._done(
    ids uuid[], versions integer[], keep_fors bigint[], durations bigint[], results text, me integer, now bigint,
    out done uuid[], out ended text[]
)
language plpgsql volatile
set search_path = pg_catalog, pg_temp
as $$
declare
    a record;
    x record;
begin
    if cardinality(keep_fors) = 1 then
        select d.done, d.ended into done, ended
        from intervalq._done_alike(ids, versions, keep_fors[1], durations, results, me, now) as d;
        return;
    end if;
    done := '{}';
    for a in
        select d.keep_for, array_agg(d.id) as ids, array_agg(d.version) as versions, array_agg(d.took) as durations,
            string_agg(d.result, chr(31)) as results
        from unnest(ids, versions, keep_fors, durations, string_to_array(results, chr(31)))
            as d (id, version, keep_for, took, result)
        group by d.keep_for
    loop
        x := intervalq._done_alike(a.ids, a.versions, a.keep_for, a.durations, a.results, me, now);
        done := done || x.done;
        ended := ended || x.ended;
    end loop;
end
$$;


-- intervalq.outcomes_of: `rules.Outcomes`; ids are UUIDs, null: all. Those of named tasks come in the order in which they
-- were written, others the last one first.
create or replace function intervalq.outcomes_of(
    ids uuid[], q text, ended_as text, most bigint, now bigint
) returns table (
    id text, queue text, key text, state text, value text, result text, attempts integer, errors text, created bigint,
    started bigint, ended bigint, host text, pid bigint, until bigint
)
language plpgsql stable
set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_custom_plan
set enable_seqscan = off
set enable_bitmapscan = off
as $$
declare
    slots constant smallint[] := array(select distinct p.slot from intervalq.outcome_periods p);
    n integer;
begin
    now := intervalq._now(now);
    if ids is not null then
        return query
            select coalesce(o.own, o.id::text), o.queue, o.key, o.state, o.json, o.result, o.attempts, o.errors,
                o.created, o.started, o.ended, o.host, o.pid, o.until
            from intervalq.outcomes o
            where o.slot = any (slots) and o.id = any (ids) and o.until > now
                and (q is null or o.queue = q) and (ended_as is null or o.state = ended_as)
            order by o.number, o.ended, o.slot, o.ctid limit most;
        return;
    elsif most is null then
        return query
            select coalesce(o.own, o.id::text), o.queue, o.key, o.state, o.json, o.result, o.attempts, o.errors,
                o.created, o.started, o.ended, o.host, o.pid, o.until
            from intervalq.outcomes o
            where o.slot = any (slots) and o.until > now
                and (q is null or o.queue = q) and (ended_as is null or o.state = ended_as)
            order by o.number desc, o.ended desc, o.slot desc, o.ctid desc;
        return;
    end if;
    -- What one statement wrote ended in one state.
    return query
        select coalesce(o.own, o.id::text), o.queue, o.key, o.state, o.json, o.result, o.attempts, o.errors,
            o.created, o.started, o.ended, o.host, o.pid, o.until
        from intervalq.outcomes f cross join lateral (
            select r.*, r.ctid as place from intervalq.outcomes r
            where r.slot = f.slot and r.id = any (f.together) and r.number = f.number and r.until > now
                and (q is null or r.queue = q)
            order by r.ctid desc limit most
        ) as o
        where f.slot = any (slots) and f.together is not null
            and (q is null or f.queue = q or f.queues @> array[q]) and (ended_as is null or f.state = ended_as)
        order by f.number desc, f.slot desc, o.place desc limit most;
    get diagnostics n = row_count;
    return query  -- of older versions
        select coalesce(o.own, o.id::text), o.queue, o.key, o.state, o.json, o.result, o.attempts, o.errors,
            o.created, o.started, o.ended, o.host, o.pid, o.until
        from intervalq.outcomes o
        where o.slot = any (slots) and o.number = 0 and o.until > now
            and (q is null or o.queue = q) and (ended_as is null or o.state = ended_as)
        order by o.ended desc, o.slot desc, o.ctid desc limit most - n;
end
$$;


-- intervalq.drop_outcomes: drop the outcomes of periods that are over, by emptying their slots. It waits for nobody:
-- what somebody reads at this moment is dropped by a later heartbeat. It has its owner's rights, because a role that
-- works on tasks may not empty tables: TRUNCATE of one slot blocks no others, unlike DROP of a partition.
create or replace function intervalq.drop_outcomes(now bigint) returns void
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
as $$
declare
    place smallint;
    width bigint;
begin
    if not intervalq._fresh() then
        return;  -- it would not see what others have just written
    end if;
    for place in select distinct p.slot from intervalq.outcome_periods p where p.over <= now order by 1 loop
        begin
            execute format('lock table intervalq.outcomes_%s in access exclusive mode nowait', place);
        exception when lock_not_available then
            continue;
        end;
        if exists (select from intervalq.outcome_periods p where p.slot = place and p.over > now) then
            -- Nobody dropped it in time, or the clock was set: later outcomes are there already.
            width := 86400000000 * 8 ^ (place / 10);
            delete from intervalq.outcomes o where o.slot = place and o.until < now / width * width;
        else
            execute format('truncate intervalq.outcomes_%s', place);
        end if;
        delete from intervalq.outcome_periods p where p.slot = place and p.over <= now;
    end loop;
end
$$;
revoke all on function intervalq.drop_outcomes(bigint) from public;
