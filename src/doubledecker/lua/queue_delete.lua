-- Forget a queue's registration: from now on nothing is put on it.
--
-- uses registry_change
-- key queues     queues             hash  queues as JSON, by name
-- key receiver   subscriber:@<name> hash  health of the queue's callback
-- arg name  text  the queue
-- returns   the registry's new version, or 0 when there was none

if redis.call("HDEL", queues, name) == 0 then
  return 0
end
redis.call("DEL", receiver)
return note_change("queue " .. name)
