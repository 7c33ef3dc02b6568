-- Forget a topic; the subscriptions to it end.
--
-- uses registry_change
-- key  topics    topics              set   all topic names
-- key  deleted   topics:deleted      set   topics that other partitions may still count
-- key  topic     topic:<name>        hash  publisher, publishers, description, counter, last_event
-- key  of_topic  subscribers:<name>  set   the topic's subscribers
-- keys of_token  topics:<token>      set   what a subscriber is subscribed to
-- keys owned     owned:<token>       set   the topics that a client owns
-- keys bulk      bulk:<token>        hash  how far bulk delivery to a subscriber has come
-- arg  name      text  the topic
-- arg  publisher text  who asks; empty for root, who may always
-- returns        {the registry's new version, subscriptions that ended}; version 0: no such topic, -1: it is another's

if redis.call("SISMEMBER", topics, name) == 0 then
  return {0, 0}
end
local owner = redis.call("HGET", topic, "publisher")
if publisher ~= "" and owner ~= publisher then
  return {-1, 0}
end
if owner then
  redis.call("SREM", owned(owner), name)
end
local version = note_change("topic " .. name)
local subscribed = redis.call("SMEMBERS", of_topic)
for _, token in ipairs(subscribed) do
  redis.call("SREM", of_token(token), name)
  redis.call("HDEL", bulk(token), "topic:" .. name, "passed:" .. name)
  redis.call("ZADD", changes, version, "subscriber " .. token)
end
redis.call("SREM", topics, name)
redis.call("DEL", topic, of_topic)
redis.call("SADD", deleted, name)
return {version, #subscribed}
