-- Outcomes of kept tasks, in two keys for each day on which they expire. It comes after tasks_table.lua.
--
-- KEYS[6] and following, for each DAY (counted from 1970) that the command may be about:
--          intervalq:{tasks}:outcomes:DAY  HASH  id -> all outcomes of a task, packed (see OUTCOME), the last one last
--          intervalq:{tasks}:ended:DAY     LIST  ids, in the order in which the tasks ended
--          Which days a command is about depends on its tasks. If a day's keys are not declared, nothing is done, and
--          the answer is { 3, day, ... }: the client sends the command again with the keys of these days.
--
-- A day is dropped by the first heartbeat after it. If there is none, the server removes its keys a day later.

local DAY, DONE, FAILED, CANCELLED = 86400000000, 0, 1, 2
local BETWEEN, MAX_ERRORS = '\30', 32000
-- State, plus 4 if it has a key, plus NUMBERED if it has a number; attempts, created, started, ended, until, pid; the
-- lengths of queue, key, host, result, errors and value; the number, which rises from command to command, and which
-- outcomes of layouts up to 6 don't have; and these texts.
local OUTCOME, OUTCOME_SIZE, NUMBERED = '>BI4i8i8i8i8i8I2I2I2I4I4I4', 63, 8
local OUTCOME_NOW = OUTCOME .. 'i8'

local declared = {}
for i = 6, #KEYS do declared[KEYS[i]] = true end

-- The keys of a day.
local function of_day(day)
  local base, number = sub(TASKS, 1, -6), format('%.0f', day)
  return base .. 'outcomes:' .. number, base .. 'ended:' .. number
end

local function day_of(instant)
  return math.floor(instant / DAY)
end

-- End the command, which has written nothing yet, unless the keys of these days are declared.
local function need(days)
  for _, day in ipairs(days) do
    if not declared[(of_day(day))] then error({ refused = { 3, unpack(days) } }) end
  end
end

-- The days for which there may be outcomes, up to one before `before`; nil: all.
local function outcome_days(before)
  local days = ask('ZRANGEBYLEX', INDEX, '[o', before and '(o' .. stamp(before) or '(p')
  for i, member in ipairs(days) do days[i] = instant_of(member, 'o') end
  return days
end

-- --- errors of attempts --------------------------------------------------------------------------------

local function entry(at, attempt, err)
  return format('%.0f %.0f ', at, attempt) .. err
end

local function with_error(errors, err, attempt)
  if #errors >= MAX_ERRORS then  -- characters count, not bytes
    local _, characters = string.gsub(errors, '[^\128-\191]', '')
    if characters >= MAX_ERRORS then return errors end
  end
  return errors .. (errors == '' and '' or BETWEEN) .. entry(now, attempt, err)
end

local function errors_of(row)
  if row.errors ~= '' or row.keep_for > 0 or row.err == '' then return row.errors end
  return entry(0, row.attempt - (row.begun and 1 or 0), row.err)
end

-- --- what a command leaves -------------------------------------------------------------------------------

local leaving = {}   -- day -> the ids of tasks that leave outcomes in it; and these with the outcomes, in turns
local swept = {}  -- days to drop

local function is_dead(queue)
  return sub(queue, -5) == '.dead'
end

-- What an end says about the outcome: for how long to keep it, for how long the work went on, and its result.
local function kept_of(text)
  if not text then return 0, 0, '' end
  local keep_for, took, from = unpacked('>i8i8', text)
  return keep_for, took, from > #text and '' or sub(text, from)
end

-- Leave an outcome until `ends`. `one`: the session that ended the task; nil: none did.
local function put_outcome(id, state, attempts, created, took, ends, one, queue, key, result, errors, json)
  if attempts > MAX_INTEGER or not fits(ends) then out_of_range() end
  local host = one and one.host or ''
  local text = pack(
    OUTCOME_NOW, state + (key and 4 or 0) + NUMBERED, attempts, created, took > 0 and now - took or 0, now, ends,
    one and one.pid or 0, #queue, key and #key or 0, #host, #result, #errors, #json, outcome_number + 1
  ) .. queue .. (key or '') .. host .. result .. errors .. json
  local day = day_of(ends)
  local those = leaving[day]
  if not those then
    those = { ids = {}, pairs = {} }
    leaving[day] = those
  end
  local n = #those.ids + 1  -- a command ends a task once
  those.ids[n], those.pairs[2 * n - 1], those.pairs[2 * n] = id, id, text
end

-- A task ends: leave its outcome, if it is kept. `by`: the session that ended it, if any.
local function leave_outcome(row, state, kept, by)
  if row.follow_up ~= '' then one_less(row.id, row.follow_up) end
  local keep_for, took, result = kept_of(kept)
  if row.keep_for > 0 then keep_for = row.keep_for end
  if keep_for == 0 or state == CANCELLED and is_dead(row.queue) then return end
  local one = by and by ~= '' and state ~= CANCELLED and session_of(by) or nil
  local attempts = row.attempt + (state == DONE and not row.begun and 1 or 0)
  put_outcome(
    row.id, state, attempts, row.created, took, now + keep_for, one, row.queue, row.key,
    state == DONE and result or '', errors_of(row), row.json
  )
end

-- Drop the days that are over.
local function sweep_outcomes()
  swept = outcome_days(day_of(now))
  need(swept)
  for _, day in ipairs(swept) do drop('o', 'o' .. stamp(day)) end
end

-- Before the first write: read the outcomes that these tasks already have on the same days.
local function join_outcomes()
  local days = {}
  for day in pairs(leaving) do days[#days + 1] = day end
  need(days)
  for day, those in pairs(leaving) do
    local outcomes, ended = of_day(day)
    local at = 0
    in_chunks(those.ids, function(...)
      local list = ask('HMGET', outcomes, ...)
      for i = 1, #list do
        local n = 2 * (at + i)
        if list[i] then those.pairs[n] = list[i] .. those.pairs[n] end
      end
      at = at + #list
    end)
    ask('LLEN', ended)
    add('o', 'o' .. stamp(day))
  end
end

local function write_outcomes()
  for day, those in pairs(leaving) do
    local outcomes, ended = of_day(day)
    in_chunks(those.pairs, function(...) redis.call('HSET', outcomes, ...) end)
    in_chunks(those.ids, function(...) redis.call('RPUSH', ended, ...) end)
    local life = format('%.0f', math.ceil(((day + 2) * DAY - now) / 1000))
    redis.call('PEXPIRE', outcomes, life)
    redis.call('PEXPIRE', ended, life)
  end
  for _, day in ipairs(swept) do redis.call('UNLINK', of_day(day)) end
end

-- --- who waits for them --------------------------------------------------------------------------------

-- Those who wait for the outcome of a task, each with a function that forgets it.
local function each_awaiting(id, use)
  local start = 'a' .. sized(id)
  for _, member in ipairs(redis.call('ZRANGEBYLEX', INDEX, '[' .. start, '(' .. start .. '\255')) do
    local ends, who = sub(member, #start + 1, #start + 9), sub(member, #start + 10)
    use(who, function() redis.call('ZREM', INDEX, member, 'b' .. ends .. sized(id) .. who) end)
  end
end

-- Notify them of what this command has left, nobody twice.
local function notify()
  if not next(leaving) or #redis.call('ZRANGEBYLEX', INDEX, '[b', '(c', 'LIMIT', 0, 1) == 0 then return end
  local notified = {}
  for _, those in pairs(leaving) do
    for _, id in ipairs(those.ids) do
      each_awaiting(id, function(who, forget)
        forget()
        local ids = notified[who] or {}
        notified[who] = ids
        ids[#ids + 1] = id
      end)
    end
  end
  for who, ids in pairs(notified) do redis.pcall('PUBLISH', sub(TASKS, 1, -6) .. 'wake:' .. who, cjson.encode(ids)) end
end
