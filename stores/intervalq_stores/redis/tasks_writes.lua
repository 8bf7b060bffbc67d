-- The writes of a command, wake-ups, and the frame of every script. It comes after tasks_outcomes.lua.

-- --- the writes --------------------------------------------------------------------------------------

local function whole(text)
  if not string.find(text or '0', '^%d+$') then corrupt('a count is broken') end
  return tonumber(text or 0)
end

-- The counts that changed, as fields to set and to remove. The index has which numbers of claims occur.
local function counted()
  local names, set, unset = {}, {}, {}
  for name, by in pairs(more) do
    if by ~= 0 then names[#names + 1] = name end
  end
  local at = 0
  in_chunks(names, function(...)
    for _, text in ipairs(ask('HMGET', META, ...)) do
      at = at + 1
      local name, before = names[at], whole(text)
      local after = before + more[name]
      if after < 0 then corrupt('a count is too small') end
      if after > 0 then
        set[#set + 1], set[#set + 2] = name, format('%.0f', after)
      else
        unset[#unset + 1] = name
      end
      if sub(name, 1, 1) == 'c' and (before == 0) ~= (after == 0) then (after > 0 and add or drop)('c', name) end
    end
  end)
  return set, unset
end

local function write(command, key, list)
  in_chunks(list, function(...) redis.call(command, key, ...) end)
end

-- The changed entries of a table, as a list to set and a list to remove.
local function parted(names, of, text_of)
  local set, unset = {}, {}
  for name in pairs(names) do
    local one = of[name]
    if one then
      set[#set + 1], set[#set + 2] = name, text_of(one)
    else
      unset[#unset + 1] = name
    end
  end
  return set, unset
end

local clock_text  -- the new entry of META about the clock; nil: unchanged

local function mark_text(mark)
  return pack('>Bi8', mark.ends and 1 or 0, mark.ends or 0) .. mark.id
end

-- Remove the queues that have lost their last task. After all else was written.
local function forget_empty()
  for queue in pairs(departed) do
    if redis.call('HEXISTS', META, prefix('h', queue)) == 0
      and stored_count(prefix('r', queue)) == 0 and stored_count(prefix('w', queue)) == 0 then
      redis.call('ZREM', INDEX, 'q' .. queue)
    end
  end
end

-- Write all changes. `takes`: they need memory, so a server without memory may refuse them.
local function flush(takes)
  for id in pairs(changed) do
    local row = rows[id]
    if not row then
      unsets[#unsets + 1] = id
    else
      sets[#sets + 1], sets[#sets + 2] = id, encoded(row)
      if not row.session and not row.waiting and row.at <= now + SOON then
        local _, member = home(row)
        if fresh[member] then ready_in[row.queue] = true end
      end
    end
  end
  join_outcomes()
  local people, lapsed = parted(sessions_changed, sessions, person_text)
  local marked, freed = parted(marks_changed, marks, mark_text)
  local counts, uncounted = counted()
  for queue in pairs(arrived) do fresh['q' .. queue] = true end
  for member in pairs(gone) do drops[#drops + 1] = member end
  for member in pairs(fresh) do adds[#adds + 1], adds[#adds + 2] = 0, member end
  if clock_text then counts[#counts + 1], counts[#counts + 2] = 'clock', clock_text end
  if next(leaving) then counts[#counts + 1], counts[#counts + 2] = 'outcomes', format('%.0f', outcome_number + 1) end
  if is_shared and not was_shared then counts[#counts + 1], counts[#counts + 2] = 'shared', 1 end
  if #sets + #unsets + #drops + #adds + #people + #lapsed + #marked + #freed == 0 and not clock_text then return end
  for _, key in ipairs({ TASKS, SESSIONS, MARKS }) do
    if not seen[key] then ask('HLEN', key) end
  end
  if not seen[INDEX] then ask('ZCARD', INDEX) end

  -- A server without memory refuses a script's first write only, and only one that needs memory. Tasks can be
  -- claimed and done all the same: otherwise nothing would ever make room.
  if not takes then redis.call('ZREM', INDEX, '') end
  write('HSET', TASKS, sets)
  write('HDEL', TASKS, unsets)
  write('ZREM', INDEX, drops)
  write('ZADD', INDEX, adds)
  write('HSET', SESSIONS, people)
  write('HDEL', SESSIONS, lapsed)
  write('HSET', MARKS, marked)
  write('HDEL', MARKS, freed)
  write('HSET', META, counts)
  write('HDEL', META, uncounted)
  write_outcomes()
  if is_other then redis.call('HSET', META, 'version', LAYOUT) end
  if is_ranked then redis.call('HSET', META, 'ranked', 1) end
  forget_empty()
end

-- --- wake-ups ----------------------------------------------------------------------------------------

-- Wake one session that is idle on a queue, so that not all of them ask for one task. It isn't idle any more.
local function wake_one(queue)
  local start = prefix('i', queue)
  local there_are = stored_count(start)
  for _, from in ipairs(there_are > 0 and { random % there_are, 0 } or {}) do
    local some = redis.call('ZRANGEBYLEX', INDEX, '[' .. start, '(' .. start .. '\255', 'LIMIT', from, 16)
    for _, found in ipairs(some) do
      local id = sub(found, #start + 1)
      local text = redis.call('HGET', SESSIONS, id)
      local one = text and person(text)
      if one then
        each_idle(id, one.idle, function(_, member) redis.call('ZREM', INDEX, member) end)
        redis.call('HSET', SESSIONS, id, person_text(with(one, 'idle', '')))
        local heard = redis.pcall('PUBLISH', sub(TASKS, 1, -6) .. 'wake:' .. id, '')
        -- The server doesn't count subscribers at other nodes of a cluster.
        if type(heard) == 'number' and (heard > 0 or ARGV[4] == '1') then return end
      end
    end
  end
end

local function wake()
  for queue in pairs(ready_in) do wake_one(queue) end
end

-- --- one command -------------------------------------------------------------------------------------

-- Errors are returned, not raised, so that their code comes first in Redis 6.2, too, which raises texts.
local function run(command)
  local ok, result = pcall(function()
    if not now then
      local time = redis.call('TIME')
      now = tonumber(time[1]) * 1000000 + tonumber(time[2])
    end
    is_other = check_layout()
    local answer = command()
    wake()
    notify()
    return answer
  end)
  if ok then return result end
  if type(result) == 'table' then return result.refused or result end
  return { err = string.match(result, '%-(%u+ .*)') or 'ERR ' .. result }
end

