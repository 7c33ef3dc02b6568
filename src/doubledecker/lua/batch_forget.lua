-- Forget the gauges of a subscriber that is gone, unless something waits for it after all: it may be back.
--
-- key gauge_events   batches:gauges:event  hash  events waiting, by subscriber
-- key gauge_batches  batches:gauges:batch  hash  batches waiting, by subscriber
-- arg token          text  the subscriber
-- returns            1, or 0 when batches wait for it and nothing was changed

if tonumber(redis.call("HGET", gauge_batches, token) or 0) > 0 then
  return 0
end
redis.call("HDEL", gauge_events, token)
redis.call("HDEL", gauge_batches, token)
return 1
