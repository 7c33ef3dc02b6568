-- Put some of a subscriber's parked jobs back in front, oldest first.
--
-- key  index      jobs:parked:index                 set     subscribers with jobs set aside
-- key  called     jobs:called                       set     jobs that were parked and put back
-- key  bell       jobs:bell                         stream  rung when there is something to take or to wait for
-- keys parked     jobs:parked:<queue>:<of_token>    list    jobs set aside, next one last
-- keys instant    jobs:instant:<queue>              list    jobs to run now, next one last
-- keys job_index  jobs:index:<queue>                set     jobs in any state
-- arg  token      text  the subscriber
-- arg  room       int   how many at most
-- arg  queues     pack  where from, in order of preference
-- arg  is_probe   int   1 to take first tries as retries: the subscriber is failing and needs a try
-- returns         {jobs put back, jobs still parked}

local moved = 0
for _, queue in ipairs(queues) do
  local jobs = moved < room and redis.call("RPOP", parked(queue, token), room - moved)
  if jobs then
    moved = moved + #jobs
    local into = is_probe == 1 and "retry" or queue
    if into ~= queue then
      redis.call("SREM", job_index(queue), unpack(jobs))
      redis.call("SADD", job_index(into), unpack(jobs))
    end
    redis.call("SADD", called, unpack(jobs))
    for i = #jobs, 1, -1 do
      redis.call("RPUSH", instant(into), jobs[i])
    end
  end
end
local left = redis.call("LLEN", parked("retry", token)) + redis.call("LLEN", parked("main", token))
if left == 0 then
  redis.call("SREM", index, token)
end
if moved > 0 then
  redis.call("XADD", bell, "MAXLEN", 1, "*", "rung", 1)
end
return {moved, left}
