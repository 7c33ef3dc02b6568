-- Take the jobs of dead slots back, in front of all others, and forget those slots.
--
-- A slot is dead when its last heartbeat is too old or missing.
--
-- uses job_bell
-- key  workers    workers                  hash  slots and when they were last alive
-- key  instant    jobs:instant:aux         list  jobs to run now, next one last
-- key  holders    jobs:pending:index:aux   set   slots that have held a job
-- key  hungry     jobs:hungry:aux          set   processes that wait for jobs
-- keys pending    jobs:pending:aux:<slot>  list  the job that a slot holds
-- arg  dead_ms    int   how old a heartbeat may be
-- now
-- returns         {slots forgotten, jobs taken back}

local forgotten, returned = 0, 0
for _, slot in ipairs(redis.call("SMEMBERS", holders)) do
  local beat = tonumber(redis.call("HGET", workers, slot) or 0)
  if beat + dead_ms <= now then
    if redis.call("LMOVE", pending(slot), instant, "LEFT", "RIGHT") then
      returned = returned + 1
    end
    redis.call("SREM", holders, slot)
    forgotten = forgotten + 1
  end
end
if returned > 0 then
  ring_bell(hungry)
end
return {forgotten, returned}
