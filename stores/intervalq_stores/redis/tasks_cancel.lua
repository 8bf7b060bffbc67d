-- Cancel tasks, claimed or not. It comes after tasks_changes.lua.
--
-- ARGV[5]  and following: ids, each once

-- Tell the sessions that listen which of their claims are cancelled.
local function tell(cancelled)
  for session, rows in pairs(cancelled) do
    redis.pcall('PUBLISH', sub(TASKS, 1, -6) .. 'wake:' .. session, cjson.encode(rows))
  end
end

local function cancel()
  read_clock()
  local ids, removed, stopping, cancelled = {}, {}, {}, {}
  for i = at_argument + 1, #ARGV do ids[#ids + 1] = ARGV[i] end
  fetch(ids)
  for _, id in ipairs(ids) do
    local row = row_of(id)
    if row and row.session and not row.ends then
      if not row.cancelled then
        leave(row)
        row.version, row.modified, row.cancelled = row.version + 1, now, true
        enter(row)
      end
      stopping[#stopping + 1] = id
      local of = cancelled[row.session] or {}
      of[#of + 1] = { id, row.version }
      cancelled[row.session] = of
    elseif row then
      leave_outcome(row, CANCELLED)
      remove(row, true)
      removed[#removed + 1] = id
    end
  end
  sweep_as_many()
  flush(false)
  tell(cancelled)
  return { 0, now, removed, stopping }
end

return run(cancel)
