-- Settle claims, each on its own, and claim the next tasks, in one step. It comes after tasks_changes.lua.
--
-- ARGV[5]  session, limit, lease, most, idle, begins, how many have begun, how many are settled; the ids of the former,
--          the parts that settle the latter (see `read_part`); the queues in random order

local WINDOW = 16  -- a small claim begins at random with one of this many first tasks

-- --- plain tasks -------------------------------------------------------------------------------------
-- Most tasks are plain ones: a few parts of their texts are read and replaced, and they are never unpacked.

-- Differences of a queue's counters of claimed tasks and of claims, collected over one task after the other.
local run_queue, run_claims, run_length = nil, 0, 0
local function end_run()
  if run_queue and run_length ~= 0 then
    bump(prefix('h', run_queue), run_length)
    bump(claimed_so_often(run_queue, run_claims), run_length)
  end
  run_queue, run_length = nil, 0
end

-- What such a task leaves that is done: its outcome, if it is kept. False: it was cancelled, or is broken.
local function leave_plain(id, text, flags, attempt, created, queue, kept, one, to_err, err, to_extra)
  local keep_for, took, result = kept_of(kept)
  local own, errors, to_json = 0, '', to_extra
  if flags >= EXTRA then
    local extra_flags, follow_up, _
    extra_flags, _, own, errors, _, _, follow_up, to_json = extra_of(text, to_extra)
    if not extra_flags or extra_flags % 2 == 1 then return false end
    if follow_up ~= '' then one_less(id, follow_up) end
  end
  if own > 0 then keep_for = own end
  if keep_for == 0 then return true end
  local unused = bit.band(flags, AHEAD) > 0 and 1 or 0
  if err > 0 and own == 0 and errors == '' then
    errors = entry(0, attempt - 1 + unused, sub(text, to_err, to_err + err - 1))
  end
  put_outcome(
    id, DONE, attempt + unused, created, took, now + keep_for, one,
    queue, nil, result, errors, sub(text, to_json)
  )
  return true
end

-- Remove a task that the session has claimed, if it has no key, no dedupe key and no lease; else false.
local function remove_plain(id, version_asked, session, start, kept, one)
  local text = texts[id]
  if rows[id] ~= nil or not text or #text < SIZE then return false end
  local _, flags, version, _, claims, attempt, _, created, _, _, _,
    queue_size, _, session_size, err, dedupe = unpacked(HEAD, text)
  local from = SIZE + queue_size
  if bit.band(flags, FLAGS - AHEAD - ALONE - EXTRA) ~= SESSION or version ~= version_asked or claims < 1
    or from + session_size + err + dedupe > #text or sub(text, from + 1, from + session_size) ~= session then
    return false
  end
  local queue = sub(text, SIZE + 1, from)
  if kept or flags >= EXTRA then
    local to_err = from + session_size + 1
    local to_extra = to_err + err + dedupe
    if not leave_plain(id, text, flags, attempt, created, queue, kept, one, to_err, err, to_extra) then return false end
  end
  texts[id] = false
  unsets[#unsets + 1] = id
  drops[#drops + 1] = start .. prefix('', queue) .. id
  gone_n[start] = (gone_n[start] or 0) + 1
  departed[queue] = true
  if queue ~= run_queue or claims ~= run_claims then
    end_run()
    run_queue, run_claims = queue, claims
  end
  run_length = run_length - 1
  return true
end

-- Claim a free task and return its text. False: it isn't free, or not as the index says.
local function claim_plain(id, member, queue, session, ends, begins)
  local text = texts[id]
  if rows[id] ~= nil or not text or #text < SIZE then return false end
  local spread, flags, version, place, claims, attempt, at, created, _, _, dedupe_for,
    queue_size, key, session_size, err, dedupe = unpacked(HEAD, text)
  local from = SIZE + queue_size + key + 1
  if bit.band(flags, SESSION + UNTIL + AHEAD) > 0 or session_size > 0 or from + err + dedupe > #text + 1
    or version >= MAX_INTEGER or claims >= MAX_INTEGER or attempt >= MAX_INTEGER
    or member ~= prefix('r', queue) .. stamp(at) .. id or sub(text, SIZE + 1, SIZE + queue_size) ~= queue then
    return false
  end
  if claims > 0 then bump(claimed_so_often(queue, claims), -1) end
  if queue ~= run_queue or claims + 1 ~= run_claims then
    end_run()
    run_queue, run_claims = queue, claims + 1
  end
  run_length = run_length + 1
  local begun = begins > (bit.band(flags, ALONE) > 0 and 1 or 0)
  flags = flags + SESSION + (ends and UNTIL or 0) + (begun and 0 or AHEAD)
  return pack(
    HEAD, spread, flags, version + 1, place, claims + 1, attempt + (begun and 1 or 0), at, created, now,
    ends or 0, dedupe_for, queue_size, key, #session, err, dedupe
  ) .. sub(text, SIZE + 1, from - 1) .. session .. sub(text, from)
end

-- --- claims ------------------------------------------------------------------------------------------

-- Texts of the index of ready tasks with a priority, by instant: free ones, and those whose lease has ended.
local function ready_of(queue, priority, limit)
  local found, kinds, mixed = {}, 0, false
  for _, letter in ipairs({ 'r', 'l' }) do
    local start = lane(letter, queue, priority)
    local most = limit + (gone_n[start] or 0)
    local list = ask('ZRANGEBYLEX', INDEX, '[' .. start, '(' .. start .. stamp(now + 1), 'LIMIT', 0, most)
    local before = #found
    if before == 0 and (gone_n[start] or 0) == 0 then
      found = list
    else
      for _, member in ipairs(list) do
        if not gone[member] then found[#found + 1] = member end
      end
    end
    for member in pairs(fresh_in[start] or {}) do
      if instant_of(member, start) <= now then
        found[#found + 1], mixed = member, true
      end
    end
    if #found > before then kinds = kinds + 1 end
  end
  if mixed or kinds > 1 then
    local start, instants = lane('r', queue, priority), {}  -- the prefix of the other kind is as long
    for _, member in ipairs(found) do instants[member] = instant_of(member, start) end
    table.sort(found, function(one, other) return instants[one] < instants[other] end)
  end
  for i = #found, limit + 1, -1 do found[i] = nil end
  return found
end

local MINUTE = 60000000

-- Ready tasks in the order of intervalq/tasks/_spec/order.py: their texts of the index; and how many of the first ones
-- have the same priority.
local function ready(queue, limit)
  local occurs = { 0 }
  if is_ranked then
    local both = {}
    for _, letter in ipairs({ 'r', 'l' }) do
      for _, priority in ipairs(levels(letter, queue)) do both[priority] = true end
    end
    occurs = {}
    for priority = -9, 9 do
      if both[priority] then occurs[#occurs + 1] = priority end
    end
  end
  if #occurs == 1 then
    local found = ready_of(queue, 0, limit)
    return found, #found
  end
  local ranked = {}
  for _, priority in ipairs(occurs) do
    local start = lane('r', queue, priority)
    for n, member in ipairs(ready_of(queue, priority, limit)) do
      ranked[#ranked + 1] = { instant_of(member, start) - priority * MINUTE, priority, n, member }
    end
  end
  table.sort(ranked, function(one, other)
    for i = 1, 3 do
      if one[i] ~= other[i] then return one[i] < other[i] end
    end
    return false
  end)
  local found, run = {}, 0
  for i = 1, math.min(limit, #ranked) do
    found[i] = ranked[i][4]
    if run == i - 1 and ranked[i][2] == ranked[1][2] then run = i end
  end
  return found, run
end

-- Ready tasks, as texts of the index, and their queues: first an equal share of each queue, whatever its size, then
-- whatever else there is.
local function choose(queues, limit)
  local chosen, of, more_chosen, of_more = {}, {}, {}, {}
  if limit < 1 or #queues == 0 then return chosen, of end
  local share = math.ceil(limit / #queues)
  for i, queue in ipairs(queues) do
    local found, run = ready(queue, limit < WINDOW and limit + WINDOW or limit)
    local first = limit < WINDOW and (random + i) % (math.max(0, run - limit) + 1) or 0
    local last = math.min(limit, #found - first)
    for n = 1, math.min(share, last) do
      chosen[#chosen + 1], of[#of + 1] = found[first + n], queue
    end
    for n = share + 1, last do
      more_chosen[#more_chosen + 1], of_more[#of_more + 1] = found[first + n], queue
    end
    if #chosen >= limit then break end
  end
  for i, member in ipairs(more_chosen) do
    if #chosen >= limit then break end
    chosen[#chosen + 1], of[#of + 1] = member, of_more[i]
  end
  for i = #chosen, limit + 1, -1 do chosen[i] = nil end
  return chosen, of
end

-- The prefixes of a queue's free tasks and of its claims with a lease, of all priorities.
local function lanes(queue)
  local list = {}
  for _, letter in ipairs({ 'r', 'l' }) do
    for _, priority in ipairs(levels(letter, queue)) do list[#list + 1] = lane(letter, queue, priority) end
  end
  return list
end

-- Make tasks ready that were written before the clock was set back, and would be ready without that step: up to a
-- number of each queue.
local function catch_up(queues, limit)
  for _, queue in ipairs(queues) do
    for _, start in ipairs(lanes(queue)) do
      local left = limit
      local from, to = '[' .. start .. stamp(now + 1), '(' .. start .. stamp(now + ahead + 1)
      while left > 0 do
        local list, ids = ask('ZRANGEBYLEX', INDEX, from, to, 'LIMIT', 0, 100), {}
        for i, member in ipairs(list) do ids[i] = sub(member, #start + 10) end
        fetch(ids)
        for i, member in ipairs(list) do
          local row = left > 0 and not gone[member] and there(ids[i])
          if row and lag(row) > 0 then
            leave(row)
            row.at, row.ends = math.min(row.at, now), row.ends and math.min(row.ends, now)
            enter(row)
            left = left - 1
          end
        end
        if #list < 100 then break end
        from = '(' .. list[#list]
      end
    end
  end
end

local function claim_any(id, known_as, session, ends, begins)
  local row = there(id)
  local _, member = home(row)
  if row.session and row.ends then member = lane('l', row.queue, row.priority) .. stamp(row.ends) .. row.id end
  if member ~= known_as then corrupt('the index and a task differ about when it is ready') end
  leave(row)
  row.begun = begins > (row.alone and 1 or 0)
  row.version, row.claims, row.attempt = row.version + 1, row.claims + 1, row.attempt + (row.begun and 1 or 0)
  row.session, row.ends, row.modified = session, ends, now
  enter(row)
  return encoded(row)
end

-- Ids and texts of tasks after they were claimed.
local function claim(chosen, of, session, lease, begins)
  local ids, list, ends, n, start = {}, {}, lease and now + lease, 0, prefix('s', session)
  for i, member in ipairs(chosen) do
    local size = #prefix('r', of[i])
    ids[i] = sub(member, size + (string.byte(member, size + 1) == 2 and 12 or 10))
  end
  fetch(ids)
  for i, id in ipairs(ids) do
    local queue, member = of[i], chosen[i]
    local text = claim_plain(id, member, queue, session, ends, begins)
    if text then
      n = n + 2  -- nothing else has put anything here
      sets[n - 1], sets[n] = id, text
      adds[n - 1], adds[n] = 0, start .. prefix('', queue) .. id
      drops[#drops + 1] = member
      if ends then add(prefix('l', queue), prefix('l', queue) .. stamp(ends) .. id) end
    else
      text = claim_any(id, member, session, ends, begins)
    end
    list[2 * i - 1], list[2 * i] = id, text
  end
  end_run()
  return list
end

-- How long until the next task of these queues becomes ready; '': there is none.
local function wait_for(queues)
  local least
  for _, queue in ipairs(queues) do
    for _, start in ipairs(lanes(queue)) do
      local from, most = '[' .. start .. stamp(now + 1), 1 + (gone_n[start] or 0)
      for _, member in ipairs(ask('ZRANGEBYLEX', INDEX, from, '(' .. start .. '\2', 'LIMIT', 0, most)) do
        if not gone[member] then
          least = math.min(least or FOREVER, instant_of(member, start))
          break
        end
      end
      for member in pairs(fresh_in[start] or {}) do
        local instant = instant_of(member, start)
        if instant > now then least = math.min(least or FOREVER, instant) end
      end
    end
  end
  if least and ahead > 0 then return math.min(least - now, SOON) end
  return least and least - now or ''
end

-- How many tasks the sessions of a consumer have claimed.
local function held_by(consumer)
  local sum, flat = 0, ask('HGETALL', SESSIONS)
  for i = 1, #flat, 2 do
    local one = person(flat[i + 1]) or corrupt('a session is broken')
    if one.consumer == consumer then sum = sum + count(prefix('s', flat[i])) end
  end
  return sum
end

local function settle(parts, session, one)
  local ids, lost, start = {}, {}, prefix('s', session)
  for i, part in ipairs(parts) do ids[i] = part.id end
  fetch(ids)
  for _, part in ipairs(parts) do
    local done = part.x and remove_plain(part.id, part.version, session, start, part.o, one)
    local row = not done and row_of(part.id)
    if done then
      -- and there is no more to do
    elseif row and row.cancelled and row.session == session and not part.k then
      -- It ends the work on a cancelled task, whatever else it says of the task.
      if not part.x or row.version ~= part.version then lost[#lost + 1] = part.id end
      leave_outcome(row, CANCELLED, part.o)
      remove(row, true)
    elseif not row or row.version ~= part.version or row.session ~= session then
      lost[#lost + 1] = part.id
    elseif part.x then
      leave_outcome(row, DONE, part.o, session)
      remove(row, true)
    else
      change(row, part, session)
    end
  end
  end_run()
  return lost
end

-- Mark these claims of the session as begun, which changes nothing in the index.
local function note_begun(ids, session)
  fetch(ids)
  for _, id in ipairs(ids) do
    local row = row_of(id)
    if row and row.session == session and not row.begun then
      row.begun, row.attempt, changed[id] = true, row.attempt + 1, true
    end
  end
end

local function work()
  local session, limit, lease, most = argument(), number(), number(), number()
  local idle, begins, begun, settled = argument() == '1', number(), number(), number()
  begun = many(begun, argument)
  read_clock()
  local one = session_of(session)
  local lost = settle(many(settled, read_part), session, one)
  local claimed, wait, queues = {}, '', {}
  if one then
    for i = at_argument + 1, #ARGV do queues[#queues + 1] = ARGV[i] end
    if most and limit > 0 then limit = math.max(0, math.min(limit, most - held_by(one.consumer))) end
    note_begun(begun, session)
    if ahead > 0 and limit > 0 then catch_up(queues, limit) end
    local chosen, of = choose(queues, limit)
    claimed = claim(chosen, of, session, lease, begins)
    if #claimed < 2 * limit then wait = wait_for(queues) end
    local on = one.idle
    if #claimed > 0 then
      on = ''
    elseif idle then
      table.sort(queues)
      on = ''
      for _, queue in ipairs(queues) do on = on .. sized(queue) end
    end
    if on ~= one.idle then put_session(session, with(one, 'idle', on)) end
  end
  sweep_as_many()
  flush(false)
  return { 0, now, one and 1 or 0, lost, claimed, wait }
end

return run(work)
