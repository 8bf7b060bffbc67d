-- An interval that finds the server's limit: repeats intervalq/_spec/auto.py and adapt.py, behind queues_record.lua.
--
-- All of it is inside one function, as queues_limits.lua is. `state.auto` is a list
-- { slowest, fastest, peak, base, cut_at, cut_ticket }; queues without it have none.

local function automatic()
  local MAX_INTERVAL = 86400000000
  local RETURN = 32000000
  local RETURN_STARTS = 320
  local FASTER = 4
  local FIRST = 2000000
  local EARLY = 16
  local SETTLED = 1000000
  local SCALE = 65536
  local STEPS = 1024
  local FAR = 64
  local auto = {}

  function auto.read(stored, ticket)
    local numbers = {}
    for text in string.gmatch(stored.auto .. ':', '([^:]*):') do
      numbers[#numbers + 1] = whole(text, 'auto', -FOREVER, FOREVER)
    end
    local slowest, fastest, peak, base, _, cut_ticket = unpack(numbers)
    if #numbers ~= 6 or fastest < 1 or fastest > slowest or slowest > MAX_INTERVAL or base < 1 or base > MAX_INTERVAL
      or (peak ~= 0 and (peak > base or base > 2 * peak)) or cut_ticket < 0 or cut_ticket > ticket then
      corrupt("'auto' is out of range")
    end
    return numbers
  end

  function auto.written(state)
    local texts = {}
    for i, number in ipairs(state.auto) do texts[i] = written(number, 'auto') end
    return table.concat(texts, ':')
  end

  local function time_to_return(peak)
    return peak > 0 and math.min(math.max(RETURN, RETURN_STARTS * peak), MAX_INTERVAL) or 0
  end

  local function interval_at(state, due)
    local slowest, fastest, peak, base, cut_at = unpack(state.auto)
    local elapsed = math.max(0, due - cut_at)
    local usual, interval = time_to_return(peak), nil
    local back = base * 3 <= peak * 4 and usual or math.floor(usual / FASTER)
    if elapsed < back then
      local left = math.floor((back - elapsed) * STEPS / back)
      local lost = SCALE - math.floor(SCALE * peak / base)
      interval = math.floor(SCALE * peak / (SCALE - math.floor(lost * left * left * left / (STEPS * STEPS * STEPS))))
    else
      local unit = peak > 0 and math.floor(usual / FASTER) or math.min(math.max(FIRST, 2 * base), MAX_INTERVAL)
      local beyond = math.floor(math.min(elapsed - back, FAR * unit) * STEPS / unit)
      local more = math.floor(beyond * beyond * beyond / (STEPS * STEPS * STEPS / SCALE))
      interval = math.floor(SCALE * (peak > 0 and peak or base) / (SCALE + more))
    end
    return math.max(fastest, math.min(slowest, interval))
  end

  -- The interval for the next slots.
  function auto.grow(state, clock)
    local auto, idle = state.auto, clock - credit(state) - state.due - state.interval
    if idle > 0 then state.auto = { auto[1], auto[2], auto[3], auto[4], auto[5] + idle, auto[6] } end
    local interval, before = interval_at(state, math.max(state.due, clock)), tolerance(state)
    if interval >= state.interval then return end
    state.interval = interval
    state.due = math.min(FOREVER, state.due + before - tolerance(state))
  end

  -- How long to hold a record after a server refused a start.
  function auto.refused(state, command, revoke_all)
    local ticket, due = unpack(command.refusal)
    local slowest, fastest, peak, _, cut_at, cut_ticket = unpack(state.auto)
    if command.generation ~= state.generation or ticket <= cut_ticket or ticket > state.ticket then
      return command.length
    end
    local refused = math.max(state.interval, interval_at(state, due - SETTLED))
    local length, base = command.length, nil
    if peak == 0 or due - cut_at < math.floor(time_to_return(peak) / EARLY) then
      length = math.max(length, SETTLED)
      peak, base = math.floor(refused * 4 / 3), refused * 2
    else
      peak, base = refused, refused + math.floor((refused + 10) / 11)
    end
    base = math.min(base, slowest)
    local is_longer = base > state.interval
    state.auto = { slowest, fastest, math.min(peak, slowest), base, clock_of(state, state.last_now), state.ticket }
    state.interval = base
    if is_longer then revoke_all(state) end
    return length
  end

  -- Bounds for a record, which are new for it, or others. `is_new`: it has learned nothing yet.
  function auto.adapt(state, bounds, is_new)
    local slowest, fastest = unpack(bounds)
    local numbers = state.auto
    if not numbers or is_new then
      numbers = { 0, 0, 0, state.interval, clock_of(state, state.last_now), state.ticket }
    end
    local base = numbers[3] == 0 and math.min(numbers[4], slowest) or numbers[4]
    state.auto = { slowest, fastest, numbers[3], base, numbers[5], numbers[6] }
    state.interval = math.max(fastest, math.min(slowest, state.interval))
  end

  return auto
end
