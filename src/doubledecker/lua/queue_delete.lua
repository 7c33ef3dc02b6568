-- Forget a queue's registration, unless another has its name meanwhile: from now on nothing is put on it.
--
-- The look at what it holds here and the deletion are one step, so that nothing is accepted in between.
--
-- uses registry_change
-- key queues     queues             hash  queues as JSON, by name
-- key receiver   subscriber:@<name> hash  health of the queue's callback
-- key data      queue:data:<name>  hash  messages by id
-- key letters   dead:index:@<name> zset  its dead letters
-- arg name   text  the queue
-- arg owner  text  whose it is, by what the caller saw
-- arg since  int   the registry's version that it came with, by the same
-- arg discard  int  1 to forget one that holds messages too
-- returns    the registry's new version, 0 when there is no such queue, -1 when it holds messages

local kept = redis.call("HGET", queues, name)
local found = kept and cjson.decode(kept)
if not found or found.owner ~= owner or (found.since or 0) ~= since then
  return 0
end
if discard == 0 and redis.call("EXISTS", data, letters) > 0 then
  return -1
end
redis.call("HDEL", queues, name)
redis.call("DEL", receiver)
return note_change("queue " .. name)
