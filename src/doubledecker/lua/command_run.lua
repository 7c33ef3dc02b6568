-- Run one command also when memory is full: a small write that keeps the bus going, such as a heartbeat.
--
-- key  target  <name>  any   the key that it writes
-- arg  verb    text  the command
-- rest words   text  its other arguments
-- returns      what the command returns

return redis.call(verb, target, unpack(words))
