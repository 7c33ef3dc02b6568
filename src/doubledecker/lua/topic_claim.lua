-- Make a client the owner of topics that have none, and say whose each one is.
--
-- deny-oom
-- key  topics     topics        set   all topic names
-- keys topic      topic:<name>  hash  publisher, counter, last_event
-- arg  publisher  text  who wants to publish
-- arg  names      pack  the topics
-- returns         the owner of each, in order

local owners = {}
for i, name in ipairs(names) do
  if redis.call("HSETNX", topic(name), "publisher", publisher) == 1 then
    redis.call("SADD", topics, name)
  end
  owners[i] = redis.call("HGET", topic(name), "publisher")
end
return owners
