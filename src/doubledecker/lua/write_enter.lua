-- Let a task of a Spark write publish, unless the write is complete without it or a later batch has begun.
--
-- key  record   write:<write>  hash  batch, tasks and is_complete of what a Spark query writes
-- arg  batch    int  which batch of the query
-- arg  task     int  the task's number in it
-- arg  kept_ms  int  for how long the record is kept
-- returns       {"ok", 1 if the write is complete}, {"complete", its tasks} or {"older", the batch that has begun}

local kept = redis.call("HMGET", record, "batch", "tasks", "is_complete")
local batch_now, tasks, is_complete = tonumber(kept[1] or -1), tonumber(kept[2] or 0), kept[3] == "1"
if batch_now > batch then
  return {"older", batch_now}
end
if batch_now < batch then
  tasks, is_complete = 0, false
end
if is_complete then
  return task < tasks and {"ok", 1} or {"complete", tasks}
end
redis.call("HSET", record, "batch", batch, "tasks", math.max(tasks, task + 1), "is_complete", "0")
redis.call("PEXPIRE", record, kept_ms)
return {"ok", 0}
