-- One step on one queue: `apply` of intervalq/rules.py said again, for Redis >= 6.2 and Valkey. The reasons
-- stand there, functions have the same names, and the conformance suite holds them to the same answers.
--
-- KEYS[1]  intervalq:{QUEUE}  HASH, the record:
--            version                 whole number, the layout of the record
--            generation              text, random
--            interval, tolerance     microseconds
--            burst, max_running      whole numbers
--            ephemeral               0 or 1
--            ticket, current, void   tickets, whole numbers
--            due, at, held           microseconds on the queue's clock (held: a length)
--            held_since              microseconds on the server's clock; empty: not held
--            held_until, seen        microseconds on the server's clock
--            running:TICKET          when the lease of a running job lapses, microseconds on the server's
--                                    clock; only with max_running
--          Leases have no key of their own: one key is moved, evicted and expired as a whole, and a cluster
--          serves it while it moves a slot, which it refuses with two keys of which one doesn't exist.
-- ARGV[1]  the command, JSON of Command.to_dict()
-- ARGV[2]  the server's clock in microseconds; empty, outside of tests: TIME
-- Answer   { now, refused, healed, woken, granted {ticket...}, missed {ticket...}, first ticket, first due,
--            count, begun, state }; flags are 0 or 1, a first ticket of 0 is none, and a state is {} for none
--            or { generation, held_since or '', {ticket, until, ticket, until...}, NUMBERS... }
-- Errors   CORRUPT (not a record of ours), NEWER (its layout is), RANGE (the step leads out of the numbers)
-- Channel  intervalq:{QUEUE}:wake  gets an empty message when a step ended a hold
--
-- Numbers are doubles, exact to 2^53. They leave here as RESP integers or by '%.0f' only: tostring and cjson
-- round at 14 digits. The server doesn't undo a script that fails: every check comes before the first write.

local FOREVER = 9007199254740991
local LAYOUT = 1
local IDLE_KEPT = 60000000
local MOST_TICKETS = 1000

-- Fields of the record that are whole numbers, with the least that each may be (clocks may start anywhere).
-- The first five are the settings, in the order of the command; answers have them all in this one.
local NUMBERS = {
  'interval', 'burst', 'max_running', 'tolerance', 'ephemeral',
  'ticket', 'due', 'current', 'at', 'void', 'held', 'held_until', 'seen',
}
local LEAST = { 1, 1, 0, 0, 0, 0, -FOREVER, 0, -FOREVER, 0, -FOREVER, -FOREVER, -FOREVER }
local FIELDS = #NUMBERS + 3  -- with version, generation and held_since; every lease is one more

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

-- The state that `stored` holds (nil: none), as State.from_dict would check it; and its numbers once more.
local function read(stored, size)
  if size == 0 then return nil end
  local version = whole(stored.version, 'version', 1, FOREVER)
  if version > LAYOUT then
    error({ err = string.format('NEWER the record has layout %.0f, not up to %d', version, LAYOUT) })
  end
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
  if size > FIELDS then
    for name, text in pairs(stored) do
      local ticket = string.match(name, '^running:(.*)$')
      if ticket then
        set_lease(state, whole(ticket, name, 0, FOREVER), whole(text, name, -FOREVER, FOREVER))
      end
    end
  end
  return state, before
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
    held_until = 0, seen = now, running = {}, leases = 0,
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

local function go(state, ticket, due, now, lease)
  state.current = math.max(state.current, ticket)
  state.at = math.max(state.at, due)
  if state.max_running > 0 then
    set_lease(state, ticket, now + lease)
    recheck(state, now)
  end
end

-- Slots are pairs {ticket, due}, as in the command.
local function give_back(state, slots)
  local last = state.ticket
  for i = #slots, 1, -1 do
    local ticket, due = slots[i][1], slots[i][2]
    if ticket ~= last or ticket <= state.void then return end
    state.due = math.min(state.due, due - state.interval)
    last = last - 1
  end
end

local function void_all(state)
  state.void = state.ticket
  state.due = state.at
end

local function advance(state, command, answer, now)
  local clock = clock_of(state, now)
  local known = command.generation == state.generation
  local mark = command.mark
  if known and mark and mark[1] > state.ticket then
    answer.healed = 1
    state.ticket = mark[1]
    state.due = math.max(state.due, mark[2])
  end
  if known then give_back(state, command.release) end
  if state.held_since then return end

  local unused = {}
  for _, slot in ipairs(command.slots) do
    local ticket, due = slot[1], slot[2]
    local late = clock > due + tolerance(state) + credit(state)
    if not known or ticket <= state.void or ticket > state.ticket or late then
      answer.missed[#answer.missed + 1] = ticket
      unused[#unused + 1] = slot
    elseif not state.held_since then
      go(state, ticket, due, now, command.lease)
      answer.granted[#answer.granted + 1] = ticket
    end
  end
  local never_told = {}
  for _, slot in ipairs(unused) do
    if known and slot[1] > state.current then never_told[#never_told + 1] = slot end
  end
  give_back(state, never_told)
  if state.held_since then return end

  local step = state.interval
  local due = math.max(clock + command.notice - credit(state), state.due + step)
  local room = math.max(0, math.floor((FOREVER - due) / step))
  local count = math.min(command.take + #answer.missed, room, MOST_TICKETS)
  if count == 0 then return end
  answer.first, answer.due, answer.count = state.ticket + 1, due, count
  state.ticket = state.ticket + count
  state.due = due + (count - 1) * step
  local near = math.max(0, math.min(count, math.floor((clock + command.reach - due) / step) + 1))
  while answer.begun < near and not state.held_since do
    answer.begun = state.max_running > 0 and answer.begun + 1 or near
    go(state, answer.first + answer.begun - 1, due + (answer.begun - 1) * step, now, command.lease)
  end
end

local function configure(state, command)
  local interval, burst = command.interval or state.interval, command.burst or state.burst
  if interval > state.interval or burst ~= state.burst then void_all(state) end
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

-- Keeps `state`. Only what differs from `stored` is written, or from `before`, which has the numbers of it and is
-- nil for a new record; every text is made before that.
local function keep(state, stored, size, before)
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
  if size > FIELDS or state.leases > 0 then
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
  return { now, answer.refused, answer.healed, answer.woken, answer.granted, answer.missed, answer.first,
    answer.due, answer.count, answer.begun, record }
end

local function wake(answer)
  answer.woken = 1
  redis.pcall('PUBLISH', KEYS[1] .. ':wake', '')  -- a hint: the step is done even where that isn't allowed
end

local function apply(command, now)
  local answer = { refused = 0, healed = 0, woken = 0, granted = {}, missed = {},
    first = 0, due = 0, count = 0, begun = 0 }
  local stored, size = fields()
  local state, before = read(stored, size)
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
    void_all(state)
  elseif command.op == 'finish' then
    finish(state, command, now)
    recheck(state, now)
  else
    error({ err = 'ERR no rule for ' .. command.op })
  end
  keep(state, stored, size, before)
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
