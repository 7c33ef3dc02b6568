-- Say up to where bulk delivery still has to go for a subscriber that is live again.
--
-- key subscriber  subscriber:<token>  hash  tier
-- key bulk        bulk:<token>        hash  until:<partition>, count:<topic>
-- arg ends        pack  field, value, …
-- returns         1, or 0 when there is nothing to end

if redis.call("EXISTS", bulk) == 0 or redis.call("HGET", subscriber, "tier") == "bulk" then
  return 0
end
for i = 1, #ends, 2 do
  redis.call("HSETNX", bulk, ends[i], ends[i + 1])
end
return 1
