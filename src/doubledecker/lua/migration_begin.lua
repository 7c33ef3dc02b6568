-- Begin to migrate a partition, or go on with it; processes of format 1 write nothing in it from here on.
--
-- Theirs would be jobs and batches that nobody reads. A publish of format 1 begins by comparing the field `version` with a
-- number, and a slot's next job with a look at the list of the job that it holds: where there is neither, both fail before
-- they have written anything. What dead slots held is kept aside.
--
-- key  registry   registry                 hash    routing_version; version: a number in format 1
-- key  migration  migration                hash    owner: the process that migrates
-- key  workers    workers                  hash    slots and when they were last alive
-- key  scheduled  jobs:scheduled:main      zset    jobs by deadline, of format 1
-- key  former     migration:scheduled      zset    the same, out of the way
-- key  pending    migration:pending        list    jobs that dead slots held
-- keys held       jobs:pending:main:<slot>  list   the job that a slot of format 1 held
-- arg  owner      text  who migrates
-- arg  under_way  text  what is written in place of the version until the partition is migrated
-- arg  done       text  the same, from then on
-- arg  barred_s   int   for how long a slot of format 1 is barred
-- returns         {phase that was reached} or {"done"} when there is nothing left to do

local version = redis.call("HGET", registry, "version") or "0"
if version == done then
  return {"done"}
end
redis.call("HSET", migration, "owner", owner)
if version ~= under_way then
  redis.call("HSET", registry, "routing_version", version, "version", under_way)
  if redis.call("EXISTS", scheduled) == 1 then
    redis.call("RENAME", scheduled, former)
  end
end
-- Also when this was done before: slots may have come since.
for _, slot in ipairs(redis.call("HKEYS", workers)) do
  if redis.call("TYPE", held(slot)).ok ~= "string" then
    local job = redis.call("LPOP", held(slot))
    if job then
      redis.call("RPUSH", pending, job)
    end
    redis.call("SET", held(slot), done, "EX", barred_s)
  end
end
return {redis.call("HGET", migration, "phase") or "begun"}
