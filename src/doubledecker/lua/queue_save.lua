-- Register a queue, or change one, unless the client who wants it is gone.
--
-- uses registry_change
-- key tokens     api_tokens         hash  tokens as JSON, by id
-- key queues     queues             hash  queues as JSON, by name
-- key receiver   subscriber:@<name> hash  health of the queue's callback
-- arg name    text  the queue
-- arg record  text  the queue as JSON; one that is new has no field `since`, one whose receiver begins anew no `anew_since`:
--                   these are added as the last
-- arg former  text  the record that the caller saw, or empty: a change in between is not overwritten
-- arg client  text  the client who registers it or is given it, and must have a token; empty when root keeps its owner
-- arg most    int   how many queues there may be
-- arg callback  text  where its messages are pushed, or empty
-- arg is_anew   int   1 if what was learnt of its receiver is over
-- returns     the registry's version; 0 when the queue was changed or its client has left meanwhile, -1 when there are too many

local kept = redis.call("HGET", queues, name)
if (kept or "") ~= former or (client ~= "" and redis.call("HEXISTS", tokens, client) == 0) then
  return 0
end
if not kept and redis.call("HLEN", queues) >= most then
  return -1
end
if kept == record then
  return tonumber(redis.call("HGET", registry, "routing_version"))
end
if callback == "" or is_anew == 1 then
  redis.call("DEL", receiver)
end
if callback ~= "" then
  redis.call("HSET", receiver, "callback", callback)
end
local version = note_change("queue " .. name)
if not kept then
  record = string.format('%s,"since":%d}', string.sub(record, 1, -2), version)
end
if is_anew == 1 then
  record = string.format('%s,"anew_since":%d}', string.sub(record, 1, -2), version)
end
redis.call("HSET", queues, name, record)
return version
