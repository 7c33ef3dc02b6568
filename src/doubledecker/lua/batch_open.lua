-- Load a batch for delivery.
--
-- uses batch_opening
-- arg bid    text  the batch
-- arg token  text  the subscriber
-- returns    the whole list; empty when the batch is gone

return open_batch(bid, token)
