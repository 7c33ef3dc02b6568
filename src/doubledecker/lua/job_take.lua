-- Promote what is due, then give free slots a job each; return how long to wait when there are fewer jobs than slots.
--
-- A slot that already holds a job gets that one again: the reply that brought it may have been lost.
--
-- key  scheduled  jobs:scheduled:aux       zset  jobs by deadline
-- key  instant    jobs:instant:aux         list  jobs to run now, next one last
-- key  holders    jobs:pending:index:aux   set   slots that have held a job
-- key  hungry     jobs:hungry:aux          set   processes that wait for jobs
-- keys pending    jobs:pending:aux:<slot>  list  the job that a slot holds
-- arg  slots      pack  those that are free
-- arg  process    text  who asks
-- arg  due_max    int   how many due jobs to promote in one call
-- now
-- returns         {milliseconds to wait or -1, {slot, job, slot, …}}

local due = redis.call("ZRANGE", scheduled, "-inf", now, "BYSCORE", "LIMIT", 0, due_max)
if #due > 0 then
  redis.call("ZREM", scheduled, unpack(due))
  redis.call("LPUSH", instant, unpack(due))
end
local taken = {}
for _, slot in ipairs(slots) do
  local held = pending(slot)
  local job = redis.call("LINDEX", held, 0) or redis.call("LMOVE", instant, held, "RIGHT", "LEFT")
  if job then
    redis.call("SADD", holders, slot)
    taken[#taken + 1] = slot
    taken[#taken + 1] = job
  end
end
redis.call(#taken == 2 * #slots and "SREM" or "SADD", hungry, process)
local head = redis.call("ZRANGE", scheduled, 0, 0, "WITHSCORES")
return {head[1] and math.max(0, head[2] - now) or -1, taken}
