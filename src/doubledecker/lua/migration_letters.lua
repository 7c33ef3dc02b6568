-- Move dead letters of a queue to where those of all receivers are, unless another process migrates.
--
-- uses dead_letters
-- key migration   migration                 hash  owner: the process that migrates
-- key dead        queue:dead:<queue>        hash  dead letters as they were kept before, by id: facet, attempts, why, when, the message
-- key dead_index  queue:dead:index:<queue>  zset  their ids by time of death
-- arg owner       text  who migrates; empty where nobody does
-- arg queue       text  the queue's name
-- arg ids         pack  the letters, the oldest first
-- returns         1, or 0 if another migrates

if (redis.call("HGET", migration, "owner") or "") ~= owner then
  return 0
end
for i, packed in ipairs(redis.call("HMGET", dead, unpack(ids))) do
  if packed then
    local tenant, attempts, why, died_at, event = unpack(cmsgpack.unpack(packed))
    add_dead_letter("@" .. queue, {
      id = ids[i], topic = string.match(event, '^{"topic":"([^"]*)"') or "", tenant = tenant,
      reason = string.match(why, "^the lease of attempt") and "lease" or "attempts", status = 0, attempts = attempts,
      accepted_at = 0, died_at = died_at, detail = why, answer_headers = "", answer = "", batch = "", event = event,
    })
  end
end
write_dead_letters()
redis.call("HDEL", dead, unpack(ids))
redis.call("ZREM", dead_index, unpack(ids))
return 1
