-- Make a client the owner of topics that have none, and return who may publish on each.
--
-- deny-oom
-- key  topics     topics         set   all topic names
-- key  owned      owned:<publisher>  set   the topics that a client owns
-- keys topic      topic:<name>   hash  publisher, publishers, counter, last_event
-- arg  publisher  text  who wants to publish
-- arg  names      pack  the topics
-- arg  most       int   how many topics a client may own; 0 is no bound
-- returns         {owner, publishers besides, with spaces between} of each, in order; empty for all that have none when they are too many

local rights, new = {}, {}
for i, name in ipairs(names) do
  local kept = redis.call("HMGET", topic(name), "publisher", "publishers")
  rights[i] = {kept[1] or "", kept[2] or ""}
  if not kept[1] then
    new[#new + 1] = i
  end
end
if #new == 0 or (most > 0 and redis.call("SCARD", owned) + #new > most) then
  return rights
end
for _, i in ipairs(new) do
  redis.call("HSET", topic(names[i]), "publisher", publisher)
  redis.call("SADD", topics, names[i])
  redis.call("SADD", owned, names[i])
  rights[i] = {publisher, ""}
end
return rights
