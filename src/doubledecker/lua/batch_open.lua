-- Load a batch for delivery; one that is still current takes no more events from here on.
--
-- key batch    batch:<bid>              list  token, creation time, attempts, then messages
-- key current  batches:current:<token>  set   the batch that still takes events
-- arg bid      text  the batch
-- returns      the whole list; empty when the batch is gone

redis.call("SREM", current, bid)
return redis.call("LRANGE", batch, 0, -1)
