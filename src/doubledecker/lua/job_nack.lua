-- Give a job back, to be run again after a delay, or at once before all others.
--
-- uses job_placing
-- key pending    jobs:pending:aux:<slot>  list  the job that the slot holds
-- arg job        text  the job as it was taken
-- arg delay_ms   int   how long to wait; 0 puts it in front
-- returns        1, or 0 when the slot no longer held it and nothing was changed

if redis.call("LREM", pending, 1, job) == 0 then
  return 0
end
place(job, delay_ms, "RPUSH")
return 1
