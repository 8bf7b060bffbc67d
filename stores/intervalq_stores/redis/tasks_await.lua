-- To be notified of outcomes. It comes after tasks_writes.lua.
--
-- A listener looks for the outcomes after it has said that it waits for them. Entries of which it was not notified
-- within a day are swept, because it may have died.
--
-- ARGV[5]  the listener
-- ARGV[6] and following: the ids of tasks

local MAX_SWEPT = 1000

local function each_of_mine(use)
  local who = argument()
  for i = at_argument + 1, #ARGV do use(ARGV[i], who) end
end

local function await()
  for _, member in ipairs(redis.call('ZRANGEBYLEX', INDEX, '[b', '(b' .. stamp(now), 'LIMIT', 0, MAX_SWEPT)) do
    local size = unpacked('>I2', sub(member, 11))
    local id, who = sub(member, 13, 12 + size), sub(member, 13 + size)
    redis.call('ZREM', INDEX, member, 'a' .. sized(id) .. sub(member, 2, 10) .. who)
  end
  local ends, adds = stamp(now + DAY), {}
  each_of_mine(function(id, who)
    adds[#adds + 1], adds[#adds + 2] = 0, 'a' .. sized(id) .. ends .. who
    adds[#adds + 1], adds[#adds + 2] = 0, 'b' .. ends .. sized(id) .. who
  end)
  write('ZADD', INDEX, adds)
  return { 0, now }
end

local function leave_off()
  each_of_mine(function(id, who)
    each_awaiting(id, function(other, forget)
      if other == who then forget() end
    end)
  end)
  return { 0, now }
end

return run(({ await = await, leave = leave_off })[ARGV[1]])
