-- Forget bulk delivery to a subscriber that is live again, once it has gone as far as it had to.
--
-- key subscriber  subscriber:<token>  hash  tier
-- key bulk        bulk:<token>        hash  until:<partition>
-- key in_bulk     bulk                set   the subscribers that have the above
-- arg token       text  the subscriber
-- returns         1, or 0 when it is of the bulk tier once more

if redis.call("HGET", subscriber, "tier") == "bulk" or redis.call("HEXISTS", bulk, "until:0") == 0 then
  return 0
end
redis.call("DEL", bulk)
redis.call("SREM", in_bulk, token)
return 1
