-- Forget a queue's registration: from now on nothing is put on it.
--
-- key registry   registry           hash  version
-- key changes    registry:changes   zset  what changed, by version
-- key queues     queues             hash  queues as JSON, by name
-- key receiver   subscriber:@<name> hash  health of the queue's callback
-- key holds      holds:@<name>      zset  who calls it now
-- arg name  text  the queue
-- returns   the registry's new version, or 0 when there was none

if redis.call("HDEL", queues, name) == 0 then
  return 0
end
redis.call("DEL", receiver, holds)
local version = redis.call("HINCRBY", registry, "version", 1)
redis.call("ZADD", changes, version, "queue " .. name)
return version
