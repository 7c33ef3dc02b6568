-- Create or replace a subscriber and its subscriptions.
--
-- key  registry     registry             hash  version
-- key  changes      registry:changes     zset  what changed, by version
-- key  subscribers  subscribers          set   all subscribers
-- key  subscriber   subscriber:<token>   hash  what it asked for, and its health
-- key  topics       topics:<token>       set   what it is subscribed to
-- keys of_topic     subscribers:<name>   set   a topic's subscribers
-- arg  token        text  the subscriber
-- arg  fields       pack  field, value, field, value, …
-- arg  wanted       pack  the topics it wants from now on
-- returns           the registry's new version

for _, name in ipairs(redis.call("SMEMBERS", topics)) do
  redis.call("SREM", of_topic(name), token)
end
redis.call("DEL", topics)
for _, name in ipairs(wanted) do
  redis.call("SADD", of_topic(name), token)
end
if #wanted > 0 then
  redis.call("SADD", topics, unpack(wanted))
end
redis.call("SADD", subscribers, token)
redis.call("HSET", subscriber, unpack(fields))
redis.call("HSETNX", subscriber, "health_points", 100)
local version = redis.call("HINCRBY", registry, "version", 1)
redis.call("ZADD", changes, version, "subscriber " .. token)
return version
