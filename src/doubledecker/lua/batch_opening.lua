-- part: opening a batch for delivery; one that is still current takes no more events from here on.
--
-- A batch that is not in its subscriber's index was set aside to be purged: it is as good as gone.
--
-- keys batch_named  batch:<bid>              list  token, creation time, attempts, then messages
-- keys current_of   batches:current:<token>  set   the batch that still takes events
-- keys index_of     batches:index:<token>    zset  the subscriber's batches by creation time

-- The whole list; empty when the batch is gone.
local function open_batch(bid, token)
  if not redis.call("ZSCORE", index_of(token), bid) then
    return {}
  end
  redis.call("SREM", current_of(token), bid)
  return redis.call("LRANGE", batch_named(bid), 0, -1)
end
