-- Run one command also when memory is full: a small write that keeps the bus going, such as a heartbeat.
--
-- rest words    text  the command, as it would be sent by itself
-- returns       what the command returns

return redis.call(unpack(words))
