-- Limits beside the interval: repeats intervalq/_spec/windows.py. It comes after queues_record.lua.
--
-- Everything is inside one function, because creating a function takes about a microsecond, and most queues have no
-- limits. Sums may be too large to be exact, but then they are beyond FOREVER in any case, and only compared with
-- smaller numbers; whatever is stored is checked when it is written.

-- The limits of a state (a list, empty at first), and its functions.
local function new_limits()
  local BLOCKS = 64
  local CELLS = 3
  local MAX_CELLS = 4000
  local MAX_LIMITS = 16
  local STARTS = 'starts'
  local limits = {}

  -- Cells are flat lists: `ahead` is { end, units, end, units... }, and `used` is { end, units, due, end... }.
  -- `changed` is set on those that were changed.
  local function add(most, window, unit, jitter, edge)
    local block = math.ceil((window + jitter) / BLOCKS)
    limits[#limits + 1] =
      { most = most, window = window, unit = unit, jitter = jitter, edge = edge, block = block, used = {}, ahead = {} }
    return limits[#limits]
  end

  -- --- the stored form --------------------------------------------------------------------------

  local function read_cells(text, name, pattern)
    local cells, length, last, count = {}, 0, -FOREVER - 1, 0
    text = text or 'none'
    for stop, units, due in string.gmatch(text, pattern) do
      length, count = length + #stop + #units + (due and #due + 3 or 2), count + 1
      stop, units, due = tonumber(stop), tonumber(units), tonumber(due)
      if stop <= last then corrupt("'" .. name .. "' must be in order") end
      if stop > FOREVER or units < 1 or units > FOREVER or (due and math.abs(due) > FOREVER) then
        corrupt("'" .. name .. "' is out of range")
      end
      local n = #cells
      cells[n + 1], cells[n + 2], cells[n + 3] = stop, units, due
      last = stop
    end
    if length ~= #text or count > MAX_CELLS then
      corrupt("'" .. name .. "' must be a list of cells that is not too long")
    end
    return cells
  end

  -- Read the limits of a stored record, and return how many of its fields they are.
  function limits.read(state, stored)
    state.stepped = whole(stored.stepped, 'stepped', 0, FOREVER)
    local count, edges = whole(stored.limits, 'limits', 1, MAX_LIMITS), 0
    for n = 1, count do
      local name, used, ahead, edge = 'limit:' .. n, 'used:' .. n, 'ahead:' .. n, 'edge:' .. n
      local most, window, jitter, unit = string.match(stored[name] or '', '^(%d+) (%d+) (%d+) (.*)$')
      if not unit or not is_text(unit) then corrupt("'" .. name .. "' must be three numbers and a unit") end
      local limit = add(whole(most, name, 1, FOREVER), whole(window, name, 1, FOREVER), unit,
        whole(jitter, name, 0, FOREVER))
      if stored[edge] then limit.edge, edges = whole(stored[edge], edge, 0, limit.window - 1), edges + 1 end
      limit.used = read_cells(stored[used], used, '(%-?%d+):(%d+):(%-?%d+);')
      limit.ahead = read_cells(stored[ahead], ahead, '(%-?%d+):(%d+);')
    end
    return 2 + 3 * count + edges
  end

  local function written_cells(cells, width, name)
    local parts = {}
    for i = 1, #cells do parts[i] = written(cells[i], name) .. (i % width == 0 and ';' or ':') end
    return table.concat(parts)
  end

  -- Add the fields that differ from `stored`, or all fields, to what is to be written.
  function limits.write(state, stored, put, all)
    local stepped = written(state.stepped, 'stepped')
    if all or stored.stepped ~= stepped then put('stepped', stepped) end
    if all then put('limits', written(#limits, 'limits')) end
    for n, limit in ipairs(limits) do
      local used, ahead = 'used:' .. n, 'ahead:' .. n
      if all then
        local most, window = written(limit.most, 'most'), written(limit.window, 'window')
        put('limit:' .. n, table.concat({ most, window, written(limit.jitter, 'jitter'), limit.unit }, ' '))
        if limit.edge then put('edge:' .. n, written(limit.edge, 'edge')) end
      end
      if all or limit.used.changed then put(used, written_cells(limit.used, 3, used)) end
      if all or limit.ahead.changed then put(ahead, written_cells(limit.ahead, 2, ahead)) end
    end
  end

  -- Whether a field is one of these.
  function limits.has(field)
    if field == 'stepped' or field == 'limits' then return true end
    local edge = string.match(field, '^edge:(%d+)$')
    if edge then return limits[tonumber(edge)] ~= nil and limits[tonumber(edge)].edge ~= nil end
    local n = string.match(field, '^limit:(%d+)$') or string.match(field, '^used:(%d+)$')
      or string.match(field, '^ahead:(%d+)$')
    return limits[tonumber(n)] ~= nil
  end

  -- --- the form in commands and answers -----------------------------------------------------

  function limits.are(settings)
    if #limits ~= #settings then return false end
    for n, limit in ipairs(limits) do
      local most, window, unit, jitter, edge = unpack(settings[n])
      if limit.most ~= most or limit.window ~= window or limit.unit ~= unit or limit.jitter ~= jitter
        or limit.edge ~= edge then return false end
    end
    return true
  end

  function limits.listed()
    local list = {}
    for n, limit in ipairs(limits) do
      list[n] = { limit.most, limit.window, limit.unit, limit.jitter, limit.used, limit.ahead, limit.edge }
    end
    return list
  end

  -- --- cells ---------------------------------------------------------------------------------------

  -- With an automatic interval, what it can be at most.
  local function lateness(state)
    local slow = state
    if state.auto then slow = { burst = state.burst, tolerance = state.tolerance, interval = state.auto[1] } end
    return tolerance(slow) + credit(slow) + 2 * state.error
  end
  limits.lateness = lateness

  -- The remainder of a length within a window. Unlike %, fmod is exact.
  local function within(limit, length)
    local rest = math.fmod(length, limit.window)
    return rest < 0 and rest + limit.window or rest
  end

  -- The first edge at an instant on the server's clock, or after it.
  local function next_edge(limit, at) return at + within(limit, limit.edge - at) end

  -- How long units count after the end of their cell; in fixed windows, an upper bound.
  local function span(limit, state) return limit.window + limit.jitter + lateness(state) + state.error end

  -- The time until which the units of a cell count, given its end; both on the queue's clock.
  local function expiry(limit, state, stop)
    if not limit.edge then return stop + span(limit, state) end
    local at = stop + state.held_total + limit.jitter + lateness(state)
    return next_edge(limit, at) - state.held_total + state.error
  end

  local function end_of_cell(limit, due)
    local first, cell = math.floor(due / limit.block) * limit.block, math.ceil(limit.block / CELLS)
    return math.min(FOREVER, first + limit.block, first + (math.floor((due - first) / cell) + 1) * cell)
  end

  -- The end of the last cell ahead that may contain the last granted slot; cells of earlier versions are whole blocks.
  local function end_of_granted(limit, state)
    local block, last = (math.floor(state.current_due / limit.block) + 1) * limit.block
    for i = 1, #limit.ahead, 2 do last = limit.ahead[i] == math.min(FOREVER, block) and limit.ahead[i] or last end
    return last or end_of_cell(limit, state.current_due)
  end

  local function units_of(slot) return { unpack(slot, 4) } end

  -- The units that a ticket takes of the n-th limit. A ticket without units takes its cost of limits that count starts.
  local function of_each(n, cost, units)
    if #units == 0 then return limits[n].unit == STARTS and cost or 0 end
    return units[n] or 0
  end

  -- Add units to the cell with this end (capped at the last one that a store can hold); with `due`, to a used cell.
  local function put(cells, stop, units, due)
    if units == 0 then return end
    stop = math.min(FOREVER, stop)
    local width, size = due and 3 or 2, #cells
    local is_full, i = size >= width * MAX_CELLS, size + 1
    while i > 1 and cells[i - width] >= stop do i = i - width end
    cells.changed = true
    if not is_full and cells[i] ~= stop then
      table.insert(cells, i, stop)
      table.insert(cells, i + 1, units)
      if due then table.insert(cells, i + 2, due) end
      return
    end
    if i > size then i, cells[size + 1 - width] = size + 1 - width, stop end
    cells[i + 1] = cells[i + 1] + units
    if due then cells[i + 2] = math.max(cells[i + 2], due) end
  end

  -- Add units to the cell at this index of the list, or subtract them; a cell that has none left is removed.
  local function add_to(cells, width, place, more)
    if more == 0 then return end
    cells.changed = true
    cells[place + 1] = cells[place + 1] + more
    if cells[place + 1] > 0 then return end
    for _ = 1, width do table.remove(cells, place) end
  end

  -- Subtract units from the cell with this end; if it was merged with another one, they stay counted.
  local function without(cells, stop, units)
    for i = 1, #cells, 2 do
      if cells[i] == stop then return add_to(cells, 2, i, -units) end
    end
  end

  -- The cells that still count.
  local function only(cells, width, stays)
    local rest, n = { changed = true }, 0
    for i = 1, #cells, width do
      if stays(cells[i], cells[i + 2]) then
        for j = i, i + width - 1 do
          n = n + 1
          rest[n] = cells[j]
        end
      end
    end
    return n == #cells and cells or rest
  end

  -- --- the rules -----------------------------------------------------------------------------------

  function limits.kept(state)
    local most = 0
    for _, limit in ipairs(limits) do most = math.max(most, span(limit, state) + limit.block) end
    return most
  end

  function limits.fresh(settings, now, was_lost)
    for _, each in ipairs(settings) do
      add(unpack(each)).used = was_lost and { now, each[1], now } or {}
    end
    return limits
  end

  -- Move the cells of a limit that end by `last` from those ahead to the used ones.
  local function move(limit, last, lag)
    local ahead = limit.ahead
    if not ahead[1] or ahead[1] > last then return end
    for i = 1, #ahead, 2 do
      if ahead[i] <= last then put(limit.used, ahead[i] + lag, ahead[i + 1], ahead[i]) end
    end
    limit.ahead = only(ahead, 2, function(stop) return stop > last end)
  end

  function limits.age(state)
    local clock, lag = clock_of(state, state.last_now), state.held_total + state.stepped
    local over = clock - lateness(state)
    for _, limit in ipairs(limits) do
      move(limit, over, lag)
      if limit.used[1] and expiry(limit, state, limit.used[1] - lag) <= over then
        limit.used = only(limit.used, 3, function(stop, due)
          return expiry(limit, state, stop - lag) > over or due > state.current_due
        end)
      end
    end
  end

  function limits.hold(state)
    local due, lag = state.current_due, state.held_total + state.stepped
    local are_others = math.max(state.current, state.revoked_through) < state.ticket
    for _, limit in ipairs(limits) do move(limit, are_others and due or end_of_cell(limit, due), lag) end
  end

  -- The cell, of a limit of a key, in which the slot at this instant on the server's clock was fixed.
  local function fixed_cell(limit, at)
    local used, stop = limit.used, end_of_cell(limit, at)
    for i = 1, limit.edge and 0 or #used, 3 do
      if used[i] == stop and used[i + 2] == -FOREVER then return i end
    end
  end

  function limits.set_back(state, length, slots)
    local over, lag = clock_of(state, state.last_now) - lateness(state), state.held_total + state.stepped
    for n, limit in ipairs(limits) do
      local used, ahead, known = limit.used, limit.ahead, {}
      -- Cells that were prolonged stay where they are: there they count for longer.
      local function stays(stop, due) return due <= over or stop - lag > due end
      for i = 1, #used, 3 do
        if not stays(used[i], used[i + 2]) then put(ahead, used[i + 2], used[i + 1]) end
      end
      limit.used = only(used, 3, stays)
      for i = 1, #ahead, 2 do known[ahead[i]] = true end
      for _, slot in ipairs(slots) do
        local units, at, stop = of_each(n, slot[3] or 1, units_of(slot)), slot[2] + lag, end_of_cell(limit, slot[2])
        local fixed = units > 0 and slot[1] <= state.current and fixed_cell(limit, at - length)
        if fixed then
          add_to(limit.used, 3, fixed, -units)
          put(limit.used, end_of_cell(limit, at), units, -FOREVER)
        elseif not known[stop] then put(ahead, stop, units) end
      end
    end
  end

  -- All cells of a limit, in the order of their ends on the queue's clock. Slots behind the last granted one may still
  -- be granted late, and move new ones along: they count where they are on this clock, even if it was held since then.
  local function cells_of(limit, state)
    local cells, lag, size = {}, state.held_total + state.stepped, 0
    local function insert(stop, units)
      local n = size + 1
      while n > 1 and cells[n - 2] > stop do
        cells[n], cells[n + 1] = cells[n - 2], cells[n - 1]
        n = n - 2
      end
      cells[n], cells[n + 1], size = stop, units, size + 2
    end
    local used, ahead, last = limit.used, limit.ahead, FOREVER
    if math.max(state.current, state.revoked_through) < state.ticket then last = state.current_due end
    for i = 1, #used, 3 do
      local stop, due = used[i] - lag, used[i + 2]
      insert(due > last and math.max(stop, due) or stop, used[i + 1])
    end
    for i = 1, #ahead, 2 do insert(ahead[i], ahead[i + 1]) end
    return cells
  end

  -- The room of one limit, for consecutive slots. `first`: the first cell that still counts.
  local function new_window(limit, state)
    local cells, counted = cells_of(limit, state), 0
    for i = 2, #cells, 2 do counted = counted + cells[i] end
    return { limit = limit, state = state, cells = cells, size = #cells, first = 1, counted = counted }
  end

  local function earliest(window, units, at)
    local cells, most = window.cells, window.limit.most
    units = math.min(units, most)
    while window.first < window.size do
      local over = expiry(window.limit, window.state, cells[window.first])
      if over > at then
        if units == 0 or window.counted + units <= most then break end
        at = over
      end
      window.counted = window.counted - cells[window.first + 1]
      window.first = window.first + 2
    end
    return at
  end

  local function earliest_of_all(windows, cost, units, at)
    local latest = at
    for n, window in ipairs(windows) do
      latest = math.max(latest, earliest(window, of_each(n, cost, units), at))
    end
    return latest
  end

  local function take(window, units, due)
    if units == 0 then return end
    local stop, size = end_of_cell(window.limit, due), window.size
    put(window.limit.ahead, stop, units)
    window.cells[size + 1], window.cells[size + 2], window.size = stop, units, size + 2
    window.counted = window.counted + units
  end

  -- The slots of up to `count` new tickets, up to the first that would overflow; their units, as far as they are known;
  -- and whether the first one would have had room when the queue's clock read `clock`.
  function limits.fit(state, command, missed, costs, count, due, clock)
    local step, windows, asked = state.interval, {}, {}
    for n, limit in ipairs(limits) do windows[n] = new_window(limit, state) end
    for _, slot in ipairs(missed) do asked[#asked + 1] = units_of(slot) end
    for _, each in ipairs(command.units or {}) do asked[#asked + 1] = each end
    local soonest, dues, units = math.min(due, clock), {}, {}
    for i = 1, count do
      local cost, taken = costs[i] or 1, asked[i] or {}
      if i == 1 then
        soonest = earliest_of_all(windows, cost, taken, soonest)
        due = math.max(due, soonest)
      end
      local free = earliest_of_all(windows, cost, taken, due)
      if cost > math.floor((FOREVER - free) / step) then break end
      if command.apart and i > command.apart and free > due then break end
      due = free
      for n, window in ipairs(windows) do take(window, of_each(n, cost, taken), due) end
      dues[i], units[i] = due, asked[i]
      due = due + cost * step
    end
    return dues, units, soonest <= clock
  end

  function limits.give_back(state, slot)
    local at = slot[2] + state.held_total + state.stepped
    for n, limit in ipairs(limits) do
      local units = of_each(n, slot[3] or 1, units_of(slot))
      local fixed = slot[1] <= state.current and fixed_cell(limit, at)
      if fixed then add_to(limit.used, 3, fixed, -units)
      else without(limit.ahead, end_of_cell(limit, slot[2]), units) end
    end
  end

  -- Slots of a key that are granted for the first time, those behind `current`, stay where they are by the server's
  -- clock: see intervalq/_spec/keys/fixed.py.
  function limits.fix(state, slots, current)
    local lag = state.held_total + state.stepped
    for n, limit in ipairs(limits) do
      for _, slot in ipairs(slots) do
        local units = of_each(n, slot[3] or 1, units_of(slot))
        if units > 0 and slot[1] > current then
          without(limit.ahead, end_of_cell(limit, slot[2]), units)
          put(limit.used, end_of_cell(limit, slot[2] + lag), units, -FOREVER)
        end
      end
    end
  end

  -- As `settle`, for slots that were fixed.
  function limits.settle_fixed(state, settled)
    local lag, over = state.held_total + state.stepped, clock_of(state, state.last_now) - lateness(state)
    for n, limit in ipairs(limits) do
      for _, each in ipairs(settled) do
        local at, more = each[1] + each[2], each[n + 2] or 0
        local stop = end_of_cell(limit, at)
        if more ~= 0 and expiry(limit, state, stop - lag) > over then
          local fixed = fixed_cell(limit, at)
          if fixed then add_to(limit.used, 3, fixed, more)
          elseif more > 0 then put(limit.used, stop, more, -FOREVER) end
        end
      end
    end
  end

  -- The same limits, with what they count, in a state of their own.
  function limits.copy()
    local other = new_limits()
    for n, limit in ipairs(limits) do
      local twin = { used = {}, ahead = {} }
      for name, value in pairs(limit) do twin[name] = twin[name] or value end
      for place, value in pairs(limit.used) do twin.used[place] = value end
      for place, value in pairs(limit.ahead) do twin.ahead[place] = value end
      other[n] = twin
    end
    return other
  end

  function limits.settle(state, settled)
    local lag, over = state.held_total + state.stepped, clock_of(state, state.last_now) - lateness(state)
    for n, limit in ipairs(limits) do
      for _, each in ipairs(settled) do
        local stop, more, used, ahead = end_of_cell(limit, each[1]), each[n + 2] or 0, limit.used, limit.ahead
        local over_at, part, is_ahead = stop + each[2], nil, stop > over
        for i = #used - 2, 1, -3 do
          if used[i + 2] == stop and used[i] >= over_at then part = i end
        end
        for i = 1, #ahead, 2 do is_ahead = is_ahead or ahead[i] == stop end
        if more == 0 or expiry(limit, state, over_at - lag) <= over then  -- it doesn't count any more
        elseif part then add_to(used, 3, part, more)
        elseif more < 0 then without(ahead, stop, -more)
        elseif is_ahead then put(ahead, stop, more)
        else put(used, stop + lag, more, stop) end
      end
    end
  end

  function limits.revoke(state)
    for _, limit in ipairs(limits) do
      local last = end_of_granted(limit, state)
      limit.ahead = only(limit.ahead, 2, function(stop) return stop <= last end)
    end
  end

  -- Whether slots of the sender may come sooner: not those of keys.
  function limits.may_move(state, command)
    if state.auto or state.held_since or state.max_running > 0 then return false end
    return command.reach >= 0 and not command.apart
  end

  -- Whether this is the last granted slot, also after it came sooner.
  function limits.was_moved(state, command, slot)
    return slot[1] == state.current and slot[2] == state.current_due and (slot[3] or 1) == 1
      and limits.may_move(state, command)
  end

  -- Whether the units of a granted slot count where it is on the queue's clock: see intervalq/_spec/standing.py.
  function limits.counts_in_place(state, slot)
    local lag = state.held_total + state.stepped
    for n, limit in ipairs(limits) do
      local used, ahead, stop = limit.used, limit.ahead, end_of_cell(limit, slot[2])
      local is_known = of_each(n, slot[3] or 1, units_of(slot)) == 0
      for i = 3, is_known and 0 or #used, 3 do
        if used[i] >= stop and used[i - 2] ~= used[i] + lag then return false end
        is_known = is_known or used[i] == stop
      end
      for i = 1, #ahead, 2 do is_known = is_known or ahead[i] == stop end
      if not is_known then return false end
    end
    return true
  end

  -- Move the next ticket to be granted to the soonest slot before its own in which the windows have room, and return
  -- that and whether nothing delayed it. Nothing is changed if it would be later than `last`, or not sooner.
  function limits.sooner(state, slot, notice, clock, last)
    local cost, twin, behind = slot[3] or 1, limits.copy(), {}
    twin.give_back(state, slot)
    for n, limit in ipairs(twin) do
      local ahead, known = limit.ahead, end_of_granted(limit, state)
      limit.ahead = only(ahead, 2, function(stop) return stop <= known end)
      behind[n] = limit.ahead == ahead and {} or only(ahead, 2, function(stop) return stop > known end)
    end
    local free = state.current_due + state.interval
    local due = math.max(free, clock + math.max(0, notice - tolerance(state)) - credit(state))
    local dues, _, has_room = twin.fit(state, {}, { slot }, { cost }, 1, due, clock)
    due = dues[1]
    if not due or due > last or due >= slot[2] then return end
    for n, limit in ipairs(twin) do
      for i = 1, #behind[n], 2 do put(limit.ahead, behind[n][i], behind[n][i + 1]) end
    end
    if slot[1] == state.ticket then state.due = due + (cost - 1) * state.interval end
    state.limits = twin
    return due, free <= clock and has_room
  end

  function limits.heal(state, mark)
    for _, limit in ipairs(limits) do
      local lost = limit.unit == STARTS and math.min(limit.most, mark[1] - state.ticket) or limit.most
      put(limit.ahead, end_of_cell(limit, mark[2]), lost)
    end
  end

  function limits.prolong(state, length)
    local lag = state.held_total + state.stepped
    for _, limit in ipairs(limits) do
      local used = { changed = true }
      for i = 1, #limit.used, 3 do put(used, limit.used[i] + length, limit.used[i + 1], limit.used[i + 2]) end
      for i = 1, #limit.ahead, 2 do put(used, limit.ahead[i] + lag + length, limit.ahead[i + 1], limit.ahead[i]) end
      limit.used, limit.ahead = used, { changed = true }
    end
  end

  -- Whether an edge lies between the first slot, or the beginning of the hold, and the end of the last slot.
  local function is_among_edges(limit, state, length)
    local ahead = limit.ahead
    if not limit.edge or not ahead[1] then return false end
    local first = math.min(ahead[1] - limit.block, clock_of(state, state.last_now)) + math.min(0, length)
    local last = ahead[#ahead - 1] + limit.jitter + lateness(state) + math.max(0, length)
    return next_edge(limit, first + state.held_total + 1) < last + state.held_total
  end

  -- Prepare for a hold of this length, which moves slots. Returns whether those that aren't granted must be counted
  -- anew; if so, the units of granted ones stay in their windows.
  function limits.moved(state, length)
    local are_among = false
    if math.max(state.current, state.revoked_through) == state.ticket then return false end
    for _, limit in ipairs(limits) do are_among = are_among or is_among_edges(limit, state, length) end
    if not are_among then return false end
    for _, limit in ipairs(limits) do
      if limit.edge then move(limit, end_of_granted(limit, state), state.held_total + state.stepped) end
    end
    return true
  end

  -- Prepare for a server's clock that was set back: a window whose beginning has been forgotten counts as full.
  function limits.stepped(state, now)
    local late = lateness(state)
    for _, limit in ipairs(limits) do
      if limit.edge then
        if within(limit, now - limit.edge) > late + within(limit, state.last_now - late - limit.edge) then
          put(limit.used, state.last_now + state.stepped, limit.most, -FOREVER)
        end
      end
    end
  end

  -- Whether a unit would count in another window if the queue's clock were set back by this length.
  function limits.are_passed(state, slots, length)
    local function is_passed(limit, stop)
      local at = stop + state.held_total + limit.jitter + lateness(state)
      return next_edge(limit, at) ~= next_edge(limit, at + length)
    end
    for _, limit in ipairs(limits) do
      for i = 1, limit.edge and #limit.ahead or 0, 2 do
        if is_passed(limit, limit.ahead[i]) then return true end
      end
      for i = 1, limit.edge and #slots or 0 do
        if is_passed(limit, end_of_cell(limit, slots[i][2])) then return true end
      end
    end
    return false
  end

  -- New limits, whose cells get what the old ones counted; nil: there were none.
  function limits.respread(state, settings, others)
    for _, each in ipairs(settings) do
      local limit, source, is_shorter, distance = add(unpack(each)), nil, nil, nil
      for _, other in ipairs(others or {}) do
        local shorter, apart = other.window < limit.window, math.abs(other.window - limit.window)
        if other.unit == limit.unit
          and (not source or is_shorter and not shorter or is_shorter == shorter and apart < distance) then
          source, is_shorter, distance = other, shorter, apart
        end
      end
      local used, ahead = source and source.used or {}, source and source.ahead or {}
      for i = 1, #used do
        local is_due = i % 3 == 0 and used[i] > -FOREVER
        limit.used[i] = is_due and source.block ~= limit.block and end_of_cell(limit, used[i] - 1) or used[i]
      end
      for i = 1, #ahead, 2 do
        local stop = source.block == limit.block and ahead[i]
          or end_of_cell(limit, math.min(ahead[i] - 1, state.current_due))
        put(limit.ahead, stop, ahead[i + 1])
      end
    end
    return limits
  end

  return limits
end

