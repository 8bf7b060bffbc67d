-- Sessions: begin, heartbeat and end. It comes after tasks_changes.lua.
--
-- ARGV[5]  begin: id, host, pid, consumer, expiry. beat, end: id

-- How long a lost task rests: up to 0.1 s, then up to 1, 3, 7 ... 60 s.
local function rest(row)
  local most = 100000
  if row.attempt > 1 then most = math.min(2 ^ math.min(row.attempt - 1, 6) - 1, 60) * 1000000 end
  return math.floor(most * row.spread / 65536)
end

local function free(row, err)
  if row.cancelled then
    leave_outcome(row, CANCELLED)
    return remove(row, true)
  end
  leave(row)
  row.at = sooner(row)
  row.version, row.session, row.ends, row.modified = row.version + 1, nil, nil, now
  if err then
    row.at, row.alone = now + rest(row), true
    if row.begun then
      row.err = err
      if row.keep_for > 0 then row.errors = with_error(row.errors, err, row.attempt) end
    end
  elseif row.begun then
    row.attempt = math.max(0, row.attempt - 1)
  end
  row.begun = false
  enter(row)
end

local function begin()
  local id, host, pid, consumer, expiry = argument(), argument(), number(), argument(), number()
  put_session(id, {
    host = host, pid = pid, consumer = consumer, expiry = expiry, started = now, beaten = now, idle = '',
  })
  flush(false)
  return { 0, now }
end

local function beat()
  local id, lapsed = argument(), {}
  read_clock()
  local mine = session_of(id)
  if mine then put_session(id, with(mine, 'beaten', now)) end
  for _, member in ipairs(ask('ZRANGEBYLEX', INDEX, '[e', '(e' .. stamp(now))) do
    local other = sub(member, 11)
    if other ~= id then
      local one = session_of(other) or corrupt('the index names a session that is not there')
      lapsed[#lapsed + 1] = other
      put_session(other, false)
      for _, row in ipairs(of_session(other)) do free(row, format('%s:%.0f was lost', one.host, one.pid)) end
    end
  end
  sweep_marks(16)
  sweep_outcomes()
  local has, start, cancelled = count(prefix('s', id)), prefix('x', id), {}
  for _, member in ipairs(all(start)) do
    local row = there(sub(member, #start + 1))
    cancelled[#cancelled + 1], cancelled[#cancelled + 2] = row.id, row.version
  end
  flush(false)
  return { 0, now, mine and 1 or 0, has, lapsed, cancelled }
end

local function end_session()
  local id = argument()
  read_clock()
  if session_of(id) then put_session(id, false) end
  for _, row in ipairs(of_session(id)) do free(row, nil) end
  flush(false)
  return { 0, now }
end

return run(({ begin = begin, beat = beat, ['end'] = end_session })[ARGV[1]])
