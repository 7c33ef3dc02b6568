-- Write samples into the rings of the bus's history, if nobody has written since the head was read.
--
-- key  head    history         string  what the next sample is the growth since; store/history.py packs it
-- keys ring    history:<ring>  string  samples of equal size, each at its place
-- arg  before  text  the head as it was read; empty when there was none
-- arg  after   text  the head from now on
-- rest places  text  for each sample its ring, where it begins there, and the sample
-- returns      1 when they are written, 0 when another process was first

if (redis.call("GET", head) or "") ~= before then
  return 0
end
redis.call("SET", head, after)
for i = 1, #places, 3 do
  redis.call("SETRANGE", ring(places[i]), places[i + 1], places[i + 2])
end
return 1
