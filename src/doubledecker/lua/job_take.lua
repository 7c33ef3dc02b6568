-- Promote what is due, then give free slots a job each; say how long to wait when there are fewer jobs than slots.
--
-- A slot that already holds a job gets that one again: the reply that brought it may have been lost.
-- Of many processes that wait for the same deadline one owns it; the others are told to wait a little longer.
--
-- uses job_parking
-- key  sleeper    jobs:sleeper                    string  the process that wakes first
-- keys scheduled  jobs:scheduled:<queue>          zset    jobs by deadline
-- keys holders    jobs:pending:index:<queue>      set     slots that have held a job
-- arg  offers     pack  pairs of a queue and the slots that may take from it, in order of preference
-- arg  process    text  who asks
-- arg  lag_ms     int   how much longer to wait than the owner of the deadline
-- arg  due_max    int   how many due jobs to promote in one call
-- now
-- returns         {milliseconds to wait or -1, {slot, queue, job, 1 if it was put back, slot, …}, {whose jobs were parked, …}}

local taken = {}
local has_job = {}
local earliest

local function note(queue, slot, job, is_called)
  if job then
    has_job[slot] = true
    taken[#taken + 1] = slot
    taken[#taken + 1] = queue
    taken[#taken + 1] = job
    taken[#taken + 1] = is_called
  end
  return job
end

-- All that is held comes first, whatever its queue: a slot that held one job must not be given a second.
for _, offer in ipairs(offers) do
  for _, slot in ipairs(offer[2]) do
    note(offer[1], slot, redis.call("LINDEX", pending(offer[1], slot), 0), 0)
  end
end

for _, offer in ipairs(offers) do
  local queue, slots = offer[1], offer[2]
  local due = redis.call("ZRANGE", scheduled(queue), "-inf", now, "BYSCORE", "LIMIT", 0, due_max)
  if #due > 0 then
    redis.call("ZREM", scheduled(queue), unpack(due))
    redis.call("LPUSH", instant(queue), unpack(due))
  end
  local holding = {}
  for _, slot in ipairs(slots) do
    if not has_job[slot] then
      if not note(queue, slot, next_job(queue, slot)) then
        break
      end
      holding[#holding + 1] = slot
    end
  end
  if #holding > 0 then
    redis.call("SADD", holders(queue), unpack(holding))
  end
  local head = redis.call("ZRANGE", scheduled(queue), 0, 0, "WITHSCORES")
  if head[1] and (not earliest or tonumber(head[2]) < earliest) then
    earliest = tonumber(head[2])
  end
end

if not earliest then
  return {-1, taken, parked_for}
end
local wait_ms = math.max(0, earliest - now)
if wait_ms > 0 then
  local owner = redis.call("GET", sleeper)
  if not owner or owner == process then
    redis.call("SET", sleeper, process, "PX", wait_ms + 1000)
  else
    wait_ms = wait_ms + lag_ms
  end
end
return {wait_ms, taken, parked_for}
