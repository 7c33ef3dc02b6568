-- End one subscription of a subscriber.
--
-- uses registry_change
-- key topics    topics:<token>      set   what it is subscribed to
-- key of_topic  subscribers:<name>  set   the topic's subscribers
-- key bulk      bulk:<token>        hash  how far bulk delivery has come
-- arg token     text  the subscriber
-- arg name      text  the topic
-- returns       the registry's new version, or 0 when it was not subscribed

if redis.call("SREM", topics, name) == 0 then
  return 0
end
redis.call("SREM", of_topic, token)
redis.call("HDEL", bulk, "topic:" .. name, "passed:" .. name)
return note_change("subscriber " .. token)
