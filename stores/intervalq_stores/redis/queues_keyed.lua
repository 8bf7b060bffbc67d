-- A step on the records of a key and of its queue: repeats `apply_keyed` of intervalq/keyed.py. The last part of its
-- script, behind queues.lua.
--
-- KEYS[1], KEYS[2]  the record of the key, and the common one
-- ARGV[3]           what the sender knows of the common record, JSON of Common.to_dict(): its slots are lists
--                   { ticket, due, cost, units... }, and in places, without units, the key's ticket comes first
-- Answer            { answer, state, places }: the answer of queues_record.lua about the key, with its record as it is
--                   stored; the common record in the same form; and lists { the key's ticket, ticket, due, cost }

local TURN = 5000
local NEVER = -1

local function cost_of(slot) return slot[3] or 1 end

local function shares(state) return state.burst == 1 and state.max_running == 0 end

local function generation_of(nonce, own_pace) return (own_pace and 'own:' or 'shared:') .. nonce end

-- What follows from the common settings, for a record (nil: none) and for a command.
local function pace(common, known, state, command)
  local most = math.max(1, math.min(tolerance(common), common.interval - 1))
  local settings = command.settings
  if settings then
    if not known.own_pace then settings[1] = common.interval end
    settings[2], settings[4] = 1, most
    command.nonce = generation_of(command.nonce, known.own_pace)
  end
  if state then
    local own_pace = has_own_pace(state)
    if own_pace == nil then
      own_pace = known.own_pace
      if command.op ~= 'inspect' and command.op ~= 'drop' then  -- it was used without the common rate
        revoke_all(state)
        state.generation = generation_of(state.generation, own_pace)
      end
    end
    local late = state.limits and state.limits.lateness(state)
    if not own_pace then state.interval = common.interval end
    state.burst, state.tolerance = 1, most
    local early = state.limits and late - state.limits.lateness(state) or 0
    if early ~= 0 then revoke_all(state) end
    if early > 0 then state.limits.prolong(state, early) end
  end
end

-- The common record, created or healed; whether it must be written (nil: there is nothing else to do, because the
-- command was refused or there is no record); and whether there is a record to go on with.
local function common_of(command, known, now, answer)
  local record, opening = opened(KEYS[2], now), new_answer()
  if command.op == 'inspect' or command.op == 'drop' then return record, false, record.state ~= nil end
  local is_new = not record.state
  local advance = { op = 'advance', settings = known.settings, attach = command.attach, generation = known.generation,
    nonce = known.nonce, high_water_mark = known.high_water_mark, slots = {}, release = {}, costs = {}, take = 0,
    notice = 0, reach = 0, lease = 0, error = 0 }
  local what = done(record, advance, opening, now)
  answer.refused, answer.healed = opening.refused, opening.healed
  if what ~= 'keep' then return record, nil, false end
  return record, is_new or opening.healed == 1, true
end

-- Whether a key can have this record (nil: none) and the settings of its sender.
local function is_plain(state, settings)
  if state and not shares(state) or settings and settings[3] ~= 0 then return false end
  for _, limit in ipairs(state and state.limits or {}) do
    if limit.edge then return false end
  end
  for _, limit in ipairs(settings and settings[SETTINGS + 1] or {}) do
    if limit[5] then return false end
  end
  return true
end

-- How far to set a key's clock back before the step, because the key waits: the place of the first listed slot may
-- have moved away from that slot, and new tickets directly follow those that wait for their grants.
local function moved(state, common, command, known, now)
  if not state or common.held_since or state.held_since then return 0 end
  if not shares(common) or not is_plain(state, command.settings) then return 0 end
  local length = 0
  if command.take > 0 and state.ticket > math.max(state.current, state.revoked_through) then
    length = math.max(0, clock_of(state, now) - state.due)
  end
  if command.attach then return length end
  if known.generation ~= common.generation or command.generation ~= state.generation then return length end
  for _, slot in ipairs(command.slots) do
    if slot[1] > state.revoked_through then
      local place
      for _, each in ipairs(known.places) do
        if each[1] == slot[1] then place = each end
      end
      if not place or place[2] <= common.revoked_through or place[2] > common.ticket then return length end
      return math.max(length, place[3] + common.held_total - slot[2] - state.held_total)
    end
  end
  return length
end

local function is_alone(state, common, now)
  if common.due + common.interval <= clock_of(common, now) then return true end
  return state ~= nil and state.current_due + state.held_total == common.due + common.held_total
end

local function directly_follows(slot, other, step)
  return other[1] == slot[1] + 1 and other[2] == slot[2] + cost_of(slot) * step
end

-- Leaves no more slots in the command than the key may take of the common ones in this step.
local function for_one_turn(state, common, command, known, now)
  local settings = command.settings
  if not state and not settings then return end
  if common.held_since or not is_plain(state, not state and settings or nil) or not shares(common) then
    command.slots, command.take, command.costs, command.units = {}, 0, {}, nil
    return
  end
  local step, agreed = settings and settings[1], settings and settings[4]
  local current, revoked_through = 0, 0
  if state then
    step, agreed, current, revoked_through = state.interval, state.tolerance, state.current, state.revoked_through
  end
  local most = known.own_pace and 1 or known.weight * math.max(1, math.floor(TURN / step))
  if not known.own_pace and is_alone(state, common, now) then most = MAX_TICKETS end
  local left, valid = {}, {}
  for _, slot in ipairs(command.slots) do
    if slot[1] <= revoked_through and not (state and state.held_since) then left[#left + 1] = slot end
  end
  for _, slot in ipairs(command.slots) do
    if slot[1] > revoked_through then
      if #valid > 0 and not directly_follows(valid[#valid], slot, step) then break end
      if #valid >= most and slot[1] > current then break end
      valid[#valid + 1] = slot
    end
  end
  for _, slot in ipairs(valid) do left[#left + 1] = slot end
  command.slots = left
  if #valid == 0 then command['until'] = nil end
  command.reach = #valid > 0 and NEVER
    or math.min(command.reach, math.max(0, command.notice - math.min(agreed, step)))
end

-- The places of the first of these slots, as far as they directly follow each other like the slots, which have their
-- units.
local function known_places(common, known, run)
  local places, found = {}, {}
  if known.generation ~= common.generation then return found end
  for _, place in ipairs(known.places) do places[place[1]] = { place[2], place[3], place[4] } end
  for _, slot in ipairs(run) do
    local place, last = places[slot[1]], found[#found]
    if not place or place[3] ~= cost_of(slot) then break end
    if last and (place[1] ~= last[1] + 1 or place[2] - found[1][2] ~= slot[2] - run[1][2]) then break end
    for i = 4, #slot do place[i] = slot[i] end
    found[#found + 1] = place
  end
  return found
end

-- The new tickets of an answer, as lists, and how many of them are granted, up to the first gap between them.
local function taken(answer, step)
  local slots, due, granted = {}, answer.due, answer.begun
  for i = 1, answer.count do
    if answer.dues and answer.dues[i] ~= due then due, granted = answer.dues[i], math.min(granted, i - 1) end
    slots[i] = { answer.first + i - 1, due, answer.costs[i] or 1 }
    due = due + slots[i][3] * step
  end
  return slots, granted
end

-- Asks for the places of these slots, or takes places for them that aren't before the instant: the slots, how many
-- of them are granted, and whether the first may be used at once. `reported` is the error of clocks that the key's
-- record has, which the common one gets, too.
local function places_of(common, command, known, reach, run, instant, now, reported)
  local had, mark = known_places(common, known, run), known.high_water_mark
  local asking = { generation = common.generation, slots = had, release = {}, take = 0, costs = {}, error = reported,
    notice = command.notice, reach = reach, ahead = command.ahead, lease = command.lease,
    ['until'] = command['until'], high_water_mark = { common.ticket, common.due, mark and mark[3] or 0 },
    apart = known.weight }
  local answer = new_answer()
  if common.limits then common.limits.age(common) end
  if #had > 0 then
    advance(common, asking, answer, now)
    local got, granted = had, #answer.granted
    if answer.granted[1] ~= had[1][1] then
      if answer.missed[1] ~= had[1][1] then return had, 0, 0 end
      got, granted = taken(answer, common.interval)
    end
    if got[1] and got[1][2] + common.held_total >= instant then return got, granted, answer.at_once end
    answer = new_answer()
    if common.limits then common.limits.age(common) end
  end
  asking.slots, asking.take = {}, #run
  if common.limits then
    asking.units = {}
    for i, slot in ipairs(run) do asking.units[i] = { unpack(slot, 4) } end
  end
  for i, slot in ipairs(run) do asking.costs[i] = cost_of(slot) end
  asking.notice = math.max(command.notice, instant - now + tolerance(common) + credit(common))
  advance(common, asking, answer, now)
  local got, granted = taken(answer, common.interval)
  return got, granted, answer.at_once
end

-- The slots that a step granted, one directly behind the other; if there are limits, with their units.
local function granted_of(command, answer, state, is_limited)
  local run, granted = {}, {}
  for _, ticket in ipairs(answer.granted) do granted[ticket] = true end
  for _, slot in ipairs(command.slots) do
    if granted[slot[1]] then run[#run + 1] = slot end
  end
  if #run > 0 then return run end
  if answer.begun == 0 then return run end
  for i, slot in ipairs(taken(answer, state.interval)) do
    if i <= answer.begun then run[i] = slot end
  end
  if not is_limited then return run end
  local missed, units = {}, {}
  for _, ticket in ipairs(answer.missed) do missed[ticket] = true end
  for _, slot in ipairs(command.slots) do
    if missed[slot[1]] then units[#units + 1] = { unpack(slot, 4) } end
  end
  for _, each in ipairs(command.units or {}) do units[#units + 1] = each end
  for i, slot in ipairs(run) do
    for n, some in ipairs(units[i] or {}) do slot[n + 3] = some end
  end
  return run
end

local function copy(state)
  local other = {}
  for name, value in pairs(state) do other[name] = value end
  other.running = {}
  for ticket, lapse in pairs(state.running) do other.running[ticket] = lapse end
  other.limits = state.limits and state.limits.copy()
  return other
end

-- These slots without what they take of the first limits, those of the key.
local function for_common(run, own)
  if own == 0 then return run end
  local slots = {}
  for i, slot in ipairs(run) do slots[i] = { slot[1], slot[2], cost_of(slot), unpack(slot, 4 + own) } end
  return slots
end

-- Sets the clock of a key back because a slot waits for its place. Tickets up to `current` were granted before; if the
-- key has limits, those that aren't listed `again` can't be granted again.
local function waiting(state, length, again, current)
  set_back(state, length, again)
  if not state.limits then return end
  local last = current - #again
  if not again[1] or again[1][1] ~= last + 1 then last = current end
  state.revoked_through = math.max(state.revoked_through, last)
end

-- The record of the key as far as the common one changed it, and what the sender settles in it. Returns those of the
-- listed slots that are granted and may be granted again.
local function prepared(own, common, command, known, now)
  local again = {}
  if not own.state or disagrees(own.state, command) then return again end
  if command.settled and command.generation == own.state.generation and own.state.limits then
    own.state.limits.settle_fixed(own.state, command.settled)
  end
  command.settled = nil
  for _, slot in ipairs(command.generation == own.state.generation and command.slots or {}) do
    if slot[1] > own.state.revoked_through and slot[1] <= own.state.current then again[#again + 1] = slot end
  end
  local length = moved(own.state, common, command, known, now)
  if length > 0 then
    local mark = command.high_water_mark
    if mark and mark[3] == own.state.late_total then mark[3] = mark[3] + length end
    waiting(own.state, length, again, own.state.current)
    if own.state.limits then own.state.limits.age(own.state) end
  end
  return again
end

-- Does the step as if the key were alone; what it grants must be granted by the common queue, too.
local function advanced(own, common, command, known, now)
  -- The places of another record of the key belong to its tickets.
  if not own.state or command.generation ~= own.state.generation then known.places = {} end
  local written, answer, places = false, new_answer(), known.places
  if (#known.release > 0 or known.settled) and known.generation == common.generation then
    if common.limits then
      common.limits.age(common)
      common.limits.settle(common, known.settled or {})
    end
    give_back(common, known.release)
    written = true
  end
  local reach = command.ahead or command.reach
  if own.state then
    known.own_pace = has_own_pace(own.state)
    if own.state.weight and not known.own_pace then known.weight = own.state.weight end
  end
  local again = prepared(own, common, command, known, now)
  for_one_turn(own.state, common, command, known, now)
  local before, current = own.state and copy(own.state), own.state and own.state.current or 0
  local first = math.max(current, before and before.revoked_through or 0) + 1
  local what = done(own, command, answer, now)
  local run = what and granted_of(command, answer, own.state, own.state.limits or common.limits) or {}
  if #run == 0 then return what, answer, written, places end
  local instant, slots = run[1][2] + own.state.held_total, for_common(run, own.state.limits and #own.state.limits or 0)
  local got, granted, at_once = places_of(common, command, known, reach, slots, instant, now, own.state.error)
  if granted < #run then
    local left, rest = {}, {}
    for i = granted + 1, #run do left[run[i][1]] = true end
    for _, slot in ipairs(command.slots) do
      if not left[slot[1]] then rest[#rest + 1] = slot end
    end
    command.slots, command.reach = rest, NEVER
    own.state, answer = before or nil, new_answer()
    done(own, command, answer, now)
  end
  local state = own.state
  local later = got[1] and got[1][2] + common.held_total - run[1][2] - state.held_total or 0
  if later > 0 and (granted > 0 or run[1][1] <= first) then waiting(state, later, again, current) end
  if state.limits then state.limits.fix(state, { unpack(run, 1, granted) }, current) end
  if granted > 0 then state.revoked_through = math.max(state.revoked_through, run[1][1] - 1) end
  if at_once == 0 then answer.at_once = 0 end
  places = {}
  for i, slot in ipairs(run) do
    if got[i] then places[i] = { slot[1], got[i][1], got[i][2], got[i][3] } end
  end
  return what, answer, true, places
end

local function apply_keyed(command, known, now)
  local answer, places = new_answer(), {}
  local common, written, goes_on = common_of(command, known, now, answer)
  if not goes_on and written == nil then
    return { reply(answer, nil, now), reply(answer, common.state, now)[13], places }
  end
  answer = new_answer()
  local own = opened(KEYS[1], now, function(state)
    if common.state then pace(common.state, known, state, { op = command.op }) end
  end)
  if common.state then pace(common.state, known, nil, command) end
  local what
  if command.op == 'advance' then
    local changed
    what, answer, changed, places = advanced(own, common.state, command, known, now)
    written = written or changed
  else
    what = done(own, command, answer, now)
  end
  if written then follow(common, 'keep', new_answer()) end
  follow(own, what, answer)
  return { reply(answer, own.state, now), reply(answer, common.state, now)[13], places }
end

return guarded(apply_keyed, cjson.decode(ARGV[1]), cjson.decode(ARGV[3]), time())
