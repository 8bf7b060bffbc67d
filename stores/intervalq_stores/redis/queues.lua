-- One step on one queue: `apply` of intervalq/rules.py said again, for Redis >= 6.2 and Valkey. The reasons
-- stand there, functions have the same names, and the conformance suite holds them to the same answers.
--
-- KEYS[1]  intervalq:{QUEUE}  HASH, the record:
--            version                 whole number, the layout of the record
--            generation              text, random
--            interval, tolerance     microseconds
--            burst, max_running      whole numbers
--            ephemeral               0 or 1
--            ticket, current         tickets, whole numbers
--            void                    revoked_through, a ticket
--            due, at                 microseconds on the queue's clock; at: current_due
--            held, late, error       lengths in microseconds; held: held_total, late: late_total
--            held_since              microseconds on the server's clock; empty: not held
--            held_until, error_until, seen
--                                    microseconds on the server's clock; seen: last_now
--            running:TICKET          when the lease of a running job lapses, microseconds on the server's
--                                    clock; only with max_running
--          A record of layout 1 has no late, error and error_until: they are 0.
--          Leases have no key of their own: one key is moved, evicted and expired as a whole, and a cluster
--          serves it while it moves a slot, which it refuses with two keys of which one doesn't exist.
-- ARGV[1]  the command, JSON of Command.to_dict()
-- ARGV[2]  the server's clock in microseconds; empty, outside of tests: TIME
-- Answer   { now, refused, healed, woken, granted {ticket...}, missed {ticket...}, at_once, first ticket,
--            first due, count, costs {cost...}, begun, state }; flags are 0 or 1, a first ticket of 0 is none,
--            and a state is {} for none or
--            { generation, held_since or '', {ticket, until, ticket, until...}, NUMBERS... }
-- Errors   CORRUPT (not a record of ours), NEWER (its layout is), RANGE (the step leads out of the numbers)
-- Channel  intervalq:{QUEUE}:wake  gets an empty message when a step ended a hold
--
-- Numbers are doubles, exact to 2^53. They leave here as RESP integers or by '%.0f' only: tostring and cjson
-- round at 14 digits. The server doesn't undo a script that fails: every check comes before the first write.

local FOREVER = 9007199254740991
local LAYOUT = 2
local IDLE_KEPT = 60000000
local MAX_TICKETS = 1000
local ERROR_KEPT = 60000000

-- Fields of the record that are whole numbers, with the least that each may be (clocks may start anywhere).
-- The first five are the settings, in the order of the command; answers have them all in this one.
local NUMBERS = {
  'interval', 'burst', 'max_running', 'tolerance', 'ephemeral',
  'ticket', 'due', 'current', 'at', 'void', 'held', 'held_until', 'seen', 'late', 'error', 'error_until',
}
local LEAST = { 1, 1, 0, 0, 0, 0, -FOREVER, 0, -FOREVER, 0, -FOREVER, -FOREVER, -FOREVER, 0, 0, -FOREVER }
local FIELDS = #NUMBERS + 3  -- with version, generation and held_since; every lease is one more
local NEW = { 'late', 'error', 'error_until' }  -- those that layout 1 doesn't have

-- --- the record as it is stored --------------------------------------------------------------------

local function corrupt(why)
  error({ err = 'CORRUPT ' .. why })
end

local function whole(text, name, least, most)
  if not text or #text > 17 or not string.find(text, '^-?%d+$') then
    corrupt("'" .. name .. "' must be a whole number")
  end
  local value = tonumber(text)
  if value < least or value > most then corrupt("'" .. name .. "' is out of range") end
  return value
end

local function written(number, name)
  if number < -FOREVER or number > FOREVER then
    error({ err = "RANGE '" .. name .. "' would be more than a store can hold" })
  end
  return string.format('%.0f', number)
end

-- Whether it is UTF-8: what is no text could not be shown, after the step was done.
local function is_text(bytes)
  if not string.find(bytes, '[\128-\255]') then return true end
  for _, sequence in ipairs({
    '[\194-\223][\128-\191]', '\224[\160-\191][\128-\191]', '[\225-\236\238\239][\128-\191][\128-\191]',
    '\237[\128-\159][\128-\191]', '\240[\144-\191][\128-\191][\128-\191]',
    '[\241-\243][\128-\191][\128-\191][\128-\191]', '\244[\128-\143][\128-\191][\128-\191]',
  }) do
    bytes = string.gsub(bytes, sequence, '.')
  end
  return not string.find(bytes, '[\128-\255]')
end

-- The record as a table of texts, an empty one if there is none; and how many fields it has.
local function fields()
  local flat = redis.pcall('HGETALL', KEYS[1])
  if flat.err then
    if string.find(flat.err, 'WRONGTYPE', 1, true) then corrupt('the key is not a hash') end
    error(flat)
  end
  local found = {}
  for i = 1, #flat, 2 do found[flat[i]] = flat[i + 1] end
  return found, #flat / 2
end

local function set_lease(state, ticket, lapse)
  if (state.running[ticket] == nil) ~= (lapse == nil) then
    state.leases = state.leases + (lapse and 1 or -1)
  end
  state.running[ticket] = lapse
end

-- The version of the layout. What is of an older one becomes as the present one has it.
local function version_of(stored)
  local version = whole(stored.version, 'version', 1, FOREVER)
  if version > LAYOUT then
    error({ err = string.format('NEWER the record has layout %.0f, not up to %d', version, LAYOUT) })
  end
  if version == 1 then
    for _, name in ipairs(NEW) do stored[name] = '0' end
  end
  return version
end

-- The state that `stored` holds (nil: none), as State.from_dict would check it; its numbers once more, if it
-- has this layout; and whether it has fields beside those that every record has.
local function read(stored, size)
  if size == 0 then return nil, nil, false end
  local version = version_of(stored)
  if not stored.generation or stored.generation == '' or not is_text(stored.generation) then
    corrupt("'generation' must be text")
  end
  local state, before = { generation = stored.generation, running = {}, leases = 0 }, {}
  for i = 1, #NUMBERS do
    local name = NUMBERS[i]
    local value = whole(stored[name], name, LEAST[i], name == 'ephemeral' and 1 or FOREVER)
    state[name], before[name] = value, value
  end
  if stored.held_since ~= '' then
    state.held_since = whole(stored.held_since, 'held_since', -FOREVER, FOREVER)
  end
  if state.current > state.ticket or state.void > state.ticket then
    corrupt("'current' and 'void' can't be above 'ticket'")
  end
  local more = size > FIELDS - (version == 1 and #NEW or 0)
  if more then
    for name, text in pairs(stored) do
      local ticket = string.match(name, '^running:(.*)$')
      if ticket then
        set_lease(state, whole(ticket, name, 0, FOREVER), whole(text, name, -FOREVER, FOREVER))
      end
    end
  end
  return state, version == LAYOUT and before or nil, more
end

-- --- the rules -------------------------------------------------------------------------------------

local function clock_of(state, now) return (state.held_since or now) - state.held end

local function full(state) return state.max_running > 0 and state.leases >= state.max_running end

local function tolerance(state)
  local window = state.burst * state.interval
  local agreed = math.min(state.tolerance, window)
  return agreed > 0 and agreed or math.floor(window / 10)
end

local function credit(state) return (state.burst - 1) * state.interval end

local function full_until(state)
  if not full(state) then return 0 end
  local ends = {}
  for _, lapse in pairs(state.running) do ends[#ends + 1] = lapse end
  table.sort(ends)
  return ends[state.leases - state.max_running + 1]
end

local function settle(state, now)
  local back = state.seen - now
  if back > 0 then
    state.held = state.held - back
    if state.held_since then state.held_since = state.held_since - back end
    local ends = state.held_until > 0 and state.held_until < FOREVER
    if ends then state.held_until = state.held_until - back end
    state.error_until = state.error > 0 and state.error_until - back or 0
    for ticket, lapse in pairs(state.running) do state.running[ticket] = lapse - back end
  end
  state.seen = now
  if state.held_since then
    local stop = math.max(state.held_until, full_until(state))
    if stop <= now then
      state.held = state.held + stop - state.held_since
      state.held_since = nil
    end
  end
  if state.error > 0 and state.error_until <= now then state.error, state.error_until = 0, 0 end
  if state.held_until <= now then state.held_until = 0 end
  for ticket, lapse in pairs(state.running) do
    if lapse <= now then set_lease(state, ticket, nil) end
  end
end

local function lapses(state)
  if state.ephemeral == 0 or state.held_since or state.leases > 0 then return FOREVER end
  return math.min(FOREVER, state.due + state.held + (state.burst + 1) * state.interval + IDLE_KEPT)
end

local function fresh(command, now)
  local interval, burst = unpack(command.settings)
  local due = command.generation and now or now - burst * interval
  local state = {
    generation = command.nonce, ticket = 0, due = due, current = 0, at = due, void = 0, held = 0,
    held_until = 0, seen = now, late = 0, error = 0, error_until = 0, running = {}, leases = 0,
  }
  for i, value in ipairs(command.settings) do state[NUMBERS[i]] = value end
  return state
end

local function recheck(state, now)
  local stop = state.held_until > now or full(state)
  if stop and not state.held_since then
    state.held_since = now
    state.void = math.max(state.void, state.current)
  elseif not stop and state.held_since then
    state.held = state.held + now - state.held_since
    state.held_since = nil
  end
end

-- Slots are lists { ticket, due, cost }, as in the command; the cost is left out if it is one.
local function go(state, slot, now, lease)
  state.current = math.max(state.current, slot[1])
  state.at = math.max(state.at, slot[2] + ((slot[3] or 1) - 1) * state.interval)
  if state.max_running > 0 then
    set_lease(state, slot[1], now + lease)
    recheck(state, now)
  end
end

local function give_back(state, slots)
  local last = state.ticket
  for i = #slots, 1, -1 do
    local ticket, due = slots[i][1], slots[i][2]
    if ticket ~= last or ticket <= state.void then return end
    state.due = math.min(state.due, due - state.interval)
    last = last - 1
  end
end

local function revoke_all(state)
  state.void = state.ticket
  state.due = state.at
end

local function set_back(state, length)
  state.held = state.held + length
  state.late = state.late + length
end

local function heal(state, mark)
  if not mark or (mark[1] <= state.ticket and mark[3] <= state.late) then return 0 end
  if mark[1] > state.ticket then
    state.ticket = mark[1]
    state.due = math.max(state.due, mark[2])
  end
  set_back(state, math.max(0, mark[3] - state.late))
  return 1
end

local function note_error(state, reported, now)
  if reported < state.error then return end
  state.error, state.error_until = reported, now + ERROR_KEPT
end

local function are_too_far(state, command, slots, now)
  if not command.ahead or #slots == 0 or slots[1][1] <= state.current then return false end
  return slots[1][2] > clock_of(state, now) + command.ahead
end

local function are_last(state, slots)
  local listed = {}
  for _, slot in ipairs(slots) do listed[slot[1]] = true end
  local ticket = slots[1][1]
  while ticket <= state.current do
    if not listed[ticket] then return false end
    ticket = ticket + 1
  end
  return true
end

local function usable(state, command, now)
  local slots, held = {}, state.held_since
  if command.generation ~= state.generation or (held and state.held_until > now) then return slots end
  for _, slot in ipairs(command.slots) do
    local ticket = slot[1]
    local alive
    if held then
      alive = state.running[ticket] and ticket <= state.current
    else
      alive = state.void < ticket and ticket <= state.ticket
    end
    if alive then slots[#slots + 1] = slot end
  end
  if held and #slots > 0 and not are_last(state, slots) then return {} end
  return slots
end

local function end_of(state, slot) return slot[2] + tolerance(state) + credit(state) end

local function are_late(state, command, slots, now)
  if not command['until'] or #slots == 0 then return false end
  local elapsed = now - state.held
  return slots[1][2] <= elapsed and elapsed + command.notice > end_of(state, slots[1])
    and are_last(state, slots)
end

local function set_back_for(state, slot, notice, now)
  set_back(state, now - state.held + notice - end_of(state, slot))
  if state.held_since then state.held_since = now end
  state.void = math.max(state.void, slot[1] - 1)
end

-- Grants the listed slots; gives those that are missed.
local function use(state, command, answer, now)
  local held, slots = state.held_since, usable(state, command, now)
  if (held and #slots == 0) or are_too_far(state, command, slots, now) then return {} end
  if are_late(state, command, slots, now) then
    local mark = command.high_water_mark
    if not mark or mark[3] ~= state.late or now > command['until'] then return {} end
    set_back_for(state, slots[1], command.notice, now)
    answer.at_once = 1
  end
  local earliest, kept = clock_of(state, now) - tolerance(state) - credit(state), {}
  for _, slot in ipairs(slots) do
    if slot[2] >= earliest then
      kept[slot[1]] = true
      if held or not state.held_since then
        answer.granted[#answer.granted + 1] = slot[1]
        go(state, slot, now, command.lease)
      end
    end
  end
  local missed = {}
  if held then return missed end
  for _, slot in ipairs(command.slots) do
    if not kept[slot[1]] then
      missed[#missed + 1] = slot
      answer.missed[#answer.missed + 1] = slot[1]
    end
  end
  return missed
end

-- What new tickets cost: `ones` more of them, behind those in the list, cost one each.
local function costs_of(command, missed)
  local costs = {}
  for i, slot in ipairs(missed) do costs[i] = slot[3] or 1 end
  for i = 1, math.min(#command.costs, command.take) do costs[#costs + 1] = command.costs[i] end
  return costs, math.max(0, #missed + command.take - #costs)
end

-- Where the slots of those tickets begin that have room, in slots behind the first one, and where the last ends.
-- Counted in slots, and compared before they are added up: no sum is larger than a double holds.
local function starts_of(costs, ones, room)
  local starts, total = {}, 0
  for i = 1, math.min(MAX_TICKETS, #costs + ones) do
    local cost = costs[i] or 1
    if cost > room - total then break end
    starts[i] = total
    total = total + cost
  end
  return starts, total
end

local function take(state, command, missed, answer, now)
  local clock, step = clock_of(state, now), state.interval
  local free = state.due + step
  local due = math.max(free, clock + math.max(0, command.notice - tolerance(state)) - credit(state))
  local reach, mark = command.reach, command.high_water_mark
  if mark and mark[1] ~= state.ticket then reach = math.min(reach, command.notice) end
  local costs, ones = costs_of(command, missed)
  local starts, total = starts_of(costs, ones, math.floor((FOREVER - due) / step))
  local count = #starts
  if count == 0 then return end
  answer.first, answer.due, answer.count = state.ticket + 1, due, count
  state.ticket = state.ticket + count
  state.due = due + (total - 1) * step
  if total > count then
    for i = 1, count do answer.costs[i] = costs[i] or 1 end
  end
  reach = math.floor((clock + reach - due) / step)
  local near = reach < 0 and 0 or count
  while near > 0 and starts[near] > reach do near = near - 1 end
  local granted = #answer.granted
  while answer.begun < near and not state.held_since do
    local n = state.max_running > 0 and answer.begun + 1 or near
    answer.begun = n
    go(state, { answer.first + n - 1, due + starts[n] * step, costs[n] }, now, command.lease)
  end
  if answer.begun > 0 and granted == 0 and free <= clock then answer.at_once = 1 end
end

local function advance(state, command, answer, now)
  local known = command.generation == state.generation
  if known then
    answer.healed = heal(state, command.high_water_mark)
    give_back(state, command.release)
  end
  if command.error > 0 then note_error(state, command.error, now) end
  local missed = #command.slots > 0 and use(state, command, answer, now) or {}
  if known and #missed > 0 then
    local never_granted = {}
    for _, slot in ipairs(missed) do
      if slot[1] > state.current then never_granted[#never_granted + 1] = slot end
    end
    give_back(state, never_granted)
  end
  if not state.held_since then take(state, command, missed, answer, now) end
end

local function configure(state, command)
  local interval, burst = command.interval or state.interval, command.burst or state.burst
  if interval > state.interval or burst ~= state.burst then revoke_all(state) end
  state.interval, state.burst = interval, burst
  state.max_running = command.max_running or state.max_running
  if state.max_running == 0 then state.running, state.leases = {}, 0 end
end

local function finish(state, command, now)
  if command.generation ~= state.generation or state.max_running == 0 then return end
  for _, ticket in ipairs(command.ended) do set_lease(state, ticket, nil) end
  for _, ticket in ipairs(command.running) do set_lease(state, ticket, now + command.lease) end
end

-- --- the writes ------------------------------------------------------------------------------------

-- Lua hands over a few thousand arguments at most.
local function in_parts(command, arguments)
  for i = 1, #arguments, 1000 do
    redis.call(command, KEYS[1], unpack(arguments, i, math.min(i + 999, #arguments)))
  end
end

-- Keeps `state`. Only what differs from `stored` is written, or from `before`, which has the numbers of it; it is
-- nil for a record that is new, or had another layout, and is written whole. `more`: `stored` has other fields
-- too. Every text is made before the first write.
local function keep(state, stored, more, before)
  local changed, gone, n, is_new = {}, {}, 0, not before
  local function put(name, text)
    changed[n + 1], changed[n + 2] = name, text
    n = n + 2
  end
  for i = 1, #NUMBERS do
    local name = NUMBERS[i]
    local value = state[name]
    if is_new or value ~= before[name] then put(name, written(value, name)) end
  end
  local held_since = state.held_since and written(state.held_since, 'held_since') or ''
  if is_new or held_since ~= stored.held_since then put('held_since', held_since) end
  if is_new then
    put('version', written(LAYOUT, 'version'))
    put('generation', state.generation)
  end
  if more or state.leases > 0 then
    local record = { version = true, generation = true, held_since = true }
    for i = 1, #NUMBERS do record[NUMBERS[i]] = true end
    for ticket, lapse in pairs(state.running) do
      local name, text = 'running:' .. written(ticket, 'running'), written(lapse, 'running')
      record[name] = true
      if stored[name] ~= text then put(name, text) end
    end
    for name in pairs(stored) do
      if not record[name] then gone[#gone + 1] = name end
    end
  end
  local lapse = lapses(state)

  -- HSET comes first: a server without memory refuses a script's first write, but no later one.
  in_parts('HSET', changed)
  in_parts('HDEL', gone)
  -- Expiry follows the server's clock: where a test says what time it is, that clock has nothing to say.
  if ARGV[2] == '' then
    if lapse < FOREVER then
      redis.call('PEXPIREAT', KEYS[1], written(math.ceil(lapse / 1000), 'lapses'))
    elseif is_new or state.ephemeral == 1 then
      redis.call('PERSIST', KEYS[1])
    end
  end
end

local function same_settings(state, settings)
  for i, value in ipairs(settings) do
    if state[NUMBERS[i]] ~= value then return false end
  end
  return true
end

local function reply(answer, state, now)
  local record, running = {}, {}
  if state then
    for ticket, lapse in pairs(state.running) do
      running[#running + 1], running[#running + 2] = ticket, lapse
    end
    record = { state.generation, state.held_since or '', running }
    for i = 1, #NUMBERS do record[i + 3] = state[NUMBERS[i]] end
  end
  return { now, answer.refused, answer.healed, answer.woken, answer.granted, answer.missed, answer.at_once,
    answer.first, answer.due, answer.count, answer.costs, answer.begun, record }
end

local function wake(answer)
  answer.woken = 1
  redis.pcall('PUBLISH', KEYS[1] .. ':wake', '')  -- a hint: the step is done even where that isn't allowed
end

local function apply(command, now)
  local answer = { refused = 0, healed = 0, woken = 0, granted = {}, missed = {}, at_once = 0,
    first = 0, due = 0, count = 0, costs = {}, begun = 0 }
  local stored, size = fields()
  local state, before, more = read(stored, size)
  local was_held = state and state.held_since
  if state then
    settle(state, now)
    if lapses(state) <= now then state, before, was_held = nil, nil, nil end
  end
  if command.op == 'inspect' then return reply(answer, state, now) end
  if command.op == 'drop' then
    redis.call('DEL', KEYS[1])
    if was_held then wake(answer) end
    return reply(answer, nil, now)
  end
  local is_new, settings = not state, command.settings
  if is_new then
    if not settings then return reply(answer, nil, now) end
    state = fresh(command, now)
  elseif command.attach and settings and not same_settings(state, settings) then
    answer.refused = 1
    return reply(answer, state, now)
  end
  if command.op == 'advance' then
    advance(state, command, answer, now)
  elseif command.op == 'hold' then
    state.held_until = math.max(state.held_until, math.min(FOREVER, now + command.length))
    recheck(state, now)
  elseif command.op == 'resume' then
    state.held_until = 0
    recheck(state, now)
  elseif command.op == 'configure' then
    configure(state, command)
    recheck(state, now)
  elseif command.op == 'reclaim' then
    revoke_all(state)
  elseif command.op == 'finish' then
    finish(state, command, now)
    recheck(state, now)
  else
    error({ err = 'ERR no rule for ' .. command.op })
  end
  keep(state, stored, more, before)
  if was_held and not state.held_since then wake(answer) end
  return reply(answer, state, now)
end

local now = tonumber(ARGV[2])
if not now then
  local time = redis.call('TIME')
  now = tonumber(time[1]) * 1000000 + tonumber(time[2])
end
-- Errors are returned, not thrown: their code comes first then, with Redis 6.2 too, which throws texts.
local done, result = pcall(apply, cjson.decode(ARGV[1]), now)
if done or type(result) == 'table' then return result end
return { err = string.match(result, '%-(%u+ .*)') or 'ERR ' .. result }
