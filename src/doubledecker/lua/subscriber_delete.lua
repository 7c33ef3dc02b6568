-- Forget a subscriber and its subscriptions.
--
-- uses registry_change
-- key  subscribers  subscribers                 set   all subscribers
-- key  named        subscriptions:<of>          hash  a client's subscribers by name
-- key  subscriber   subscriber:<token>          hash  what it asked for, and its health
-- key  topics       topics:<token>              set   what it is subscribed to
-- key  bulk         bulk:<token>                hash  how far bulk delivery has come
-- key  in_bulk      bulk                        set   the subscribers that have the above
-- keys of_topic     subscribers:<name>          set   a topic's subscribers
-- arg  token        text  the subscriber
-- arg  of           text  its client
-- arg  name         text  what its client calls it
-- returns           the registry's new version, or 0 when this client has no such subscriber

if (redis.call("HGET", subscriber, "owner") or token) ~= of or redis.call("SREM", subscribers, token) == 0 then
  return 0
end
redis.call("HDEL", named, name)
for _, name in ipairs(redis.call("SMEMBERS", topics)) do
  redis.call("SREM", of_topic(name), token)
end
redis.call("DEL", topics, subscriber, bulk)
redis.call("SREM", in_bulk, token)
return note_change("subscriber " .. token)
