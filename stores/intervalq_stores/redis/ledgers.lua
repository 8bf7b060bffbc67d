-- One command on one ledger: repeats `apply` of intervalq/ledger/rules.py, which has the reasons, for Redis >= 6.2 and
-- Valkey. The conformance suite of ledgers compares the answers of both.
--
-- The whole command is one atomic step: every read and every check comes before the first write, because the server
-- doesn't roll back a script that fails.
--
-- KEYS[1]  intervalq:{LEDGER}:ledger:meta      HASH  version, created, cancelled (0 or 1), done, failed (how
--                                                    many rows), and expires, if it does
-- KEYS[2]  intervalq:{LEDGER}:ledger:sessions  ZSET  session -> when it lapses
-- KEYS[3]  intervalq:{LEDGER}:ledger:open      HASH  row key -> c or s, ATTEMPT:AT:SESSION
-- KEYS[4]  intervalq:{LEDGER}:ledger:rows      HASH  row key -> d or f, ATTEMPT:AT:VALUE
--          Ended rows are kept apart from open ones, so that counting only reads the open ones. Which session ended
--          a row is not kept: no answer depends on it. The four keys expire at the same instant.
--          While a cluster moves their slot to another node, it may refuse a command (TRYAGAIN) for a moment.
-- ARGV[1]  the command: claim, start, record, release, beat, leave, cancel, expire, forget, look, count, drop
-- ARGV[2]  the server's clock in microseconds; empty, outside of tests: TIME
-- ARGV[3]  and following, by command:
--            claim    session, expiry, started, again, KEYS            flags are 0 or 1
--            start    session, expiry, KEYS
--            record   session, expiry, KEYS, a flag of each (failed), VALUE...
--            release  session, KEYS
--            beat     session, expiry
--            leave    session
--            cancel   on
--            expire   at, or empty
--            forget   the kinds to remove, separated by commas, then KEYS
--            look     cursor, limit
--          KEYS is a JSON array: clients spend much of their time on arguments and answers.
-- Answer   { now, found, cancelled, removed, verdicts, rows, cursor, summary }
--            verdicts  kind, attempt, failed, value of each row, or of one if they are the same for all;
--                      kinds are mine, known, busy, unknown, and `kept`: known, and this `record` wrote it
--            rows      key as JSON (clients distrust texts that look like an answer), how it is shown, attempt, value,
--                      at of each
--            summary   created, expires or '', done, failed, claimed, started, unknown, sessions
-- Errors   CORRUPT (not our ledger), NEWER (a newer layout), RANGE (a number that can't be stored)
--
-- Times are whole microseconds. Numbers are doubles, exact to 2^53, and are returned as RESP integers or as '%.0f'.

local FOREVER = 9007199254740991
local LAYOUT = 1
local META, SESSIONS, OPEN, ROWS = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local MAKES = { claim = true, record = true, beat = true }
local RENEWS = { claim = true, start = true, record = true, beat = true }

local function corrupt(why)
  error({ err = 'CORRUPT ' .. why })
end

-- Call a reading command.
local function ask(...)
  local reply = redis.pcall(...)
  if type(reply) == 'table' and reply.err then
    if string.find(reply.err, 'WRONGTYPE', 1, true) then corrupt('a key has another type') end
    error(reply)
  end
  return reply
end

local function whole(text, name)
  if not text or #text > 17 or not string.find(text, '^-?%d+$') then
    corrupt("'" .. name .. "' must be a whole number")
  end
  return tonumber(text)
end

local function written(number)
  if number < -FOREVER or number > FOREVER then
    error({ err = 'RANGE a time would be more than a store can hold' })
  end
  return string.format('%.0f', number)
end

-- The maximum number of arguments in one call of the server.
local function in_parts(list, step, use)
  for i = 1, #list, step do use(i, math.min(i + step - 1, #list)) end
end

-- --- the ledger ------------------------------------------------------------------------------------

-- Its fields; nil: there is no such ledger.
local function read_meta()
  local flat = ask('HGETALL', META)
  if #flat == 0 then return nil end
  local found = {}
  for i = 1, #flat, 2 do found[flat[i]] = flat[i + 1] end
  local version = whole(found.version, 'version')
  if version < 1 then corrupt("'version' is out of range") end
  if version > LAYOUT then
    error({ err = string.format('NEWER the ledger has layout %.0f, not up to %d', version, LAYOUT) })
  end
  return {
    created = whole(found.created, 'created'),
    expires = found.expires and whole(found.expires, 'expires'),
    cancelled = whole(found.cancelled, 'cancelled'),
    done = whole(found.done, 'done'),
    failed = whole(found.failed, 'failed'),
  }
end

local STAGES = { c = 'claimed', s = 'started', d = 'done', f = 'failed' }

local function row_of(text, ended)
  local letter, attempt, at, rest = string.match(text, '^([csdf])(%d+):(%-?%d+):(.*)$')
  if not letter or (letter == 'd' or letter == 'f') ~= ended then corrupt('a row is broken') end
  local row = { stage = STAGES[letter], attempt = tonumber(attempt), at = tonumber(at), ended = ended }
  if ended then row.value = rest else row.session = rest end
  return row
end

local now = tonumber(ARGV[2])
local step = { changed = {}, changes = 0 }  -- what this command changes; it is written at the end
local rows = {}                             -- row key -> row, or false, for all keys that the command names
local live = {}                             -- session -> whether it is alive

local function read_rows(keys)
  in_parts(keys, 1000, function(first, last)
    local open = ask('HMGET', OPEN, unpack(keys, first, last))
    local ended = ask('HMGET', ROWS, unpack(keys, first, last))
    for i = first, last do
      local mine, over = open[i - first + 1], ended[i - first + 1]
      rows[keys[i]] = over and row_of(over, true) or mine and row_of(mine, false) or false
    end
  end)
end

local function is_live(session)
  if live[session] == nil then
    local lapse = ask('ZSCORE', SESSIONS, session)
    live[session] = lapse and tonumber(lapse) > now or false
  end
  return live[session]
end

-- Set the row of a key; false: remove it.
local function put(key, row)
  if step.changed[key] == nil then
    step.changed[key] = rows[key]  -- as it is stored
    step.changes = step.changes + 1
  end
  rows[key] = row
end

-- --- the rules -------------------------------------------------------------------------------------

local function verdict(list, kind, attempt, failed, value)
  local n = #list
  list[n + 1], list[n + 2], list[n + 3], list[n + 4] = kind, attempt or 0, failed or 0, value or ''
end

-- The verdict about a row for a session that doesn't hold it; false: it may be claimed.
local function judged(list, row, again)
  if row.ended then
    verdict(list, 'known', row.attempt, row.stage == 'failed' and 1 or 0, row.value)
  elseif is_live(row.session) then
    verdict(list, 'busy', row.attempt)
  elseif row.stage == 'started' and not again then
    verdict(list, 'unknown', row.attempt)
  else
    return false
  end
  return true
end

local function claim(list, key, command, cancelled)
  local row = rows[key]
  if row and row.session == command.session and not row.ended then
    verdict(list, 'mine', row.attempt)
  elseif row and judged(list, row, command.again) then
    return
  elseif cancelled then
    verdict(list, 'busy')
  else
    local attempt = row and row.attempt + 1 or 1
    put(key, { stage = command.stage, session = command.session, attempt = attempt, at = now, ended = false })
    verdict(list, 'mine', attempt)
  end
end

local function start(list, key, command, cancelled)
  local row = rows[key]
  if not row then
    verdict(list, 'busy')
  elseif row.ended or row.session ~= command.session then
    if not judged(list, row, false) then verdict(list, 'busy') end
  elseif cancelled then
    verdict(list, 'busy')
  else
    if row.stage == 'claimed' then
      put(key, { stage = 'started', session = row.session, attempt = row.attempt, at = now, ended = false })
    end
    verdict(list, 'mine', row.attempt)
  end
end

local function record(list, key, failed, value)
  local row = rows[key]
  if row and row.ended then
    verdict(list, 'known', row.attempt, row.stage == 'failed' and 1 or 0, row.value)
    return
  end
  local attempt = row and row.attempt or 1
  put(key, {
    stage = failed and 'failed' or 'done', attempt = attempt, value = value, at = now, ended = true,
  })
  verdict(list, 'kept', attempt)
end

local function shown(row)
  if row.ended or is_live(row.session) then return row.stage end
  return row.stage == 'started' and 'unknown' or 'free'
end

-- A page of the rows. Open rows come first: a row only moves from there to the ended ones, so none is skipped if it
-- moves between two pages.
local function page(answer, cursor, limit)
  local where, at = string.match(cursor, '^([or])(%d+)$')
  if cursor ~= '' and not where then error({ err = 'RANGE no page begins at this cursor' }) end
  where, at = where or 'o', at or '0'
  local scanned = ask('HSCAN', where == 'o' and OPEN or ROWS, at, 'COUNT', limit)
  local list, found = answer.rows, scanned[2]
  for i = 1, #found, 2 do
    local row, n = row_of(found[i + 1], where == 'r'), #list
    list[n + 1], list[n + 2], list[n + 3] = cjson.encode(found[i]), shown(row), row.attempt
    list[n + 4], list[n + 5] = row.value or '', row.at
  end
  if scanned[1] ~= '0' then
    answer.cursor = where .. scanned[1]
  elseif where == 'o' and ask('HLEN', ROWS) > 0 then
    answer.cursor = 'r0'
  end
end

local function summary(meta)
  local count = { claimed = 0, started = 0, unknown = 0, free = 0 }
  for _, text in ipairs(ask('HVALS', OPEN)) do
    local how = shown(row_of(text, false))
    count[how] = count[how] + 1
  end
  local alive = ask('ZCOUNT', SESSIONS, '(' .. written(now), '+inf')
  return { meta.created, meta.expires or '', meta.done, meta.failed, count.claimed, count.started,
    count.unknown, alive }
end

-- --- the writes ------------------------------------------------------------------------------------

local function text_of(row)
  local letter = string.sub(row.stage, 1, 1)
  return string.format('%s%.0f:%.0f:', letter, row.attempt, row.at) .. (row.ended and row.value or row.session)
end

local function write_rows()
  local open, ended, not_open, not_ended = {}, {}, {}, {}
  local more = { done = 0, failed = 0 }
  for key, before in pairs(step.changed) do
    local after = rows[key]
    if after then
      local list = after.ended and ended or open
      list[#list + 1] = key
      list[#list + 1] = text_of(after)
      if after.ended then more[after.stage] = more[after.stage] + 1 end
    end
    if before and before.ended then more[before.stage] = more[before.stage] - 1 end
    if before and not (after and after.ended == before.ended) then
      local list = before.ended and not_ended or not_open
      list[#list + 1] = key
    end
  end
  in_parts(open, 1000, function(i, j) redis.call('HSET', OPEN, unpack(open, i, j)) end)
  in_parts(ended, 1000, function(i, j) redis.call('HSET', ROWS, unpack(ended, i, j)) end)
  in_parts(not_open, 1000, function(i, j) redis.call('HDEL', OPEN, unpack(not_open, i, j)) end)
  in_parts(not_ended, 1000, function(i, j) redis.call('HDEL', ROWS, unpack(not_ended, i, j)) end)
  for stage, count in pairs(more) do
    if count ~= 0 then redis.call('HINCRBY', META, stage, count) end
  end
end

-- Keys expire by the server's clock, so not where a test sets the time.
local function expire_keys(meta, changed)
  if ARGV[2] ~= '' then return end
  for _, key in ipairs(KEYS) do
    if meta.expires then
      redis.call('PEXPIREAT', key, string.format('%.0f', math.ceil(meta.expires / 1000)))
    elseif changed then
      redis.call('PERSIST', key)
    end
  end
end

-- --- one command -----------------------------------------------------------------------------------

local KEYS_AT = { claim = 7, start = 5, record = 5, release = 4, forget = 4 }  -- the arguments that have the keys

-- The verdicts, or the first one, if the others are the same.
local function shortened(list)
  for i = 5, #list do
    if list[i] ~= list[(i - 1) % 4 + 1] then return list end
  end
  return { list[1], list[2], list[3], list[4] }
end

local function do_rows(op, meta, answer, fresh)
  local list, cancelled = answer.verdicts, meta.cancelled == 1
  local command = { session = ARGV[3] }
  local keys = KEYS_AT[op] and cjson.decode(ARGV[KEYS_AT[op]]) or {}
  if op == 'claim' then
    command.stage, command.again = ARGV[5] == '1' and 'started' or 'claimed', ARGV[6] == '1'
  end
  if fresh then
    for _, key in ipairs(keys) do rows[key] = false end
  else
    read_rows(keys)
  end
  for i, key in ipairs(keys) do
    local row = rows[key]
    if op == 'claim' then
      claim(list, key, command, cancelled)
    elseif op == 'start' then
      start(list, key, command, cancelled)
    elseif op == 'record' then
      record(list, key, string.sub(ARGV[6], i, i) == '1', ARGV[6 + i])
    elseif row and (
      op == 'release' and row.session == command.session
      or op == 'forget' and string.find(',' .. ARGV[3] .. ',', ',' .. shown(row) .. ',', 1, true)
    ) then
      put(key, false)
      answer.removed = answer.removed + 1
    end
  end
  if op == 'look' then page(answer, ARGV[3], ARGV[4]) end
  if op == 'count' then answer.summary = summary(meta) end
end

local function reply(answer)
  return { now, answer.found, answer.cancelled, answer.removed, shortened(answer.verdicts), answer.rows, answer.cursor,
    answer.summary }
end

local function apply(op)
  local answer = { found = 0, cancelled = 0, removed = 0, verdicts = {}, rows = {}, cursor = '', summary = {} }
  local meta = read_meta()
  if meta and meta.expires and meta.expires <= now then
    meta = nil
    redis.call('UNLINK', unpack(KEYS))
  end
  if op == 'drop' then
    redis.call('UNLINK', unpack(KEYS))
    answer.found = meta and 1 or 0
    return reply(answer)
  end
  local fresh = not meta
  if fresh then
    if op == 'start' then
      for _ in ipairs(cjson.decode(ARGV[5])) do verdict(answer.verdicts, 'busy') end
    end
    if not MAKES[op] then return reply(answer) end
    meta = { created = now, cancelled = 0, done = 0, failed = 0 }
  end

  local until_ = RENEWS[op] and written(now + tonumber(ARGV[4]))
  if until_ then live[ARGV[3]] = true end
  if op == 'leave' then live[ARGV[3]] = false end
  if op == 'cancel' then meta.cancelled = tonumber(ARGV[3]) end
  if op == 'expire' then meta.expires = tonumber(ARGV[3]) end
  local expires = meta.expires and written(meta.expires)
  answer.found, answer.cancelled = 1, meta.cancelled
  do_rows(op, meta, answer, fresh)

  -- Writes that need memory come first: a server that is out of memory refuses a script's first write, but no later one.
  if fresh then
    redis.call('HSET', META, 'version', LAYOUT, 'created', written(now), 'cancelled', 0, 'done', 0, 'failed', 0)
    redis.call('UNLINK', SESSIONS, OPEN, ROWS)  -- of one whose first key was lost
  end
  if until_ then redis.call('ZADD', SESSIONS, until_, ARGV[3]) end
  redis.call('ZREMRANGEBYSCORE', SESSIONS, '-inf', written(now))
  if until_ and tonumber(until_) <= now then redis.call('ZADD', SESSIONS, until_, ARGV[3]) end
  if op == 'leave' then redis.call('ZREM', SESSIONS, ARGV[3]) end
  if op == 'cancel' then redis.call('HSET', META, 'cancelled', ARGV[3]) end
  if op == 'expire' and expires then redis.call('HSET', META, 'expires', expires) end
  if op == 'expire' and not expires then redis.call('HDEL', META, 'expires') end
  if step.changes > 0 then write_rows() end
  if op == 'expire' or RENEWS[op] then expire_keys(meta, op == 'expire') end
  return reply(answer)
end

if not now then
  local time = redis.call('TIME')
  now = tonumber(time[1]) * 1000000 + tonumber(time[2])
end
-- Errors are returned, not raised, so that their code comes first in Redis 6.2, too, which raises texts.
local ok, result = pcall(apply, ARGV[1])
if ok or type(result) == 'table' then return result end
return { err = string.match(result, '%-(%u+ .*)') or 'ERR ' .. result }
