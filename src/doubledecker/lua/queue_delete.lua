-- Forget a queue's registration, unless another has its name meanwhile: from now on nothing is put on it.
--
-- uses registry_change
-- key queues     queues             hash  queues as JSON, by name
-- key receiver   subscriber:@<name> hash  health of the queue's callback
-- arg name   text  the queue
-- arg owner  text  whose it is, by what the caller saw
-- arg since  int   the registry's version that it came with, by the same
-- returns    the registry's new version, or 0 when there is no such queue

local kept = redis.call("HGET", queues, name)
local found = kept and cjson.decode(kept)
if not found or found.owner ~= owner or (found.since or 0) ~= since then
  return 0
end
redis.call("HDEL", queues, name)
redis.call("DEL", receiver)
return note_change("queue " .. name)
