-- The tables of durable tasks in Redis >= 6.2 or Valkey: the first part of every script about them.
--
-- The scripts repeat `apply` of intervalq/tasks/rules.py, which has the reasons; the conformance suite of task stores
-- compares the answers of both. Each kind of command has a script of its own, so that none loads more than it needs:
-- this part, tasks_outcomes.lua, tasks_writes.lua, tasks_changes.lua if tasks change, and
-- tasks_(modify|cancel|work|sessions|looks).lua.
--
-- Changes are collected here first, and written at the end of the command: the server doesn't roll back a script that
-- fails, so every read and every check comes before the first write.
--
-- KEYS[1]  intervalq:{tasks}:tasks     HASH  id -> a task, packed (see HEAD)
-- KEYS[2]  intervalq:{tasks}:index     ZSET  all scores 0; texts in the order of their bytes, by the first letter:
--            r LANE at id              free tasks                    c QUEUE claims      see `meta`
--            w QUEUE at id             tasks behind another          q queue             queues that have tasks
--            s SESSION QUEUE id        claimed tasks                 e lapse session     when sessions lapse
--            l LANE until id           claims with a lease           i QUEUE session     idle sessions
--            k QUEUE KEY place id      lines of keys                 m until MARK        marks that end
--            x SESSION id              claims that were cancelled      o day               see tasks_outcomes.lua
--            a ID until listener       who waits for outcomes        b until ID listener   the same by time
--          In capitals: two bytes of length, and the text. Instants are a sign and 8 bytes, places 4. A LANE is a
--          QUEUE; for tasks with a priority, also the byte 2, which no sign is, and the priority plus 64 as a byte.
-- KEYS[3]  intervalq:{tasks}:sessions  HASH  id -> a session, packed, and the queues that it is idle on
-- KEYS[4]  intervalq:{tasks}:marks     HASH  QUEUE dedupe key -> when it ends, and the id of the task
-- KEYS[5]  intervalq:{tasks}:meta      HASH  version; `h QUEUE`: how many tasks are claimed; `c QUEUE claims`: how
--                                            many tasks have this number of claims; `clock`: see `read_clock`;
--                                            `ranked`, `shared`: there are or were tasks with priorities, or keys of
--                                            which several tasks may run at a time; `outcomes`: the number of the
--                                            last command that left outcomes
--          The keys are few and declared, so a cluster that is moving their slot refuses a script (TRYAGAIN) before it
--          begins. With a key for each queue, one could be missing in the middle of a script.
--          Keys of outcomes follow: see tasks_outcomes.lua.
-- ARGV[1]  the command
-- ARGV[2]  the clock in microseconds; empty, outside of tests: that of the server
-- ARGV[3]  a random whole number
-- ARGV[4]  1: this is a cluster, whose other nodes may have listeners; else empty
-- ARGV[5]  and following: see the command. A flag is 1 or empty; a number that isn't given is empty.
-- Answer   { 0, now, ... }: see _task_codec.py; or
--          { 1, inserts, changes, deletes, depends, claims }, the ids of a DependencyError; or
--          { 2, queue, key, limit } of an InboxFull; or { 3, day, ... }: see tasks_outcomes.lua
-- Errors   CORRUPT (not our tables), NEWER (a newer layout), RANGE (a number that can't be stored)
-- Channel  intervalq:{tasks}:wake:SESSION gets an empty message when an idle session has something to claim, and
--          [[id, version], ...] as JSON when some of its claims are cancelled; that of a listener gets [id, ...] when
--          these tasks have left outcomes
--
-- Times are whole microseconds below 2^53, which a double holds exactly.

local FOREVER = 9007199254740991
local MAX_INTEGER = 4294967295
local LAYOUT = 7
local SOON = 5000000  -- idle sessions are woken for tasks that are ready within this time: later, they ask by themselves
local CHUNK = 2000    -- arguments per call of the server; Lua can't unpack many more

local TASKS, INDEX, SESSIONS, MARKS, META = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local now, random = tonumber(ARGV[2]), tonumber(ARGV[3])

local pack, unpacked, sub, format = struct.pack, struct.unpack, string.sub, string.format

local function corrupt(why)
  error({ err = 'CORRUPT ' .. why })
end

local function out_of_range()
  error({ err = 'RANGE a number would be more than a store can hold; nothing was done' })
end

-- Call a reading command, which also checks the type of the key.
local seen = {}
local function ask(command, key, ...)
  local reply = redis.pcall(command, key, ...)
  if type(reply) == 'table' and reply.err then
    if string.find(reply.err, 'WRONGTYPE', 1, true) then corrupt(key .. ' has another type') end
    error(reply)
  end
  seen[key] = true
  return reply
end

local function in_chunks(list, use)
  for first = 1, #list, CHUNK do use(unpack(list, first, math.min(first + CHUNK - 1, #list))) end
end

-- Whether this command also writes the version of the layout: there are no tables yet, or older ones. Everything in
-- layouts 1 to 6 is the same in layout 7, whose outcomes have numbers.
local is_ranked = false  -- whether there may be tasks with priorities
local is_shared, was_shared = false, false  -- whether several tasks of some keys may run at a time
local outcome_number  -- that of the last command that left outcomes
local function check_layout()
  local version, ranked, shared, outcomes = unpack(ask('HMGET', META, 'version', 'ranked', 'shared', 'outcomes'))
  is_ranked = ranked and true or false
  is_shared = shared and true or false
  was_shared = is_shared
  if not string.find(outcomes or '0', '^%d+$') then corrupt("'outcomes' must be a whole number") end
  outcome_number = tonumber(outcomes or 0)
  if version and not string.find(version, '^[1-9]%d*$') then corrupt("'version' must be a whole number") end
  if version and tonumber(version) > LAYOUT then
    error({ err = 'NEWER the tables of tasks have layout ' .. version .. ', not up to ' .. LAYOUT })
  end
  return tonumber(version) ~= LAYOUT
end

local is_other

local at_argument = 4
local function argument()
  at_argument = at_argument + 1
  return ARGV[at_argument]
end

local function number()
  return tonumber(argument())
end

-- --- texts of the index ----------------------------------------------------------------------------

local function sized(text)
  return pack('>I2', #text) .. text
end

local function stamp(instant)
  if instant < -FOREVER or instant > FOREVER then out_of_range() end
  return pack('>Bi8', instant < 0 and 0 or 1, instant)
end

-- The prefix of all texts of one kind about one thing.
local prefixes = { r = {}, w = {}, s = {}, l = {}, i = {}, c = {}, h = {}, x = {}, [''] = {} }
local function prefix(letter, name)
  local known = prefixes[letter]
  local text = known[name]
  if not text then
    text = letter .. sized(name)
    known[name] = text
  end
  return text
end

-- The prefix of free tasks ('r') or claims with a lease ('l') of a queue that have this priority.
local function lane(letter, queue, priority)
  local start = prefix(letter, queue)
  if priority == 0 then return start end
  return start .. '\2' .. string.char(64 + priority)
end

-- The field of META, and the text of the index, for tasks of a queue with this number of claims.
local often = {}
local function claimed_so_often(queue, claims)
  local names = often[queue]
  if not names then
    names = {}
    often[queue] = names
  end
  local name = names[claims]
  if not name then
    name = prefix('c', queue) .. pack('>I4', claims)
    names[claims] = name
  end
  return name
end

local function line_of(queue, key)
  return 'k' .. sized(queue) .. sized(key)
end

local function instant_of(member, start)
  local _, instant = unpacked('>Bi8', member, #start + 1)
  return instant
end

-- What this command removes from the index and adds to it; also by prefix, to be counted and found.
local gone, gone_n = {}, {}
local fresh, fresh_n, fresh_in = {}, {}, {}

local function drop(start, member)
  if fresh[member] then
    fresh[member], fresh_in[start][member] = nil, nil
    fresh_n[start] = fresh_n[start] - 1
  else
    gone[member] = true
    gone_n[start] = (gone_n[start] or 0) + 1
  end
end

local function add(start, member)
  if gone[member] then
    gone[member] = nil
    gone_n[start] = gone_n[start] - 1
    return
  end
  fresh[member] = true
  local there = fresh_in[start]
  if not there then
    there = {}
    fresh_in[start], fresh_n[start] = there, 0
  end
  there[member] = true
  fresh_n[start] = fresh_n[start] + 1
end

-- The priorities that occur among tasks of a queue in this part of the index, and 0.
local function levels(letter, queue)
  local found = { 0 }
  if not is_ranked then return found end
  local start, occurs = prefix(letter, queue) .. '\2', {}
  local from = '[' .. start
  while true do
    local first = ask('ZRANGEBYLEX', INDEX, from, '(' .. prefix(letter, queue) .. '\3', 'LIMIT', 0, 1)[1]
    if not first then break end
    local letter = sub(first, #start + 1, #start + 1)
    occurs[string.byte(letter) - 64] = true
    from = '[' .. start .. string.char(string.byte(letter) + 1)
  end
  for other in pairs(fresh_in) do
    if #other == #start + 1 and sub(other, 1, #start) == start and next(fresh_in[other]) then
      occurs[string.byte(other, -1) - 64] = true
    end
  end
  for priority = -9, 9 do
    if occurs[priority] then found[#found + 1] = priority end
  end
  return found
end

local function stored_count(start)
  return ask('ZLEXCOUNT', INDEX, '[' .. start, '(' .. start .. '\255')
end

local function count(start)
  return stored_count(start) - (gone_n[start] or 0) + (fresh_n[start] or 0)
end

-- All texts with this prefix, as they are now; new ones come last.
local function all(start)
  local list = {}
  for _, member in ipairs(ask('ZRANGEBYLEX', INDEX, '[' .. start, '(' .. start .. '\255')) do
    if not gone[member] then list[#list + 1] = member end
  end
  for member in pairs(fresh_in[start] or {}) do list[#list + 1] = member end
  return list
end

-- Counters in META: the differences that this command makes.
local more = {}
local function bump(name, by)
  more[name] = (more[name] or 0) + by
end

-- --- tasks -----------------------------------------------------------------------------------------

-- Spread (two bytes of the id's MD5, see `rest`), flags, version, place, claims, attempt, at, created, modified,
-- until, dedupe_for, the lengths of queue, key, session, error and dedupe key. Then these texts; with the flag EXTRA, 1
-- if it is cancelled, plus twice its priority modulo 32, plus KEPT if for how long to keep its outcome and the length and
-- text of the errors of its attempts follow, plus JOINED if after these its `per_key` and `awaits` follow and the length
-- and text of its `follow_up`; and the length and text of its progress; then the value.
local HEAD, SIZE = '>I2BI4I4I4I4i8i8i8i8i8I2I2I2I4I2', 71
local KEY, WAITING, SESSION, UNTIL, DEDUPE, AHEAD, ALONE, EXTRA = 1, 2, 4, 8, 16, 32, 64, 128
local KEPT, JOINED = 64, 128
local FLAGS = 255  -- AHEAD: it is claimed, and has not begun; in layout 1, each claim was an attempt

-- The fields that the flag EXTRA adds: its own flags, progress, keep_for, errors, per_key, awaits, follow_up, and where
-- the value begins. nil: they are broken.
local function extra_of(text, at)
  if at + 4 > #text then return nil end
  local extra_flags, size, start = unpacked('>BI4', text, at)
  at = start + size
  local progress, keep_for, errors, per_key, awaits, follow_up = sub(text, start, at - 1), 0, '', 1, 0, ''
  if extra_flags % JOINED >= KEPT then
    if at + 11 > #text then return nil end
    keep_for, size, start = unpacked('>i8I4', text, at)
    at = start + size
    errors = sub(text, start, at - 1)
  end
  if extra_flags >= JOINED then
    if at + 9 > #text then return nil end
    per_key, awaits, size, start = unpacked('>I4I4I2', text, at)
    at = start + size
    follow_up = sub(text, start, at - 1)
  end
  return extra_flags, progress, keep_for, errors, per_key, awaits, follow_up, at
end

local function decoded(id, text)
  if #text < SIZE then corrupt('a task is too short') end
  local spread, flags, version, place, claims, attempt, at, created, modified, ends, dedupe_for,
    queue, key, session, err, dedupe, from = unpacked(HEAD, text)
  local to_key = from + queue
  local to_session = to_key + key
  local to_err = to_session + session
  local to_dedupe = to_err + err
  local to_extra = to_dedupe + dedupe
  local band = bit.band
  local extra_flags, progress, keep_for, errors, per_key, awaits, follow_up, to_json = 0, '', 0, '', 1, 0, '', to_extra
  if band(flags, EXTRA) > 0 then
    extra_flags, progress, keep_for, errors, per_key, awaits, follow_up, to_json = extra_of(text, to_extra)
    if not extra_flags then corrupt('a task is too short') end
  end
  if to_json > #text + 1 then corrupt('a task is broken') end
  return {
    id = id, spread = spread, version = version, place = place, claims = claims, attempt = attempt, at = at,
    created = created, modified = modified, dedupe_for = dedupe_for,
    waiting = band(flags, WAITING) > 0,
    begun = band(flags, SESSION + AHEAD) == SESSION,
    alone = band(flags, ALONE) > 0,
    cancelled = extra_flags % 2 == 1, progress = progress, priority = (math.floor(extra_flags / 2) + 16) % 32 - 16,
    keep_for = keep_for, errors = errors, per_key = per_key, follow_up = follow_up, awaits = awaits,
    ends = band(flags, UNTIL) > 0 and ends or nil,
    queue = sub(text, from, to_key - 1),
    key = band(flags, KEY) > 0 and sub(text, to_key, to_session - 1) or nil,
    session = band(flags, SESSION) > 0 and sub(text, to_session, to_err - 1) or nil,
    err = sub(text, to_err, to_dedupe - 1),
    dedupe = band(flags, DEDUPE) > 0 and sub(text, to_dedupe, to_extra - 1) or nil,
    json = sub(text, to_json),
  }
end

local function fits(instant)
  return instant >= -FOREVER and instant <= FOREVER
end

local function encoded(row)
  local key, session, dedupe, ends = row.key, row.session, row.dedupe, row.ends
  if row.version > MAX_INTEGER or row.place > MAX_INTEGER or row.claims > MAX_INTEGER
    or row.attempt > MAX_INTEGER or row.attempt < 0
    or not (fits(row.at) and fits(row.modified) and fits(row.dedupe_for) and fits(ends or 0)) then
    out_of_range()
  end
  local flags = (key and KEY or 0) + (row.waiting and WAITING or 0) + (session and SESSION or 0)
    + (ends and UNTIL or 0) + (dedupe and DEDUPE or 0)
    + (session and not row.begun and AHEAD or 0) + (row.alone and ALONE or 0)
  key, session, dedupe = key or '', session or '', dedupe or ''
  local extra = ''
  local is_kept = row.keep_for ~= 0 or row.errors ~= ''
  local is_joined = row.per_key ~= 1 or row.awaits ~= 0 or row.follow_up ~= ''
  if row.cancelled or row.progress ~= '' or row.priority ~= 0 or is_kept or is_joined then
    flags = flags + EXTRA
    local extra_flags = (row.cancelled and 1 or 0) + 2 * (row.priority % 32) + (is_kept and KEPT or 0)
      + (is_joined and JOINED or 0)
    extra = pack('>BI4', extra_flags, #row.progress) .. row.progress
    if is_kept then extra = extra .. pack('>i8I4', row.keep_for, #row.errors) .. row.errors end
    if is_joined then
      extra = extra .. pack('>I4I4I2', row.per_key, row.awaits, #row.follow_up) .. row.follow_up
    end
  end
  return pack(
    HEAD, row.spread, flags, row.version, row.place, row.claims, row.attempt, row.at, row.created, row.modified,
    ends or 0, row.dedupe_for, #row.queue, #key, #session, #row.err, #dedupe
  ) .. row.queue .. key .. session .. row.err .. dedupe .. extra .. row.json
end

local texts = {}     -- id -> a task as it is stored; false: there is none; nil: it was not read
local rows = {}      -- id -> the task as it is now, if it was unpacked; false: there is none
local changed = {}   -- id -> true, for each of `rows` that is to be written
local arrived, departed = {}, {}  -- queues that got tasks, and queues that lost some
local ready_in = {}               -- queues in which something became ready

-- What to write about tasks that nothing else in this command concerns, which are the most: ids with texts, ids to
-- remove, and texts of the index, each after its score.
local sets, unsets, adds, drops = {}, {}, {}, {}

local function fetch(ids)
  local missing, at = {}, 0
  for _, id in ipairs(ids) do
    if texts[id] == nil then
      texts[id] = false
      missing[#missing + 1] = id
    end
  end
  in_chunks(missing, function(...)
    local list = ask('HMGET', TASKS, ...)
    for i = 1, #list do texts[missing[at + i]] = list[i] end
    at = at + #list
  end)
end

local function row_of(id)
  if rows[id] == nil then
    if texts[id] == nil then fetch({ id }) end
    local text = texts[id]
    rows[id] = text and decoded(id, text)
  end
  return rows[id]
end

-- A task that the index names.
local function there(id)
  return row_of(id) or corrupt('the index names a task that is not there')
end

-- By how much the clock was set back since a task was written; 0 once it has caught up: see `read_clock`. The task
-- becomes ready that much sooner.
local ahead, since = 0, 0
local function lag(row)
  return (row.modified < since or row.modified > now) and ahead or 0
end

local function held(row)
  return row.session and (not row.ends or row.ends > now + lag(row))
end

local function sooner(row)
  return row.at > now and row.at - lag(row) or row.at
end

-- Its text in the index: each task has one, of three kinds.
local function home(row)
  if row.session then
    local start = prefix('s', row.session)
    return start, start .. sized(row.queue) .. row.id
  end
  local start = row.waiting and prefix('w', row.queue) or lane('r', row.queue, row.priority)
  return start, start .. stamp(row.at) .. row.id
end

local function each_text(row, use, by)
  use(home(row))
  if row.session then
    bump(prefix('h', row.queue), by)
    if row.ends then
      local start = lane('l', row.queue, row.priority)
      use(start, start .. stamp(row.ends) .. row.id)
    end
    if row.cancelled then use(prefix('x', row.session), prefix('x', row.session) .. row.id) end
  end
  if row.key then
    local start = line_of(row.queue, row.key)
    use(start, start .. pack('>I4', row.place) .. row.id)
  end
  if row.claims > 0 then bump(claimed_so_often(row.queue, row.claims), by) end
end

-- Called before a task changes, and after.
local function leave(row)
  each_text(row, drop, -1)
end

local function enter(row)
  each_text(row, add, 1)
  rows[row.id], changed[row.id] = row, true
  if row.priority ~= 0 then is_ranked = true end
  if row.key and row.per_key ~= 1 then is_shared = true end
end

-- A task ends: its follow-up waits for one less, and after the last one it can be claimed.
local function one_less(id, follow_up)
  local row = follow_up ~= id and row_of(follow_up)
  if not row or row.awaits == 0 then return end
  row.awaits, changed[follow_up] = row.awaits - 1, true
  if row.awaits == 0 then
    leave(row)
    row.waiting, row.at = false, math.max(row.at, now)
    enter(row)
  end
end

-- The claims of a session, in all queues.
local function of_session(id)
  local start, ids = prefix('s', id), {}
  for _, member in ipairs(all(start)) do
    local size, from = unpacked('>I2', member, #start + 1)
    ids[#ids + 1] = sub(member, from + size)
  end
  fetch(ids)
  local found = {}
  for i, each in ipairs(ids) do
    found[i] = there(each)
    if found[i].session ~= id then corrupt('the index and a task differ about who has it') end
  end
  return found
end

-- --- sessions ------------------------------------------------------------------------------------------

local PERSON = '>i8i8i8i8I2I2'  -- pid, expiry, started, beaten, lengths of host and consumer; then these, and `idle`
local sessions, sessions_changed = {}, {}
local marks, marks_changed = {}, {}  -- see tasks_changes.lua

local function person(text)
  if #text < 36 then return nil end
  local pid, expiry, started, beaten, host, consumer, from = unpacked(PERSON, text)
  if from + host + consumer > #text + 1 then return nil end
  return {
    pid = pid, expiry = expiry, started = started, beaten = beaten,
    host = sub(text, from, from + host - 1),
    consumer = sub(text, from + host, from + host + consumer - 1),
    idle = sub(text, from + host + consumer),
  }
end

local function person_text(one)
  if not (fits(one.pid) and fits(one.expiry) and fits(one.started)) then out_of_range() end
  return pack(PERSON, one.pid, one.expiry, one.started, one.beaten, #one.host, #one.consumer)
    .. one.host .. one.consumer .. one.idle
end

local function session_of(id)
  if sessions[id] == nil then
    local text = ask('HGET', SESSIONS, id)
    sessions[id] = text and (person(text) or corrupt('a session is broken'))
  end
  return sessions[id]
end

-- Call a function for each of the queues that a session is idle on.
local function each_idle(id, idle, use)
  local at = 1
  while at + 1 <= #idle do
    local size, from = unpacked('>I2', idle, at)
    local start = 'i' .. sub(idle, at, from + size - 1)
    use(start, start .. id)
    at = from + size
  end
end

local function lapse_text(id, one)
  return 'e' .. stamp(one.beaten + one.expiry) .. id
end

-- Set the new state of a session; false: it is gone.
local function put_session(id, after)
  local before = session_of(id)
  if before then
    drop('e', lapse_text(id, before))
    each_idle(id, before.idle, drop)
  end
  if after then
    add('e', lapse_text(id, after))
    each_idle(id, after.idle, add)
  end
  sessions[id], sessions_changed[id] = after, true
end

local function with(one, field, value)
  local copy = {}
  for name, each in pairs(one) do copy[name] = each end
  copy[field] = value
  return copy
end
