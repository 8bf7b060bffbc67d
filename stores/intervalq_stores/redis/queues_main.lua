-- A step on the record of one queue: the last part of its script, behind queues_step.lua.

local function apply(command, now)
  local answer, record = new_answer(), opened(KEYS[1], now)
  if command.op == 'advance' and record.state and has_own_pace(record.state) ~= nil then
    answer.refused = 1  -- slots of a key under one rate are taken in steps on two records
  else
    follow(record, done(record, command, answer, now), answer)
  end
  return reply(answer, record.state, now)
end

return guarded(apply, cjson.decode(ARGV[1]), time())
