-- Exclusive locks: repeats intervalq/tasks/_spec/locks.py, which has the reasons.

-- intervalq._locked: the row of a lock, locked by this transaction; null: there is none.
create or replace function intervalq._locked(name text) returns intervalq.locks
language plpgsql volatile
set search_path = pg_catalog, pg_temp
as $$
declare
    found_lock intervalq.locks;
begin
    select l.* into found_lock from intervalq.locks l where l.name = _locked.name for update;
    return found_lock;
end
$$;


-- intervalq.acquire_lock: `fence` is 0 if somebody else holds the lock, and `wait` is then the time until it expires.
create or replace function intervalq.acquire_lock(
    name text, owner text, expiry bigint, refresh boolean, now bigint, out fence bigint, out wait bigint
)
language plpgsql volatile
set search_path = pg_catalog, pg_temp
set lock_timeout = '4s'
as $$
declare
    l intervalq.locks := intervalq._locked(name);
begin
    if l.name is null and not refresh then
        -- Two transactions may want a new lock at once: the second one waits here until the first one has it.
        insert into intervalq.locks as x (name, owner, fence, until, expiry)
        values (acquire_lock.name, '', 0, 0, 0) on conflict do nothing;
        l := intervalq._locked(name);
    end if;
    -- The clock is read only now: until this moment, another transaction may have held the row, and read a later time.
    now := intervalq._now(now);
    fence := 0;
    wait := 0;
    if l.until - now > l.expiry then  -- the clock was set back
        l.until := now + l.expiry;
        update intervalq.locks x set until = l.until where x.name = l.name;
    end if;
    if l.owner = acquire_lock.owner and (refresh or l.until > now) then
        fence := l.fence;
    elsif refresh then
        return;
    elsif l.owner <> '' and l.until > now then
        wait := l.until - now;
        return;
    else
        fence := greatest(now, l.fence + 1);
        delete from intervalq.locks x where x.name in (
            select y.name from intervalq.locks y where y.until <= acquire_lock.now - 86400000000 and y.name <> l.name
            limit 16 for update skip locked
        );
    end if;
    update intervalq.locks x set
        owner = acquire_lock.owner, fence = acquire_lock.fence, until = acquire_lock.now + acquire_lock.expiry,
        expiry = acquire_lock.expiry
    where x.name = l.name;
end
$$;


-- intervalq.release_lock: free a lock, and wake those who listen for it; false: the owner doesn't hold it.
create or replace function intervalq.release_lock(name text, owner text, waiters text, now bigint) returns boolean
language plpgsql volatile
set search_path = pg_catalog, pg_temp
set lock_timeout = '4s'
as $$
begin
    update intervalq.locks x set owner = '', until = intervalq._now(release_lock.now), expiry = 0
    where x.name = release_lock.name and x.owner = release_lock.owner;
    if found then
        perform pg_notify('intervalq_tasks', waiters);
    end if;
    return found;
end
$$;
