-- part: telling a process that there is something to take, or to wait for.
--
-- keys bell  bell:<process>  channel  where a process listens; a message is the queue that has something

-- Notify one of those that wait. Nobody listens to one that has died: then notify the next.
local function ring_bell(hungry)
  local queue = string.match(hungry, "[^:]+$")
  local process = redis.call("SPOP", hungry)
  while process and redis.call("PUBLISH", bell(process), queue) == 0 do
    process = redis.call("SPOP", hungry)
  end
end
