-- Note who owns which topic, once, for topics that were claimed before that was noted.
--
-- key  registry  registry          hash  version; owned: 1 when this was done
-- key  topics    topics            set   all topic names
-- keys topic     topic:<name>      hash  publisher, counter, last_event
-- keys owned     owned:<token>     set   the topics that a client owns
-- returns        how many topics were noted

if redis.call("HEXISTS", registry, "owned") == 1 then
  return 0
end
local names = redis.call("SMEMBERS", topics)
for _, name in ipairs(names) do
  local publisher = redis.call("HGET", topic(name), "publisher")
  if publisher then
    redis.call("SADD", owned(publisher), name)
  end
end
redis.call("HSET", registry, "owned", 1)
return #names
