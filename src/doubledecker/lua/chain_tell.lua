-- Write down how the chains of a process stand, and count what they rejected since it last told.
--
-- key chains    chains    hash  how chains stand, by process
-- key counters  counters  hash  telemetry
-- arg process   text  the process
-- arg told      text  how its chains stand; store/chains.py packs it
-- arg counts    pack  pairs of a counter and how much to add
-- returns       0

redis.call("HSET", chains, process, told)
for _, count in ipairs(counts) do
  redis.call("HINCRBY", counters, count[1], count[2])
end
return 0
