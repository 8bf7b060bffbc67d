-- A step on the record of one queue: the last part of its script, behind queues_step.lua.

local function apply(command, now)
  local answer, record = new_answer(), opened(KEYS[1], now)
  follow(record, done(record, command, answer, now), answer)
  return reply(answer, record.state, now)
end

return guarded(apply, cjson.decode(ARGV[1]), time())
