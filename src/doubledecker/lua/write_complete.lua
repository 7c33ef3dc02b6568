-- Mark a Spark write as complete, unless an earlier run of it had more tasks or a later batch has begun.
--
-- key  record   write:<write>  hash  batch, tasks and is_complete of what a Spark query writes
-- arg  batch    int  which batch of the query
-- arg  tasks    int  how many tasks it has now
-- arg  kept_ms  int  for how long the record is kept
-- returns       {"ok", 0}, {"fewer", how many tasks have published} or {"older", the batch that has begun}

local kept = redis.call("HMGET", record, "batch", "tasks")
local batch_now, tasks_before = tonumber(kept[1] or -1), tonumber(kept[2] or 0)
if batch_now > batch then
  return {"older", batch_now}
end
if batch_now < batch then
  tasks_before = 0
end
if tasks_before > tasks then
  return {"fewer", tasks_before}
end
redis.call("HSET", record, "batch", batch, "tasks", tasks_before, "is_complete", "1")
redis.call("PEXPIRE", record, kept_ms)
return {"ok", 0}
