-- Keep what is said of a topic; one that nobody owns becomes the caller's.
--
-- deny-oom
-- uses registry_change
-- key  topics  topics         set   all topic names
-- key  topic   topic:<name>   hash  publisher, publishers, description, counter, last_event
-- keys owned   owned:<token>  set   the topics that a client owns
-- arg  name    text  the topic
-- arg  caller  text  who asks; empty for root, which owns none
-- arg  is_any  int   1 if it may change what is another's
-- arg  fields  pack  field, value, … : those that change
-- arg  most    int   how many topics a client may own; 0 is no bound
-- returns      {the registry's new version, 1 if the topic is new}; version 0: nobody's, -1: it is another's, -2: too many

local owner = redis.call("HGET", topic, "publisher")
if not owner and caller == "" then
  return {0, 0}
end
if owner and owner ~= caller and is_any == 0 then
  return {-1, 0}
end
if not owner then
  if most > 0 and redis.call("SCARD", owned(caller)) >= most then
    return {-2, 0}
  end
  redis.call("HSET", topic, "publisher", caller)
  redis.call("SADD", topics, name)
  redis.call("SADD", owned(caller), name)
end
if #fields > 0 then
  redis.call("HSET", topic, unpack(fields))
end
return {note_change("topic " .. name), owner and 0 or 1}
