-- End one subscription of a subscriber.
--
-- key registry  registry            hash  routing_version
-- key changes   registry:changes    zset  what changed, by version
-- key topics    topics:<token>      set   what it is subscribed to
-- key of_topic  subscribers:<name>  set   the topic's subscribers
-- key bulk      bulk:<token>        hash  how far bulk delivery has come
-- arg token     text  the subscriber
-- arg name      text  the topic
-- returns       the registry's new version, or 0 when it was not subscribed

if redis.call("SREM", topics, name) == 0 then
  return 0
end
redis.call("SREM", of_topic, token)
redis.call("HDEL", bulk, "topic:" .. name, "passed:" .. name)
local version = redis.call("HINCRBY", registry, "routing_version", 1)
redis.call("ZADD", changes, version, "subscriber " .. token)
return version
