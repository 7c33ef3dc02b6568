-- Take the jobs of dead slots back, in front of all others of their receivers, and forget those slots.
--
-- A slot is dead when its last heartbeat is too old or missing.
--
-- uses job_bell
-- uses receiver_order
-- key  workers  workers            hash  slots and when they were last alive
-- key  pending  jobs:pending:main  hash  slot → `<bid> <token> <number> <1 if a probe>`, newline, its last job
-- arg  dead_ms  int  how old a heartbeat may be
-- arg  most     int  how many slots to forget in one call
-- returns       {slots forgotten, jobs taken back}

local forgotten, returned = 0, 0
local flat = redis.call("HGETALL", pending)
for i = 1, #flat, 2 do
  local beat = tonumber(redis.call("HGET", workers, flat[i]) or 0)
  if beat + dead_ms <= now and forgotten < most then
    local bid, token = string.match(flat[i + 1], "^(%S+) (%S+) ")
    if bid then
      local it = read_receiver(token)
      it.held = math.max(0, it.held - 1)
      leave(it, flat[i])
      if is_there(bid, token) then
        put_first(it, bid)
      else
        release_lane(it, bid)
      end
      serve_lane(it)
      returned = returned + 1
    end
    redis.call("HDEL", pending, flat[i])
    forgotten = forgotten + 1
  end
end
save_receivers()
if is_news or is_sooner then
  ring_bell(hungry)
end
return {forgotten, returned}
