-- Note who owns which topic, some at a time, for topics that were claimed before that was noted.
--
-- key  registry  registry          hash  routing_version; owned: 1 when this was done
-- key  topics    topics            set   all topic names
-- keys topic     topic:<name>      hash  publisher, publishers, description, counter, last_event
-- keys owned     owned:<token>     set   the topics that a client owns
-- arg  cursor    text  where the last call ended; 0 for the first
-- arg  count     int   about how many topics to note in one call
-- returns        where this call ended; 0 when all are noted

if redis.call("HEXISTS", registry, "owned") == 1 then
  return "0"
end
-- What is claimed, given away or deleted meanwhile is noted by the scripts that do so.
local found = redis.call("SSCAN", topics, cursor, "COUNT", count)
for _, name in ipairs(found[2]) do
  local publisher = redis.call("HGET", topic(name), "publisher")
  if publisher then
    redis.call("SADD", owned(publisher), name)
  end
end
if found[1] == "0" then
  redis.call("HSET", registry, "owned", 1)
end
return found[1]
