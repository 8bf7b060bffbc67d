-- For everybody: insert a task from any SQL.

-- intervalq.enqueue: insert a task, from any SQL, in the caller's transaction. Returns its id; with a dedupe key that
-- is taken, the id of the task that has it.
--   id: your own; null: a new UUID
--   key: up to `concurrency_per_key` tasks of a key run at the same time, from 1 to 1,000; that of the last one applies;
--     `inbox`: how many may wait; `replace`: only the newest waits, not if several may run
--   at, delay: not before this time, or not before this long from now
--   priority: from -9 to 9, higher ones first; each step counts as if the task had become ready a minute earlier
--   keep: how long its outcome is kept after its end, at least a second; null: as its worker says
--   dedupe_key, dedupe_for: no second task of this key while the first exists, and for this long after
create or replace function intervalq.enqueue(
    queue text, value jsonb, id text default null, key text default null, at timestamptz default null,
    dedupe_key text default null, dedupe_for interval default '5 minutes', delay interval default '0',
    inbox integer default null, replace boolean default false, priority integer default 0,
    keep interval default null, concurrency_per_key integer default 1
) returns text
language plpgsql volatile
set search_path = pg_catalog, pg_temp
as $$
declare
    uuid constant uuid := case when enqueue.id is null then intervalq._uuid() else intervalq._id(enqueue.id) end;
    l intervalq.line;
begin
    if queue is null or queue = '' or value is null then
        raise exception 'a task has a queue and a value: give both' using errcode = '22004';
    elsif priority is null or priority not between -9 and 9 then
        raise exception 'the priority of a task is from -9 to 9, and % is not: give another one', priority
            using errcode = '22023';
    elsif keep not between '1 second' and '400 days' then
        raise exception 'an outcome is kept for one second to 400 days, and % is not: give another time', keep
            using errcode = '22023';
    elsif concurrency_per_key is null or concurrency_per_key not between 1 and 1000 then
        raise exception 'from 1 to 1000 tasks of a key may run at the same time, and % is not: give another number',
            concurrency_per_key using errcode = '22023';
    elsif concurrency_per_key > 1 and (key is null or replace) then
        raise exception 'concurrency_per_key needs a key, and can''t be combined with replace' using errcode = '22023';
    elsif starts_with(id, 'plain-') then
        raise exception 'ids that begin with plain- are those of plain tasks: give another one' using errcode = 'IQ010';
    end if;
    for l in
        select m.* from intervalq.modify('', null, jsonb_build_object(
            'force', false, 'changes', '[]'::jsonb, 'deletes', '[]'::jsonb, 'depends', '[]'::jsonb,
            'inserts', jsonb_build_array(jsonb_build_array(
                uuid, case when uuid::text <> enqueue.id then enqueue.id end, queue, value::text, key,
                (extract(epoch from at) * 1000000)::bigint, (extract(epoch from delay) * 1000000)::bigint, 0, '',
                false, dedupe_key,
                case when dedupe_key is null then 0 else (extract(epoch from dedupe_for) * 1000000)::bigint end,
                inbox, replace, enqueue.priority, coalesce((extract(epoch from keep) * 1000000)::bigint, 0),
                nullif(concurrency_per_key, 1), null, null
            ))
        )) as m
    loop
        if l.kind = 'D' then
            raise exception 'task % exists already', enqueue.id using errcode = 'IQ010';
        elsif l.kind = 'F' then
            raise exception 'the inbox of key % of queue % is full', key, queue using errcode = 'IQ011';
        end if;
        return case when l.kind = 'e' then l.key else l.id end;
    end loop;
end
$$;
