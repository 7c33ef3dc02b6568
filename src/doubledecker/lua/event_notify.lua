-- Notify listeners of events that are written: one call for many, so that it costs one reply.
--
-- rest words    text  a channel and its message, one after the other; the caller bounds how many
-- returns       how many listeners were notified, added up over the messages

local received = 0
for i = 1, #words, 2 do
  received = received + redis.call("PUBLISH", words[i], words[i + 1])
end
return received
