-- The schedules in Redis >= 6.2 or Valkey: see `Scheduling` of intervalq/store.py.
--
-- KEYS[1]  intervalq:schedules  HASH  the text of each schedule, by its name. One key, so that a look at all of them is
--                                     one command, and all are in one slot of a cluster.
-- ARGV[1]  read or swap
-- ARGV[2]  the clock in microseconds; empty, outside of tests: that of the server
-- ARGV[3]  read: a JSON list of names, or empty for all; swap: the name
-- ARGV[4]  swap: the text that must be stored; empty: there must be none
-- ARGV[5]  swap: the new text; empty: remove it
-- ARGV[6]  swap: microseconds on the server's clock before which nothing is done
-- Answer   read: { now, { name, text, ... } }; swap: { now, done: 1 or 0, the text after it; empty: none }

local SCHEDULES = KEYS[1]

local function clock()
  if ARGV[2] ~= '' then return ARGV[2] end
  local time = redis.call('TIME')
  return string.format('%.0f', time[1] * 1000000 + time[2])
end

local function read(names)
  if names == '' then return redis.call('HGETALL', SCHEDULES) end
  local found = {}
  for _, name in ipairs(cjson.decode(names)) do
    local text = redis.call('HGET', SCHEDULES, name)
    if text then
      found[#found + 1] = name
      found[#found + 1] = text
    end
  end
  return found
end

local function swap(now, name, known, text, earliest)
  local stored = redis.call('HGET', SCHEDULES, name) or ''
  if stored ~= known or tonumber(now) < tonumber(earliest) then return { now, 0, stored } end
  if text ~= '' then
    redis.call('HSET', SCHEDULES, name, text)
  else
    redis.call('HDEL', SCHEDULES, name)
  end
  return { now, 1, text }
end

local now = clock()
if ARGV[1] == 'read' then return { now, read(ARGV[3]) } end
return swap(now, ARGV[3], ARGV[4], ARGV[5], ARGV[6])
