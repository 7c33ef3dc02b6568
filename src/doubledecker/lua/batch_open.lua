-- Load a batch for delivery; one that is still current takes no more events from here on.
--
-- A batch that is not in its subscriber's index was set aside to be purged: it is as good as gone.
--
-- key batch        batch:<bid>              list  token, creation time, attempts, then messages
-- key current      batches:current:<token>  set   the batch that still takes events
-- key token_index  batches:index:<token>    zset  the subscriber's batches by creation time
-- arg bid          text  the batch
-- returns          the whole list; empty when the batch is gone

if not redis.call("ZSCORE", token_index, bid) then
  return {}
end
redis.call("SREM", current, bid)
return redis.call("LRANGE", batch, 0, -1)
