-- The record of one queue in Redis >= 6.2 or Valkey: the first part of the script that applies one command to it.
--
-- The script repeats `apply` of intervalq/rules.py, which has the reasons; functions have the same names, and the
-- conformance suite of queues compares the answers of both. The parts of the script are this one
-- (intervalq/_spec/record.py), queues_auto.lua (intervalq/_spec/auto.py), queues_limits.lua
-- (intervalq/_spec/windows.py) and queues.lua.
--
-- KEYS[1]  intervalq:{QUEUE}  HASH, the record:
--            version                 whole number, the layout of the record
--            generation              text, random; that of a key under one rate begins with 'own:' if it has a pace
--                                    of its own, or with 'shared:'
--            interval, tolerance     microseconds
--            burst, max_running      whole numbers
--            ephemeral               0 or 1
--            ticket, current         tickets, whole numbers
--            revoked_through         a ticket
--            due, current_due        microseconds on the queue's clock
--            held_total, late_total, error
--                                    lengths in microseconds
--            held_since              microseconds on the server's clock; empty: not held
--            held_until, error_until, last_now
--                                    microseconds on the server's clock
--            running:TICKET          when the lease of a running job lapses, microseconds on the server's
--                                    clock; only with max_running
--            stepped                 microseconds; this and all that follows: only with limits
--            limits                  how many limits there are
--            limit:N                 MOST WINDOW JITTER UNIT, N from 1 on; WINDOW and JITTER are microseconds
--            edge:N                  microseconds from 1970; only if the windows are fixed
--            ahead:N                 END:UNITS; for each cell, in the order of ends; microseconds on the queue's
--                                    clock
--            used:N                  END:UNITS:DUE; likewise; END: microseconds on the server's clock without its
--                                    backward steps; DUE: where the cell ended on the queue's clock, or -FOREVER for the
--                                    granted slots of a key, which don't move with it
--            auto                    SLOWEST:FASTEST:PEAK:BASE:CUT_AT:CUT_TICKET; only if the interval finds the
--                                    server's limit; microseconds, CUT_AT on the queue's clock
--            weight                  whole number; only if the weight of a key was set for all of its handles
--          Up to layout 5, some fields had other names (see `read` in queues.lua); layout 1 had no late_total, error
--          and error_until. The step that first writes such a record removes them.
--          Leases are in the same key, which is moved, evicted and expired as a whole. A cluster that is moving a
--          slot serves commands with one key, but refuses those with two of which one is missing.
--          The record of a key under one rate is intervalq:{QUEUE:KEY}, and in a cluster intervalq:{QUEUE}:{KEY}, in
--          the slot of the common record.
-- ARGV[1]  the command, JSON of Command.to_dict()
-- ARGV[2]  the server's clock in microseconds; empty, outside of tests: TIME
-- Answer   { now, refused, healed, woken, granted {ticket...}, missed {ticket...}, at_once, first ticket,
--            first due, count, costs {cost...}, begun, state }; flags are 0 or 1, a first ticket of 0 is none,
--            and a state is {} for none or
--            { generation, held_since or '', {ticket, until, ticket, until...}, NUMBERS... }.
--            With limits, dues {due...} and units {{units...}...} follow in the answer, and in the state
--            stepped and {{most, window, unit, jitter, used {end, units, due...}, ahead {end, units...}}...}; an edge
--            ends the list of its limit. With auto, its list of numbers follows in the state, and a weight ends it
-- Errors   CORRUPT (not our record), NEWER (a newer layout), RANGE (a number that can't be stored)
-- Channel  intervalq:{QUEUE}:wake, also intervalq:{QUEUE:KEY}:wake in a cluster, gets an empty message when a step ended a hold
--
-- Numbers are doubles, exact to 2^53. They are returned as RESP integers or formatted with '%.0f': tostring and cjson
-- round to 14 digits. The server doesn't roll back a script that fails, so every check comes before the first write.

local FOREVER = 9007199254740991
local LAYOUT = 6
local MAX_TICKETS = 1000
local MAX_WEIGHT = 1000

-- Fields of the record that are whole numbers, and below their minimums (a clock may read anything). The first ones are
-- the settings, in the order of the command; answers have all of them in this order.
local NUMBERS = {
  'interval', 'burst', 'max_running', 'tolerance', 'ephemeral',
  'ticket', 'due', 'current', 'current_due', 'revoked_through', 'held_total', 'held_until', 'last_now', 'late_total',
  'error', 'error_until',
}
local MINIMUM = { 1, 1, 0, 0, 0, 0, -FOREVER, 0, -FOREVER, 0, -FOREVER, -FOREVER, -FOREVER, 0, 0, -FOREVER }
local SETTINGS = 5

local function corrupt(why)
  error({ err = 'CORRUPT ' .. why })
end

local function whole(text, name, least, most)
  if not text or #text > 17 or not string.find(text, '^-?%d+$') then
    corrupt("'" .. name .. "' must be a whole number")
  end
  local value = tonumber(text)
  if value < least or value > most then corrupt("'" .. name .. "' is out of range") end
  return value
end

local function written(number, name)
  if number < -FOREVER or number > FOREVER then
    error({ err = "RANGE '" .. name .. "' would be more than a store can hold" })
  end
  return string.format('%.0f', number)
end

-- Whether this is UTF-8: the client could not decode anything else, after the step was done.
local function is_text(bytes)
  if not string.find(bytes, '[\128-\255]') then return true end
  for _, sequence in ipairs({
    '[\194-\223][\128-\191]', '\224[\160-\191][\128-\191]', '[\225-\236\238\239][\128-\191][\128-\191]',
    '\237[\128-\159][\128-\191]', '\240[\144-\191][\128-\191][\128-\191]',
    '[\241-\243][\128-\191][\128-\191][\128-\191]', '\244[\128-\143][\128-\191][\128-\191]',
  }) do
    bytes = string.gsub(bytes, sequence, '.')
  end
  return not string.find(bytes, '[\128-\255]')
end

local function clock_of(state, now) return (state.held_since or now) - state.held_total end

local function full(state) return state.max_running > 0 and state.leases >= state.max_running end

local function tolerance(state)
  local window = state.burst * state.interval
  local agreed = math.min(state.tolerance, window)
  return agreed > 0 and agreed or math.floor(window / 10)
end

local function credit(state) return (state.burst - 1) * state.interval end

-- Whether a key under one rate has a pace of its own; nil: this isn't the record of such a key.
local function has_own_pace(state)
  if string.sub(state.generation, 1, 4) == 'own:' then return true end
  if string.sub(state.generation, 1, 7) == 'shared:' then return false end
  return nil
end
