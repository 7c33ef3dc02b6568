-- Say by how much each counter has grown since the last call.
--
-- key counters  counters       hash  telemetry
-- key sent      counters:sent  hash  the values at the last call
-- returns       {counter, growth, counter, growth, …}

local before = {}
local pairs_before = redis.call("HGETALL", sent)
for i = 1, #pairs_before, 2 do
  before[pairs_before[i]] = tonumber(pairs_before[i + 1])
end
local growth = {}
local values = redis.call("HGETALL", counters)
for i = 1, #values, 2 do
  local by = tonumber(values[i + 1]) - (before[values[i]] or 0)
  if by ~= 0 then
    growth[#growth + 1] = values[i]
    growth[#growth + 1] = by
    redis.call("HSET", sent, values[i], values[i + 1])
  end
end
return growth
