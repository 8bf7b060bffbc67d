-- How one command is applied to a record as it is stored: the part of the script behind queues.lua.

-- --- the writes ------------------------------------------------------------------------------------

-- Lua can unpack at most a few thousand arguments.
local function in_parts(command, arguments)
  for i = 1, #arguments, 1000 do
    redis.call(command, key, unpack(arguments, i, math.min(i + 999, #arguments)))
  end
end

-- Store `state` until it `lapses`. Only fields that differ from `stored` are written, or all fields of a record that
-- `is_new` or lacks some of the numbers. `more`: `stored` also has other fields.
-- All texts are made before the first write.
local function keep(state, stored, more, is_new, lapses)
  local changed, gone, n = {}, {}, 0
  local function put(name, text)
    changed[n + 1], changed[n + 2] = name, text
    n = n + 2
  end
  for i = 1, #NUMBERS do
    local name = NUMBERS[i]
    local value = state[name]
    if is_new or value ~= stored[name] then put(name, written(value, name)) end
  end
  local held_since = state.held_since and written(state.held_since, 'held_since') or ''
  if is_new or held_since ~= stored.held_since then put('held_since', held_since) end
  local has_others = state.has_others
  if is_new or state.generation ~= stored.generation then put('generation', state.generation) end
  if is_new then put('version', written(LAYOUT, 'version')) end
  if state.limits then state.limits.write(state, stored, put, is_new or has_others) end
  local auto = state.auto and automatic().written(state)
  if auto and (is_new or auto ~= stored.auto) then put('auto', auto) end
  local weight = state.weight and written(state.weight, 'weight')
  if weight and (is_new or weight ~= stored.weight) then put('weight', weight) end
  if more or has_others or state.leases > 0 then
    local record = { version = true, generation = true, held_since = true, auto = auto ~= nil, weight = weight ~= nil }
    for i = 1, #NUMBERS do record[NUMBERS[i]] = true end
    for ticket, lapse in pairs(state.running) do
      local name, text = 'running:' .. written(ticket, 'running'), written(lapse, 'running')
      record[name] = true
      if stored[name] ~= text then put(name, text) end
    end
    for name in pairs(stored) do
      if not record[name] and not (state.limits and state.limits.has(name)) then gone[#gone + 1] = name end
    end
  end

  -- HSET comes first: a server without memory refuses a script's first write, but no later one.
  in_parts('HSET', changed)
  in_parts('HDEL', gone)
  -- Keys expire by the server's clock, so not where a test sets the time.
  if ARGV[2] == '' then
    if lapses < FOREVER then
      redis.call('PEXPIREAT', key, written(math.ceil(lapses / 1000), 'lapses'))
    elseif is_new or state.ephemeral == 1 then
      redis.call('PERSIST', key)
    end
  end
end

local function same_settings(state, settings, bounds)
  local auto = state.auto
  if (auto == nil) ~= (bounds == nil) or auto and (auto[1] ~= bounds[1] or auto[2] ~= bounds[2]) then return false end
  for i = auto and 2 or 1, SETTINGS do
    if state[NUMBERS[i]] ~= settings[i] then return false end
  end
  return same_limits(state, settings)
end

local function reply(answer, state, now)
  local record, running = {}, {}
  if state then
    for ticket, lapse in pairs(state.running) do
      running[#running + 1], running[#running + 2] = ticket, lapse
    end
    record = { state.generation, state.held_since or '', running, state.interval, state.burst, state.max_running,
      state.tolerance, state.ephemeral, state.ticket, state.due, state.current, state.current_due,
      state.revoked_through, state.held_total, state.held_until, state.last_now, state.late_total, state.error,
      state.error_until }
  end
  local reply = { now, answer.refused, answer.healed, answer.woken, answer.granted, answer.missed, answer.at_once,
    answer.first, answer.due, answer.count, answer.costs, answer.begun, record }
  if state and state.limits then
    record[#record + 1], record[#record + 2] = state.stepped, state.limits.listed()
    reply[#reply + 1], reply[#reply + 2] = answer.dues or {}, answer.units or {}
  end
  if state and state.auto then record[#record + 1] = state.auto end
  if state and state.weight then record[#record + 1] = state.weight end
  return reply
end

local function wake(answer)
  answer.woken = 1
  redis.pcall('PUBLISH', key:gsub('}:{', ':') .. ':wake', '')  -- a hint: the step is done even if publishing isn't allowed
end

local function new_answer()
  return { refused = 0, healed = 0, woken = 0, granted = {}, missed = {}, at_once = 0,
    first = 0, due = 0, count = 0, costs = {}, begun = 0 }
end

-- A record as it is stored, and its state as of `now` (nil: none). `prepare` may change it before.
local function opened(name, now, prepare)
  key = name
  local stored, size = fields()
  local state, is_whole, more = read(stored, size)
  local record = { key = name, stored = stored, state = state, is_new = not is_whole, more = more }
  if state then
    record.was_held = state.held_since
    if prepare then prepare(state) end
    settle(state, now)
    if lapses(state) <= now then record.state, record.is_new, record.was_held, record.more = nil, true, nil, true end
  end
  return record
end

-- Whether the sender of a command must hear of the record's settings first.
local function disagrees(state, command)
  local settings = command.settings
  return settings and (command.op == 'advance' and not same_limits(state, settings)
    or command.attach and not same_settings(state, settings, command.settings_auto))
end

-- Does a command on a record. What is to follow: 'keep' it, 'drop' it, or nothing; nothing is written yet.
local function done(record, command, answer, now)
  if command.op == 'inspect' then return nil end
  if command.op == 'drop' then return 'drop' end
  local settings = command.settings
  if not record.state then
    if not settings then return nil end
    record.state = fresh(command, now)
  elseif disagrees(record.state, command) then
    answer.refused = 1
    return nil
  end
  if command.op == 'advance' then advance(record.state, command, answer, now)
  else other(record.state, command, now) end
  return 'keep'
end

-- Writes what is to follow, and wakes those who wait for the end of a hold.
local function follow(record, what, answer)
  key = record.key
  if what == 'drop' then
    redis.call('DEL', key)
    record.state = nil
    if record.was_held then wake(answer) end
  elseif what == 'keep' then
    local state = record.state
    keep(state, record.stored, record.more, record.is_new, lapses(state))
    if record.was_held and not state.held_since then wake(answer) end
  end
end

local function time()
  local now = tonumber(ARGV[2])
  if now then return now end
  local time = redis.call('TIME')
  return tonumber(time[1]) * 1000000 + tonumber(time[2])
end

-- Errors are returned, not raised, so that their code comes first in Redis 6.2, too, which raises texts.
local function guarded(step, ...)
  local done, result = pcall(step, ...)
  if done or type(result) == 'table' then return result end
  return { err = string.match(result, '%-(%u+ .*)') or 'ERR ' .. result }
end
