-- One exclusive lock in Redis >= 6.2 or Valkey: repeats `acquire` and `release` of intervalq/tasks/_spec/locks.py, which
-- has the reasons. The conformance suite of task stores compares the answers of both. The script touches no task.
--
-- KEYS[1]  intervalq:{tasks}:lock:NAME  HASH  owner (empty: it was released), fence, until, expiry; the server removes
--                                             it a day after `until`
-- ARGV[1]  acquire or release
-- ARGV[2]  the clock in microseconds; empty, outside of tests: that of the server
-- ARGV[5]  the owner
-- ARGV[6]  acquire: the expiry; release: the channel of those who wait
-- ARGV[7]  acquire: 1 to refresh only, or empty
-- Answer   acquire: { 0, now, fence, wait }; release: { 0, now, released: 1 or 0 }
-- Errors   CORRUPT (not our lock)

local KEPT = 86400000  -- milliseconds
local LOCK, OWNER = KEYS[1], ARGV[5]
local FIELDS = { 'owner', 'fence', 'until', 'expiry' }

local function corrupt(why)
  error({ err = 'CORRUPT ' .. LOCK .. ' ' .. why })
end

-- The fields of the lock by their names; nil: there is none.
local function stored()
  local found = redis.pcall('HMGET', LOCK, unpack(FIELDS))
  if found.err then
    if string.find(found.err, 'WRONGTYPE', 1, true) then corrupt('has another type') end
    error(found)
  end
  local lock = {}
  for place, name in ipairs(FIELDS) do lock[name] = found[place] or nil end
  if not next(lock) then return nil end
  for place, name in ipairs(FIELDS) do
    local text = lock[name]
    if not text then corrupt("lacks '" .. name .. "'") end
    if place > 1 then
      if #text > 16 or not string.find(text, '^%d+$') then corrupt("has no whole number as '" .. name .. "'") end
      lock[name] = tonumber(text)
    end
  end
  return lock
end

local function keep(lock, now)
  local fields = { 'owner', lock.owner }
  for place = 2, #FIELDS do
    fields[#fields + 1] = FIELDS[place]
    fields[#fields + 1] = string.format('%.0f', lock[FIELDS[place]])
  end
  redis.call('HSET', LOCK, unpack(fields))
  redis.call('PEXPIRE', LOCK, math.ceil(math.max(0, lock['until'] - now) / 1000) + KEPT)
end

local function acquire(now)
  local expiry, refresh, lock = tonumber(ARGV[6]), ARGV[7] == '1', stored()
  if lock and lock['until'] - now > lock.expiry then  -- the clock was set back
    lock['until'] = now + lock.expiry
    keep(lock, now)
  end
  if lock and lock.owner == OWNER and (refresh or lock['until'] > now) then
    lock['until'], lock.expiry = now + expiry, expiry
    keep(lock, now)
    return { 0, now, lock.fence, 0 }
  end
  if refresh then return { 0, now, 0, 0 } end
  if lock and lock.owner ~= '' and lock['until'] > now then return { 0, now, 0, lock['until'] - now } end
  local fence = lock and math.max(now, lock.fence + 1) or now
  keep({ owner = OWNER, fence = fence, ['until'] = now + expiry, expiry = expiry }, now)
  return { 0, now, fence, 0 }
end

local function release(now)
  local lock = stored()
  if not lock or lock.owner ~= OWNER then return { 0, now, 0 } end
  lock.owner, lock['until'], lock.expiry = '', now, 0
  keep(lock, now)
  redis.pcall('PUBLISH', ARGV[6], '')
  return { 0, now, 1 }
end

-- Errors are returned, not raised, so that their code comes first in Redis 6.2, too, which raises texts.
local ok, result = pcall(function()
  local now = tonumber(ARGV[2])
  if not now then
    local time = redis.call('TIME')
    now = tonumber(time[1]) * 1000000 + tonumber(time[2])
  end
  return ({ acquire = acquire, release = release })[ARGV[1]](now)
end)
if ok or type(result) == 'table' then return result end
return { err = string.match(result, '%-(%u+ .*)') or 'ERR ' .. result }
