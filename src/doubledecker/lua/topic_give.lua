-- Make another client the owner of a topic; its subscriptions and its count stay.
--
-- uses registry_change
-- key topics    topics            set   all topic names
-- key tokens    api_tokens        hash  tokens as JSON, by id
-- key topic     topic:<name>      hash  publisher, publishers, description, counter, last_event
-- keys owned    owned:<token>     set   the topics that a client owns
-- arg name      text  the topic
-- arg to        text  the token id of its new owner
-- returns       the registry's new version, 0 when there is no such topic, -1 when there is no such client

if redis.call("SISMEMBER", topics, name) == 0 then
  return 0
end
if redis.call("HEXISTS", tokens, to) == 0 then
  return -1
end
local owner = redis.call("HGET", topic, "publisher")
if owner then
  redis.call("SREM", owned(owner), name)
end
redis.call("SADD", owned(to), name)
redis.call("HSET", topic, "publisher", to)
return note_change("topic " .. name)
