-- One command on one queue: repeats `apply` of intervalq/rules.py. It comes after queues_record.lua, queues_auto.lua and
-- queues_limits.lua. queues_step.lua follows, and what calls it: queues_main.lua, or queues_keyed.lua for a command on
-- two records.

local key = KEYS[1]  -- of the record that is read, written or woken

-- --- the record as it is stored --------------------------------------------------------------------

-- A table with room for the fields that every record has. If they were added to an empty one, it would be enlarged five
-- times, which costs more than this.
local function with_room()
  return {
    version = false, generation = false, held_since = false,
    interval = false, burst = false, max_running = false, tolerance = false, ephemeral = false,
    ticket = false, due = false, current = false, current_due = false, revoked_through = false, held_total = false,
    held_until = false, last_now = false, late_total = false, error = false, error_until = false,
  }
end

-- The record as a table of texts (empty: there is none), and the number of its fields.
local function fields()
  local flat = redis.pcall('HGETALL', key)
  if flat.err then
    if string.find(flat.err, 'WRONGTYPE', 1, true) then corrupt('the key is not a hash') end
    error(flat)
  end
  if #flat == 0 then return {}, 0 end
  local found = with_room()
  for i = 1, #flat, 2 do found[flat[i]] = flat[i + 1] end
  return found, #flat / 2
end

local function set_lease(state, ticket, lapse)
  if (state.running[ticket] == nil) ~= (lapse == nil) then
    state.leases = state.leases + (lapse and 1 or -1)
  end
  state.running[ticket] = lapse
end

-- The state in `stored` (nil: there is none), checked as State.from_dict does; whether it has the present layout; and
-- whether it has other fields than those that every record has. Its numbers replace their texts in `stored`.
local function read(stored, size)
  if size == 0 then return nil, false, false end
  local version = whole(stored.version, 'version', 1, FOREVER)
  if version > LAYOUT then
    error({ err = string.format('NEWER the record has layout %.0f, not up to %d', version, LAYOUT) })
  end
  local known = #NUMBERS + 3  -- with version, generation and held_since; every lease is one more
  if version < LAYOUT then
    for before, name in pairs({
      at = 'current_due', void = 'revoked_through', held = 'held_total', late = 'late_total', seen = 'last_now',
    }) do
      stored[name] = stored[before]
    end
    if version == 1 then stored.late_total, stored.error, stored.error_until = '0', '0', '0' end
  end
  if not stored.generation or stored.generation == '' or not is_text(stored.generation) then
    corrupt("'generation' must be text")
  end
  local state = with_room()
  state.generation, state.running, state.leases = stored.generation, {}, 0
  for i = 1, #NUMBERS do
    local name = NUMBERS[i]
    local value = whole(stored[name], name, MINIMUM[i], name == 'ephemeral' and 1 or FOREVER)
    state[name], stored[name] = value, value
  end
  if stored.held_since ~= '' then
    state.held_since = whole(stored.held_since, 'held_since', -FOREVER, FOREVER)
  end
  if state.current > state.ticket or state.revoked_through > state.ticket then
    corrupt("'current' and 'revoked_through' can't be above 'ticket'")
  end
  if stored.auto then
    state.auto, known = automatic().read(stored, state.ticket), known + 1
  end
  if stored.weight then
    state.weight, known = whole(stored.weight, 'weight', 1, MAX_WEIGHT), known + 1
  end
  if stored.limits or stored.stepped then
    state.limits = new_limits()
    known = known + state.limits.read(state, stored)
  end
  local more = size > known or version < LAYOUT
  if more then
    for name, text in pairs(stored) do
      local ticket = string.match(name, '^running:(.*)$')
      if ticket then
        set_lease(state, whole(ticket, name, 0, FOREVER), whole(text, name, -FOREVER, FOREVER))
      end
    end
  end
  return state, version == LAYOUT, more
end

-- --- the rules -------------------------------------------------------------------------------------

local function revoke_all(state)
  if state.limits then state.limits.revoke(state) end
  state.revoked_through = state.ticket
  state.due = state.current_due
end

-- Prepare for a hold of this length, which moves slots (back, if it is negative).
local function moved(state, length)
  if state.limits and state.limits.moved(state, length) then revoke_all(state) end
end

local function resumed(state, now)
  local length = now - state.held_since
  moved(state, length)
  state.held_total = state.held_total + length
  state.held_since = nil
end

local function settle(state, now)
  local back = state.last_now - now
  if back > 0 then
    moved(state, -back)
    if state.limits then state.limits.stepped(state, now) end
    state.held_total = state.held_total - back
    if state.limits then state.stepped = state.stepped + back end
    if state.held_since then state.held_since = state.held_since - back end
    local ends = state.held_until > 0 and state.held_until < FOREVER
    if ends then state.held_until = state.held_until - back end
    state.error_until = state.error > 0 and state.error_until - back or 0
    for ticket, lapse in pairs(state.running) do state.running[ticket] = lapse - back end
  end
  state.last_now = now
  if state.held_since then
    local function full_until()
      if not full(state) then return 0 end
      local ends = {}
      for _, lapse in pairs(state.running) do ends[#ends + 1] = lapse end
      table.sort(ends)
      return ends[state.leases - state.max_running + 1]
    end
    local stop = math.max(state.held_until, full_until())
    if stop <= now then resumed(state, stop) end
  end
  if state.error > 0 and state.error_until <= now then state.error, state.error_until = 0, 0 end
  if state.held_until <= now then state.held_until = 0 end
  for ticket, lapse in pairs(state.running) do
    if lapse <= now then set_lease(state, ticket, nil) end
  end
  if state.limits then state.limits.age(state) end
end

local function lapses(state)
  local IDLE_KEPT = 60000000
  local WEIGHT_KEPT = 604800000000
  if state.ephemeral == 0 or state.held_since or state.leases > 0 then return FOREVER end
  local slots = state.due + state.held_total + (state.burst + 1) * state.interval
  local kept = state.weight and WEIGHT_KEPT or IDLE_KEPT
  return math.min(FOREVER, slots + (state.limits and state.limits.kept(state) or 0) + kept)
end

local function fresh(command, now)
  local interval, burst, limits = command.settings[1], command.settings[2], command.settings[SETTINGS + 1]
  local due = command.generation and now or now - burst * interval
  local state = {
    generation = command.nonce, ticket = 0, due = due, current = 0, current_due = due, revoked_through = 0,
    held_total = 0, held_until = 0, last_now = now, late_total = 0, error = 0, error_until = 0, running = {}, leases = 0,
  }
  for i = 1, SETTINGS do state[NUMBERS[i]] = command.settings[i] end
  if command.settings_auto then automatic().adapt(state, command.settings_auto, true) end
  if limits then
    state.stepped, state.limits = 0, new_limits().fresh(limits, now, command.generation)
  end
  return state
end

local function recheck(state, now)
  local stop = state.held_until > now or full(state)
  if stop and not state.held_since then
    state.held_since = now
    state.revoked_through = math.max(state.revoked_through, state.current)
    if state.limits then state.limits.hold(state) end
  elseif not stop and state.held_since then
    resumed(state, now)
  end
end

-- Slots are lists { ticket, due, cost, units... }, as in the command; the cost is omitted if it is 1 and no units
-- follow.
local function grant(state, slot, now, lease)
  local ticket, due = slot[1], slot[2]
  if slot[3] then due = due + (slot[3] - 1) * state.interval end
  if due > FOREVER then due = FOREVER end
  if ticket > state.current then state.current = ticket end
  if due > state.current_due then state.current_due = due end
  if state.max_running > 0 then
    set_lease(state, ticket, now + lease)
    recheck(state, now)
  end
end

local function give_back(state, slots)
  local last, before = state.ticket, state.due
  for i = #slots, 1, -1 do
    local ticket, due = slots[i][1], slots[i][2]
    if ticket ~= last or ticket <= state.revoked_through then break end
    if state.limits and due <= state.due then state.limits.give_back(state, slots[i]) end
    state.due = math.min(state.due, due - state.interval)
    last = last - 1
  end
  if state.limits and state.due < before and last <= math.max(state.current, state.revoked_through) then
    state.due = math.min(state.due, state.current_due)
  end
end

local function set_back(state, length, slots)
  state.held_total = state.held_total + length
  state.late_total = state.late_total + length
  if state.limits then state.limits.set_back(state, length, slots) end
end

local function heal(state, mark)
  if not mark or (mark[1] <= state.ticket and mark[3] <= state.late_total) then return 0 end
  if mark[1] > state.ticket then
    if state.limits then state.limits.heal(state, mark) end
    state.ticket = mark[1]
    state.due = math.max(state.due, mark[2])
  end
  local length = math.max(0, mark[3] - state.late_total)
  moved(state, length)
  set_back(state, length, {})
  return 1
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

-- The listed slots that are valid and can be granted now; and in a full queue, those with leases that never can.
local function usable(state, command, now)
  local slots, moved, held_since = {}, {}, state.held_since
  if command.generation ~= state.generation or (held_since and state.held_until > now) then return slots, moved end
  for _, slot in ipairs(command.slots) do
    local ticket = slot[1]
    local alive
    if not held_since then
      alive = state.revoked_through < ticket and ticket <= state.ticket
        or state.limits and state.limits.was_moved(state, command, slot)
    elseif state.running[ticket] and ticket <= state.current then
      alive = slot[2] + ((slot[3] or 1) - 1) * state.interval <= state.current_due
        and not (state.limits and not state.limits.counts_in_place(state, slot))
      if not alive then moved[#moved + 1] = slot end
    end
    if alive then slots[#slots + 1] = slot end
  end
  if held_since and #slots > 0 and not are_last(state, slots) then slots = {} end
  return slots, moved
end

local function end_of(state, slot) return slot[2] + tolerance(state) + credit(state) end

local function are_late(state, command, slots, now)
  if not command['until'] or #slots == 0 then return false end
  local elapsed = now - state.held_total
  return slots[1][2] <= elapsed and elapsed + command.notice > end_of(state, slots[1])
    and are_last(state, slots)
end

local function set_back_for(state, slots, length, now)
  set_back(state, length, slots)
  if state.held_since then state.held_since = now end
  state.revoked_through = math.max(state.revoked_through, slots[1][1] - 1)
end

-- Grant the only listed slot, which is too far ahead, sooner, if that is possible: see `Advance.ahead`. New tickets come
-- behind it then; otherwise, none are issued.
local function sooner(state, command, answer, now)
  local slot, clock, limits = command.slots[1], clock_of(state, now), state.limits
  if #command.slots ~= 1 or not limits or not limits.may_move(state, command) then return end
  local is_next = slot[1] == math.max(state.current, state.revoked_through) + 1
  local due, at_once
  if is_next then due, at_once = limits.sooner(state, slot, command.notice, clock, clock + command.ahead) end
  command.reach = -FOREVER
  if not due then
    command.take = 0
    return
  end
  grant(state, { slot[1], due, slot[3] }, now, command.lease)
  state.revoked_through = slot[1]
  answer.granted, answer.at_once = { slot[1] }, at_once and 1 or 0
end

-- Grant the listed slots, and return those that were missed.
local function use(state, command, answer, now)
  local held_since, slots, moved = state.held_since, usable(state, command, now)
  if held_since and #slots == 0 then return moved end
  if are_too_far(state, command, slots, now) then
    sooner(state, command, answer, now)
    return {}
  end
  if are_late(state, command, slots, now) then
    local mark = command.high_water_mark
    if not mark or mark[3] ~= state.late_total or now > command['until'] then return {} end
    local length = now - state.held_total + command.notice - end_of(state, slots[1])
    if not (state.limits and state.limits.are_passed(state, slots, length)) then
      set_back_for(state, slots, length, now)
      answer.at_once = 1
    elseif held_since then
      return {}
    end
  end
  local earliest, kept = clock_of(state, now) - tolerance(state) - credit(state), {}
  -- One that came sooner can only be granted late.
  local least = (answer.at_once == 1 or held_since) and 0 or state.revoked_through + 1
  for _, slot in ipairs(slots) do
    if slot[2] >= earliest and slot[1] >= least then
      kept[slot[1]] = true
      if held_since or not state.held_since then
        answer.granted[#answer.granted + 1] = slot[1]
        grant(state, slot, now, command.lease)
      end
    end
  end
  if held_since then return moved end
  local missed = {}
  for _, slot in ipairs(command.slots) do
    if not kept[slot[1]] then missed[#missed + 1] = slot end
  end
  return missed
end

-- The costs of new tickets (omitted ones cost 1), and how many tickets are wanted.
local function costs_of(command, missed)
  local costs = {}
  for i, slot in ipairs(missed) do costs[i] = slot[3] or 1 end
  for i = 1, math.min(#command.costs, command.take) do costs[#costs + 1] = command.costs[i] end
  return costs, math.min(MAX_TICKETS, #missed + command.take)
end

-- The slots of new tickets, each directly behind those of the one before, up to the first that would overflow. Costs
-- are compared before they are added, so no sum exceeds what a double holds exactly.
local function in_row(due, costs, count, step)
  local dues, room = {}, math.floor((FOREVER - due) / step)
  if #costs == 0 then
    for i = 1, math.min(count, room) do dues[i] = due + (i - 1) * step end
    return dues
  end
  for i = 1, count do
    local cost = costs[i] or 1
    if cost > room then break end
    dues[i] = due
    due, room = due + cost * step, room - cost
  end
  return dues
end

local function take(state, command, missed, answer, now)
  local costs, count = costs_of(command, missed)
  if count == 0 then return end
  local clock = clock_of(state, now)
  if state.auto then automatic().grow(state, clock) end
  local step = state.interval
  local free = state.due + step
  local due = math.max(free, clock + math.max(0, command.notice - tolerance(state)) - credit(state))
  local at_once, dues = free <= clock
  if state.limits then
    local has_room
    dues, answer.units, has_room = state.limits.fit(state, command, missed, costs, count, due, clock)
    answer.dues, at_once = dues, at_once and has_room
  else
    dues = in_row(due, costs, count, step)
  end
  count = #dues
  if count == 0 then return end
  local reach, mark = command.reach, command.high_water_mark
  if mark and mark[1] ~= state.ticket then reach = math.min(reach, command.notice) end
  answer.first, answer.due, answer.count = state.ticket + 1, dues[1], count
  state.ticket = state.ticket + count
  state.due = dues[count] + ((costs[count] or 1) - 1) * step
  local plain = true
  for i = 1, math.min(count, #costs) do plain = plain and costs[i] == 1 end
  if not plain then
    for i = 1, count do answer.costs[i] = costs[i] or 1 end
  end
  local near, last = 0, clock + reach
  while near < count and dues[near + 1] <= last do near = near + 1 end
  local granted = #answer.granted
  while answer.begun < near and not state.held_since do
    local n = state.max_running > 0 and answer.begun + 1 or near
    answer.begun = n
    grant(state, { answer.first + n - 1, dues[n], costs[n] }, now, command.lease)
  end
  if answer.begun > 0 and granted == 0 and at_once then answer.at_once = 1 end
end

local function advance(state, command, answer, now)
  local ERROR_KEPT = 60000000
  local known = command.generation == state.generation
  if known then
    answer.healed = heal(state, command.high_water_mark)
    if state.limits and command.settled then state.limits.settle(state, command.settled) end
    give_back(state, command.release)
  end
  if command.error > 0 and command.error >= state.error then
    state.error, state.error_until = command.error, now + ERROR_KEPT
  end
  local missed = #command.slots > 0 and use(state, command, answer, now) or {}
  for i, slot in ipairs(missed) do answer.missed[i] = slot[1] end
  if known and #missed > 0 then
    local never_granted = {}
    for _, slot in ipairs(missed) do
      if slot[1] > state.current then never_granted[#never_granted + 1] = slot end
    end
    give_back(state, never_granted)
  end
  if not state.held_since then take(state, command, missed, answer, now) end
end

-- Whether the settings of a command have the limits of the record.
local function same_limits(state, settings)
  local limits = settings[SETTINGS + 1]
  if state.limits and limits then return state.limits.are(limits) end
  return not state.limits and not limits
end

-- Commands other than `advance`. What only they need is inside: a step creates all functions that aren't inside of
-- another one, and finding the variables that they use costs more than most of them take to run.
local function other(state, command, now)
  -- Replace the limits; the new cells get what was counted. All of their fields are written, and old ones are removed.
  local function respread(settings)
    local before = state.limits
    state.has_others = true
    state.limits = #settings > 0 and new_limits().respread(state, settings, before) or nil
    state.stepped = state.limits and state.stepped or 0
  end

  local function configure()
    local interval, burst = state.interval, state.burst
    local late = state.limits and state.limits.lateness(state)
    state.interval, state.burst = command.interval or interval, command.burst or burst
    local bounds = command.auto or (not command.interval and state.auto)
    if bounds then
      automatic().adapt(state, bounds, command.interval)
      state.has_others = command.auto ~= nil
    elseif state.auto then
      state.auto, state.has_others = nil, true
    end
    local are_void = state.interval > interval or state.burst ~= burst
    local early = state.limits and late - state.limits.lateness(state) or 0
    local limits = command.limits
    if limits and not same_limits(state, { [SETTINGS + 1] = #limits > 0 and limits or nil }) then are_void = true
    else limits = nil end
    if are_void or early ~= 0 then revoke_all(state) end
    -- If jobs may begin later from now on, those in granted slots may not: see intervalq/_spec/configure.py.
    if early ~= 0 then state.limits.prolong(state, math.max(1, early)) end
    if limits then respread(limits) end
    state.max_running = command.max_running or state.max_running
    if state.max_running == 0 then state.running, state.leases = {}, 0 end
    if command.weight then
      state.weight, state.has_others = command.weight > 0 and command.weight or nil, true
    end
  end

  local function finish()
    if command.generation ~= state.generation or state.max_running == 0 then return end
    for _, ticket in ipairs(command.ended) do set_lease(state, ticket, nil) end
    for _, ticket in ipairs(command.running) do set_lease(state, ticket, now + command.lease) end
  end

  if command.op == 'hold' then
    local length = command.length
    if command.refusal and state.auto then length = automatic().refused(state, command, revoke_all) end
    state.held_until = math.max(state.held_until, math.min(FOREVER, now + length))
    recheck(state, now)
  elseif command.op == 'resume' then
    state.held_until = 0
    recheck(state, now)
  elseif command.op == 'configure' then
    configure()
    recheck(state, now)
  elseif command.op == 'reclaim' then
    revoke_all(state)
  elseif command.op == 'finish' then
    finish()
    recheck(state, now)
  else
    error({ err = 'ERR no rule for ' .. command.op })
  end
end
