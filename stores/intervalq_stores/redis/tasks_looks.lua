-- Looks at tasks, queues and sessions. It comes after tasks_table.lua.
--
-- ARGV[5]  select: queue ('=' and its name, or empty), session (likewise), limit, values; ids
--          count: limit, how many names; names, prefixes
--          outcomes: ids
--          page: day, queue ('=' and its name, or empty), state, where the page begins, limit

local PAGE = 500

local function queues_from(start, limit)
  local found = ask('ZRANGEBYLEX', INDEX, '[q' .. start, '(q' .. start .. '\255', 'LIMIT', 0, limit)
  for i, member in ipairs(found) do found[i] = sub(member, 2) end
  return found
end

-- Ids of a queue's tasks: the first ones of each of the two sorted kinds, and all claimed ones.
local function ids_of(queue, limit, ids)
  local starts = { prefix('w', queue) }
  for _, priority in ipairs(levels('r', queue)) do starts[#starts + 1] = lane('r', queue, priority) end
  for _, start in ipairs(starts) do
    for _, member in ipairs(ask('ZRANGEBYLEX', INDEX, '[' .. start, '(' .. start .. '\2', 'LIMIT', 0, limit)) do
      ids[#ids + 1] = sub(member, #start + 10)
    end
  end
  if ask('HEXISTS', META, prefix('h', queue)) == 0 then return end
  for _, session in ipairs(ask('HKEYS', SESSIONS)) do
    local start = prefix('s', session) .. sized(queue)
    for _, member in ipairs(ask('ZRANGEBYLEX', INDEX, '[' .. start, '(' .. start .. '\255')) do
      ids[#ids + 1] = sub(member, #start + 1)
    end
  end
end

-- It may return more than the limit: the client sorts them by bytes, which Lua may not do.
local function select_tasks()
  local queue, session, limit, values = argument(), argument(), number() or -1, argument() == '1'
  local ids, found = {}, {}
  for i = at_argument + 1, #ARGV do ids[#ids + 1] = ARGV[i] end
  if #ids == 0 and session ~= '' then
    for i, row in ipairs(of_session(sub(session, 2))) do ids[i] = row.id end
  elseif #ids == 0 then
    local queues = queue ~= '' and { sub(queue, 2) } or queues_from('', -1)
    for _, name in ipairs(queues) do ids_of(name, limit, ids) end
  end
  fetch(ids)
  for _, id in ipairs(ids) do
    local row = row_of(id)
    if row and (queue == '' or row.queue == sub(queue, 2)) and (session == '' or row.session == sub(session, 2)) then
      if not values then row.json = 'null' end
      found[#found + 1], found[#found + 2] = id, encoded(row)
    end
  end
  return { 0, now, found }
end

-- The highest number of claims of one task.
local function most_claims(queue)
  local start = prefix('c', queue)
  local last = ask('ZREVRANGEBYLEX', INDEX, '(' .. start .. '\255', '[' .. start, 'LIMIT', 0, 1)
  return last[1] and (unpacked('>I4', last[1], #start + 1)) or 0
end

local function stats(queue)
  local free_start = prefix('r', queue)
  local until_now = stamp(now + 1)
  local function by_now(letter)
    local sum = 0
    for _, priority in ipairs(levels(letter, queue)) do
      local start = lane(letter, queue, priority)
      sum = sum + ask('ZLEXCOUNT', INDEX, '[' .. start, '(' .. start .. until_now)
    end
    return sum
  end
  local free_ones, inbox = stored_count(free_start), stored_count(prefix('w', queue))
  local has = whole(ask('HGET', META, prefix('h', queue)) or nil)
  local ended, now_free = by_now('l'), by_now('r')
  return free_ones + inbox + has, has - ended, now_free + ended, free_ones - now_free, inbox, most_claims(queue)
end

local function count_queues()
  local limit, names, found, done = number() or -1, number(), {}, {}
  local function tell(queue)
    if done[queue] then return end
    done[queue] = true
    local size, claimed, ready_ones, future, inbox, most = stats(queue)
    if size > 0 then
      for _, each in ipairs({ queue, size, claimed, ready_ones, future, inbox, most }) do found[#found + 1] = each end
    end
  end
  local anything = at_argument == #ARGV
  for _ = 1, names do tell(argument()) end
  for i = at_argument + 1, #ARGV do
    for _, queue in ipairs(queues_from(ARGV[i], limit)) do tell(queue) end
  end
  if anything then
    for _, queue in ipairs(queues_from('', limit)) do tell(queue) end
  end
  return { 0, now, found }
end

local function list_sessions()
  local flat = ask('HGETALL', SESSIONS)
  local found = {}
  for i = 1, #flat, 2 do
    local one = person(flat[i + 1]) or corrupt('a session is broken')
    for _, each in ipairs({ flat[i], one.host, one.pid, one.consumer, one.expiry, one.started, one.beaten }) do
      found[#found + 1] = each
    end
  end
  return { 0, now, found }
end

-- All outcomes of some tasks, by day.
local function outcomes_of()
  local days, ids, found = outcome_days(), {}, {}
  need(days)
  for i = at_argument + 1, #ARGV do ids[#ids + 1] = ARGV[i] end
  for _, day in ipairs(days) do
    local at, outcomes = 0, of_day(day)
    in_chunks(ids, function(...)
      local list = ask('HMGET', outcomes, ...)
      for i = 1, #list do
        if list[i] then found[#found + 1], found[#found + 2] = ids[at + i], list[i] end
      end
      at = at + #list
    end)
  end
  return { 0, now, found }
end

-- Whether the last of a task's outcomes, and whether any, is of this queue and state, and still kept.
local function matches(text, queue, state)
  local at, last, any = 1, false, false
  while at <= #text do
    if at + OUTCOME_SIZE > #text + 1 then corrupt('an outcome is too short') end
    local flags, _, _, _, _, ends, _, queue_size, key, host, result, errors, json, from = unpacked(OUTCOME, text, at)
    if flags >= NUMBERED then from = from + 8 end
    last = ends > now and (state == '' or flags % 4 == tonumber(state))
      and (queue == '' or sub(text, from, from + queue_size - 1) == sub(queue, 2))
    any = any or last
    at = from + queue_size + key + host + result + errors + json
  end
  return last, any
end

-- A page of the tasks whose outcomes expire on one day, the last one to end first: their ids and outcomes, where the
-- next page begins, and how many tasks there are whose last outcomes match.
local function page()
  local day, queue, state, position, limit = number(), argument(), argument(), number(), number()
  need({ day })
  local outcomes, ended = of_day(day)
  position = position or ask('LLEN', ended)
  local size = limit and queue == '' and state == '' and math.min(limit, PAGE) or PAGE
  local first, ids, known, found, matching = math.max(0, position - size), {}, {}, {}, 0
  local list = position > first and ask('LRANGE', ended, first, position - 1) or {}
  for i = #list, 1, -1 do
    if not known[list[i]] then ids[#ids + 1], known[list[i]] = list[i], true end
  end
  in_chunks(ids, function(...)  -- a page is one chunk
    for i, text in ipairs(ask('HMGET', outcomes, ...)) do
      local last, any = matches(text or '', queue, state)
      if last then matching = matching + 1 end
      if any then found[#found + 1], found[#found + 2] = ids[i], text end
    end
  end)
  return { 0, now, found, first, matching }
end

local function list_days()
  return { 0, now, outcome_days() }
end

return run(({
  select = select_tasks, count = count_queues, sessions = list_sessions,
  outcomes = outcomes_of, page = page, days = list_days,
})[ARGV[1]])
