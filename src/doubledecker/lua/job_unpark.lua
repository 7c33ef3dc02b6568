-- Put some of a subscriber's parked jobs back, oldest first, behind those of others that were put back.
--
-- No more of them stand in that line than there are places kept: one that waits for its turn longer than its place was
-- kept has got one again, rather than another job beside it, which might overtake it.
--
-- key  index         jobs:parked:index               set     subscribers with jobs set aside
-- key  called_index  jobs:called:index               hash    how many jobs were put back and not taken yet, by subscriber
-- key  bell          jobs:bell                       stream  rung when there is something to take or to wait for
-- keys parked        jobs:parked:<queue>:<of_token>  list    jobs set aside, next one last
-- keys called        jobs:called:<queue>             list    jobs that were parked and put back, next one last
-- keys job_index     jobs:index:<queue>              set     jobs in any state
-- arg  token       text  the subscriber
-- arg  room        int   how many at most
-- arg  called_max  int   how many may stand in line then
-- arg  queues      pack  where from, in order of preference
-- arg  is_probe    int   1 to take first tries as retries: the subscriber is failing and needs a try
-- returns         {jobs put back, how many more could have been, jobs that wait for it: parked, or put back and not taken yet}

local before = tonumber(redis.call("HGET", called_index, token) or 0)
room = math.max(0, math.min(room, called_max - before))
local moved = 0
local must_ring = false
for _, queue in ipairs(queues) do
  local jobs = moved < room and redis.call("RPOP", parked(queue, token), room - moved)
  if jobs then
    moved = moved + #jobs
    local into = is_probe == 1 and "retry" or queue
    if into ~= queue then
      redis.call("SREM", job_index(queue), unpack(jobs))
      redis.call("SADD", job_index(into), unpack(jobs))
    end
    must_ring = redis.call("LPUSH", called(into), unpack(jobs)) == #jobs or must_ring
  end
end
if moved > 0 then
  redis.call("HINCRBY", called_index, token, moved)
end
local left = redis.call("LLEN", parked("retry", token)) + redis.call("LLEN", parked("main", token))
if left == 0 then
  redis.call("SREM", index, token)
end
if must_ring then
  redis.call("XADD", bell, "MAXLEN", 1, "*", "rung", 1)
end
return {moved, room - moved, left + before + moved}
