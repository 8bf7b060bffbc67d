-- Inserts, changes, deletes and depends, all or nothing. It comes after tasks_changes.lua.
--
-- ARGV[5]  session, force, how many inserts, changes, deletes, depends; then the inserts (see `read_inserts`), and all
--          others (see `read_part`)

local function refuse(...)
  error({ refused = { ... } })
end

-- An insert: the id, flags, and the packed task, whose `at` is a delay, or with flag a an instant. Other flags: s: it
-- is left out if the id exists; d: it has a dedupe key; p: a priority; e: an error, and it is kept; w: it waits for others
-- to end; k: it has a key, whose line it replaces with r; i and a number: the limit of the inbox. Inserts without any of
-- these are prepared for writing at once, because there are many. Returns their ids, and all other inserts.
local function read_inserts(n)
  local ids, others, plain = {}, {}, 0
  local instants, last, start = pack('>i8i8', now, now), nil, nil
  for _ = 1, n do
    local id, flags, text = ARGV[at_argument + 1], ARGV[at_argument + 2], ARGV[at_argument + 3]
    at_argument = at_argument + 3
    local at, absolute = unpacked('>i8', text, 20), sub(flags, 1, 1) == 'a'
    if not absolute then at = now + at end
    if not fits(at) then out_of_range() end
    local packed_at = pack('>i8', at)
    text = sub(text, 1, 19) .. packed_at .. instants .. sub(text, 44)
    if flags == '' or flags == 'a' then
      local high, low = string.byte(text, 60, 61)  -- the length of its queue
      local queue = sub(text, SIZE + 1, SIZE + 256 * high + low)
      if queue ~= last then
        last, start = queue, prefix('r', queue)
        arrived[queue] = true
      end
      if at <= now + SOON then ready_in[queue] = true end
      plain = plain + 1
      ids[plain] = id
      sets[2 * plain - 1], sets[2 * plain] = id, text
      adds[2 * plain - 1], adds[2 * plain] = 0, start .. (at < 0 and '\0' or '\1') .. packed_at .. id
    else
      local insert = { id = id, row = decoded(id, text), inbox = tonumber(string.match(flags, 'i(%d+)')) }
      for flag in string.gmatch(flags, '%l') do insert[flag] = true end
      if insert.e then insert.row.errors = with_error('', insert.row.err, insert.row.attempt) end
      others[#others + 1] = insert
    end
  end
  return ids, others
end

-- Which of these ids exist.
local function existing_of(plain, others)
  local found, other_ids = {}, {}
  for i, insert in ipairs(others) do other_ids[i] = insert.id end
  for _, ids in ipairs({ plain, other_ids }) do
    local at = 0
    in_chunks(ids, function(...)
      local list = ask('HMGET', TASKS, ...)
      for i = 1, #list do
        if list[i] then found[ids[at + i]] = true end
      end
      at = at + #list
    end)
  end
  return found
end

-- The inserts that are not left out, and the tasks that exist instead of the others.
local function new_ones(inserts, known)
  local left, existing, taken = {}, {}, {}
  for _, insert in ipairs(inserts) do
    local first = insert.s and known[insert.id] and insert.id or nil
    if not first and insert.d then
      local name = sized(insert.row.queue) .. insert.row.dedupe
      local mark = mark_of(name)
      first = taken[name]
      if not first and mark and (not mark.ends or mark.ends > now) then first = mark.id end
      if not first then taken[name] = insert.id end
    end
    if first then
      existing[#existing + 1], existing[#existing + 2] = insert.id, first
    else
      left[#left + 1] = insert
    end
  end
  return left, existing
end

-- Check that every task exists at its version, and that nobody else has claimed it.
local function check(command, plain, others, known)
  local collisions, claims, twice = {}, {}, {}
  local failed = { changes = {}, deletes = {}, depends = {} }
  local function see(id)
    if known[id] or twice[id] then collisions[#collisions + 1] = id end
    twice[id] = true
  end
  for _, id in ipairs(plain) do see(id) end
  for _, insert in ipairs(others) do see(insert.id) end
  for _, kind in ipairs({ 'changes', 'deletes', 'depends' }) do
    local list = failed[kind]
    for _, part in ipairs(command[kind]) do
      local row = row_of(part.id)
      if not row or (row.version ~= part.version and not command.force) then
        list[#list + 1] = part.id
      elseif kind ~= 'depends' and not command.force then
        local mine = row.session == command.session
        if held(row) and not mine or part.k and not (held(row) and mine) then claims[#claims + 1] = part.id end
      end
    end
  end
  if #collisions + #claims + #failed.changes + #failed.deletes + #failed.depends > 0 then
    refuse(1, collisions, failed.changes, failed.deletes, failed.depends, claims)
  end
end

-- The tasks of a line that may be claimed: the first one; all of them might be where several may run at a time.
local function may_be_claimed(line)
  local found, last = { first_in(line) }, is_shared and last_in(line)
  if last and there(id_in(line, last)).per_key > 1 then found = all(line) end
  for i, member in ipairs(found) do found[i] = id_in(line, member) end
  fetch(found)
  for i, id in ipairs(found) do found[i] = there(id) end
  return found
end

-- Check that no inbox exceeds its limit; tasks that this command removes make room.
local function check_inboxes(command, inserts)
  local sizes, away = {}, {}
  local function by(queue, key, difference)
    local line = line_of(queue, key)
    sizes[line] = (sizes[line] or stored_count(line)) + difference
    return sizes[line]
  end
  local keyed = false
  for _, insert in ipairs(inserts) do keyed = keyed or insert.k end
  if not keyed then return end
  for _, delete in ipairs(command.deletes) do
    local row = rows[delete.id]
    away[row.id] = true
    if row.key then by(row.queue, row.key, -1) end
  end
  for _, part in ipairs(command.changes) do
    local row = rows[part.id]
    if row.key and part.q then
      away[row.id] = part.q ~= row.queue
      by(row.queue, row.key, -1)
      by(part.q, row.key, 1)
    end
  end
  for _, insert in ipairs(inserts) do
    local queue, key = insert.row.queue, insert.row.key
    local line = key and line_of(queue, key)
    if insert.r then
      sizes[line] = 0
      for _, row in ipairs(may_be_claimed(line)) do
        if held(row) and not away[row.id] then sizes[line] = sizes[line] + 1 end
      end
    elseif key and insert.inbox and by(queue, key, 0) - insert.row.per_key >= insert.inbox then
      -- Those that may be claimed don't count as waiting.
      refuse(2, queue, key, insert.inbox)
    end
    if key then by(queue, key, 1) end
  end
end

local function insert_one(insert)
  local row = insert.row
  arrived[row.queue] = true
  if row.dedupe then put_mark(sized(row.queue) .. row.dedupe, row.id, nil) end
  if row.key then
    local line = line_of(row.queue, row.key)
    if insert.r then
      local ids = {}
      for i, member in ipairs(all(line)) do ids[i] = id_in(line, member) end
      fetch(ids)
      for _, id in ipairs(ids) do
        local other = there(id)
        if not held(other) then
          leave_outcome(other, CANCELLED)
          remove(other, false)
        end
      end
    end
    to_the_end(row, line)
  end
  insert.waiting = row.waiting
  enter(row)
end

local function modify()
  local command = { session = argument(), force = argument() == '1' }
  local inserts, changes, deletes, depends = number(), number(), number(), number()
  local plain, others = read_inserts(inserts)
  command.changes, command.deletes = many(changes, read_part), many(deletes, read_part)
  command.depends = many(depends, read_part)
  local ids = {}
  for _, kind in ipairs({ 'changes', 'deletes', 'depends' }) do
    for _, part in ipairs(command[kind]) do ids[#ids + 1] = part.id end
  end
  fetch(ids)
  if #ids + #others > 0 then read_clock() end
  local known = existing_of(plain, others)
  local left, existing = new_ones(others, known)
  check(command, plain, left, known)
  check_inboxes(command, left)

  for _, part in ipairs(command.deletes) do
    local row = rows[part.id]
    if row then
      local mine = command.session ~= '' and row.session == command.session and not row.cancelled
      leave_outcome(row, mine and DONE or CANCELLED, part.o, command.session)
      remove(row, true)
    end
  end
  for _, part in ipairs(command.changes) do
    part.row = rows[part.id] or refuse(1, {}, { part.id }, {}, {}, {})  -- the command deletes it, too
    change(part.row, part, command.session)
    part.waiting = part.row.waiting
    part.text = not part.row.key and encoded(part.row)
  end
  for _, insert in ipairs(left) do insert_one(insert) end

  -- Later parts may have changed them again: the last of a line may be the first now. Only of tasks with a key, the
  -- answer tells that.
  local placed, after = {}, {}
  for _, insert in ipairs(left) do
    local row = insert.row
    if row.key then
      local waiting = insert.waiting
      if rows[row.id] then waiting = row.waiting end
      local n = #placed
      placed[n + 1], placed[n + 2], placed[n + 3] = row.id, row.place, waiting and 1 or 0
    end
  end
  for i, part in ipairs(command.changes) do
    if not rows[part.id] then part.row.waiting = part.waiting end
    after[2 * i - 1], after[2 * i] = part.id, part.text or encoded(part.row)
  end
  sweep_as_many()
  flush(inserts + changes > 0)
  return { 0, now, existing, placed, after }
end

return run(modify)
