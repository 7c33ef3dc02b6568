-- Make a client the owner of topics that have none, and return the owner of each.
--
-- deny-oom
-- key  topics     topics         set   all topic names
-- key  owned      owned:<publisher>  set   the topics that a client owns
-- keys topic      topic:<name>   hash  publisher, counter, last_event
-- arg  publisher  text  who wants to publish
-- arg  names      pack  the topics
-- arg  most       int   how many topics a client may own; 0 is no bound
-- returns         the owner of each, in order; empty for all that have none when they are too many

local owners, new = {}, {}
for i, name in ipairs(names) do
  owners[i] = redis.call("HGET", topic(name), "publisher") or ""
  if owners[i] == "" then
    new[#new + 1] = i
  end
end
if #new == 0 or (most > 0 and redis.call("SCARD", owned) + #new > most) then
  return owners
end
for _, i in ipairs(new) do
  redis.call("HSET", topic(names[i]), "publisher", publisher)
  redis.call("SADD", topics, names[i])
  redis.call("SADD", owned, names[i])
  owners[i] = publisher
end
return owners
