-- Inserts, changes and removals of one task, with its line and its dedupe key. It comes after tasks_writes.lua.

-- --- lines of keys: new ones come at the end ---------------------------------------------------------

local function place_in(line, member)
  return (unpacked('>I4', member, #line + 1))
end

local passed = {}  -- line -> the last text that this command has removed from its start

local function first_in(line)
  while true do
    local page = ask('ZRANGEBYLEX', INDEX, passed[line] or '[' .. line, '(' .. line .. '\255', 'LIMIT', 0, 8)
    for _, member in ipairs(page) do
      if not gone[member] then return member end
      passed[line] = '(' .. member
    end
    if #page < 8 then break end
  end
  local found
  for member in pairs(fresh_in[line] or {}) do
    if not found or place_in(line, member) < place_in(line, found) then found = member end
  end
  return found
end

local ends = {}  -- line -> the last text that was added to it

local function last_in(line)
  if ends[line] and fresh[ends[line]] then return ends[line] end
  local found
  for member in pairs(fresh_in[line] or {}) do
    if not found or place_in(line, member) > place_in(line, found) then found = member end
  end
  local to = '(' .. line .. '\255'
  while not found do
    local page = ask('ZREVRANGEBYLEX', INDEX, to, passed[line] or '[' .. line, 'LIMIT', 0, 8)
    for _, member in ipairs(page) do
      if not gone[member] then return member end
      to = '(' .. member
    end
    if #page < 8 then break end
  end
  return found
end

-- The first texts of a line, by place.
local function some_in(line, limit)
  local found, from = {}, passed[line] or '[' .. line
  while #found < limit do
    local most = limit - #found
    local page = ask('ZRANGEBYLEX', INDEX, from, '(' .. line .. '\255', 'LIMIT', 0, most)
    for _, member in ipairs(page) do
      if not gone[member] then found[#found + 1] = member end
    end
    if #page < most then break end
    from = '(' .. page[most]
  end
  if #found < limit then
    local later = {}
    for member in pairs(fresh_in[line] or {}) do later[#later + 1] = member end
    table.sort(later, function(one, other) return place_in(line, one) < place_in(line, other) end)
    for i = 1, math.min(#later, limit - #found) do found[#found + 1] = later[i] end
  end
  return found
end

local function id_in(line, member)
  return sub(member, #line + 5)
end

-- --- marks ---------------------------------------------------------------------------------------------

local function mark_of(name)
  if marks[name] == nil then
    local text = ask('HGET', MARKS, name)
    marks[name] = false
    if text then
      if #text < 9 then corrupt('a mark is broken') end
      local ends, at, from = unpacked('>Bi8', text)
      marks[name] = { id = sub(text, from), ends = ends == 1 and at or nil }
    end
  end
  return marks[name]
end

-- The id of the task that has a dedupe key, and until when (nil: as long as the task exists); no id: it is free.
local function put_mark(name, id, ends)
  local before = mark_of(name)
  if before and before.ends then drop('m', 'm' .. stamp(before.ends) .. name) end
  if ends then add('m', 'm' .. stamp(ends) .. name) end
  marks[name], marks_changed[name] = id and { id = id, ends = ends } or false, true
end

-- Remove some of the marks that have ended, except those that this command uses.
local function sweep_marks(most)
  for _, member in ipairs(ask('ZRANGEBYLEX', INDEX, '[m', '(m' .. stamp(now + 1), 'LIMIT', 0, most)) do
    local name = sub(member, 11)
    if not gone[member] and not marks_changed[name] then
      local mark = mark_of(name)
      if mark and mark.ends then
        put_mark(name, nil, nil)
      else
        drop('m', member)
      end
    end
  end
end

-- More than this command adds: otherwise more marks may end than heartbeats remove.
local function sweep_as_many()
  local ended = 0
  for name in pairs(marks_changed) do
    if marks[name] and marks[name].ends then ended = ended + 1 end
  end
  if ended > 0 then sweep_marks(2 * ended) end
end

-- --- the clock -----------------------------------------------------------------------------------------

-- META records, to the second, what the server's clock reads; and when it was last set back, and by how much. Until the
-- clock has caught up, tasks that were written before the step go by the clock as it would read without it: `now` plus
-- `ahead`.
local SECOND = 1000000

local function set_back(by)
  for _, id in ipairs(ask('HKEYS', SESSIONS)) do
    local one = session_of(id)
    if one.beaten > now then put_session(id, with(one, 'beaten', now)) end
  end
  for _, member in ipairs(ask('ZRANGEBYLEX', INDEX, '[m' .. stamp(now + 1), '(n')) do
    local name = sub(member, 11)
    local mark = mark_of(name)
    if mark and mark.ends then put_mark(name, mark.id, mark.ends - by) end
  end
end

local function read_clock()
  if ARGV[2] ~= '' then return end
  local before, from, behind = string.match(ask('HGET', META, 'clock') or '0 0 0', '^(%d+) (%d+) (%d+)$')
  if not before then corrupt('what is known of the clock is broken') end
  before, from, behind = tonumber(before), tonumber(from), tonumber(behind)
  if now < before - SECOND then
    -- Tasks that waited before an earlier step wait for what is left of both steps.
    behind = before - now + (before < from + behind and behind or 0)
    from = now
    set_back(before - now)
  end
  if math.abs(now - before) > SECOND then clock_text = format('%.0f %.0f %.0f', now, from, behind) end
  if now < from + behind then ahead, since = behind, from end
end

-- --- what happens to one task ------------------------------------------------------------------------

-- Make the next task of a key claimable; or several, if a later task has raised how many may run at a time: the key's
-- last task decides that. Tasks behind one that waits wait, too.
local function feed(line)
  local first = 1
  if is_shared then
    local last = last_in(line)
    local row = last and there(id_in(line, last))
    if not row or not row.waiting then return end
    first = row.per_key
  end
  local members = first == 1 and { first_in(line) } or some_in(line, first)
  for i = #members, 1, -1 do
    local row = there(id_in(line, members[i]))
    if not row.waiting then break end
    leave(row)
    row.waiting, row.at = false, math.max(row.at, now)  -- behind all other keys that wait
    enter(row)
  end
end

local function to_the_end(row, line)
  local last = last_in(line)
  row.place, row.waiting = 1, false
  if last then
    row.place = place_in(line, last) + 1
    row.waiting = row.per_key == 1 or count(line) >= row.per_key or there(id_in(line, last)).waiting
  end
  ends[line] = line .. pack('>I4', row.place) .. row.id
end

local function remove(row, feeds)
  leave(row)
  rows[row.id], changed[row.id], departed[row.queue] = false, true, true
  if row.dedupe then put_mark(sized(row.queue) .. row.dedupe, row.id, now + row.dedupe_for) end
  if feeds and row.key and not row.waiting then feed(line_of(row.queue, row.key)) end
end

-- `by`: the session that changes the task.
local function change(row, part, by)
  local queue = part.q or row.queue
  local moves = queue ~= row.queue
  local keeps = part.k and not moves
  local attempt = part.t and tonumber(part.t) or row.attempt
  leave(row)
  if part.o and row.keep_for == 0 then row.errors, row.keep_for = errors_of(row), (kept_of(part.o)) end
  local tried = row.attempt - (row.begun and 1 or 0)
  if row.keep_for > 0 and part.e and part.e ~= '' and attempt > tried and row.session and not keeps then
    row.errors = with_error(row.errors, part.e, attempt)
  end
  row.version = row.version + 1
  row.json = part.j or row.json
  row.at = part.a and tonumber(part.a) or sooner(row)
  if part.d then row.at = now + tonumber(part.d) end
  row.attempt = attempt
  row.err = part.e or row.err
  if not keeps then
    row.session = nil
    row.alone = row.alone and not row.begun
    row.begun, row.cancelled = false, false
  end
  row.progress = part.g or row.progress
  row.priority = part.p and tonumber(part.p) or row.priority
  row.ends = keeps and part.l and now + tonumber(part.l) or nil
  row.modified = now
  if not moves then
    enter(row)
    return
  end
  if is_dead(queue) and not is_dead(row.queue) then
    leave_outcome(row, FAILED, part.o, by)
    row.follow_up = ''  -- it has ended, even if it is tried again
  end
  arrived[queue], departed[row.queue] = true, true
  if row.dedupe then  -- a dedupe key belongs to its queue
    put_mark(sized(row.queue) .. row.dedupe, row.id, now + row.dedupe_for)
    row.dedupe, row.dedupe_for = nil, 0
  end
  if row.key then
    -- It leaves the line of its key in one queue, and joins the end of that in the other.
    if not row.waiting then feed(line_of(row.queue, row.key)) end
    to_the_end(row, line_of(queue, row.key))
  end
  row.queue = queue
  enter(row)
end

local function many(count, read)
  local list = {}
  for i = 1, count do list[i] = read() end
  return list
end

-- A part: the id; flags with the version; then a value for each flag except x and k. x deletes the task. The others
-- change it: q queue, j value, a at, d delay, t attempt, e error, g progress, p priority; k keeps the claim, l for this long.
-- o, which x may have, too: what the end says about its outcome, see `kept_of`.
local function read_part()
  local id, change = argument(), argument()
  local first, second = string.byte(change, 1, 2)
  if first == 120 and second == 111 then
    return { id = id, version = tonumber(sub(change, 3)), x = true, o = argument() }
  end
  if first == 120 then return { id = id, version = tonumber(sub(change, 2)), x = true } end
  local part = { id = id }
  local flags, version = string.match(change, '^(%l*)(%-?%d+)$')
  part.version = tonumber(version)
  for i = 1, #flags do
    local flag = sub(flags, i, i)
    part[flag] = flag == 'k' or argument()
  end
  return part
end

