-- Bring dead letters back to life, each to its old place in its own line, with all its attempts before it.
--
-- Attempts are counted on, so that whoever held one in its former life cannot settle it in this one.
--
-- uses queue_records
-- arg  ids  pack  the dead letters
-- returns   the ids that came back

local came = {}
for _, id in ipairs(ids) do
  local packed = redis.call("HGET", dead, id)
  if packed then
    local name, attempts, _, _, message = unpack(cmsgpack.unpack(packed))
    redis.call("HDEL", dead, id)
    redis.call("ZREM", dead_index, id)
    redis.call("HSET", data, id, message)
    local record = {attempt = attempts, together = 1, forgiven = attempts, pulled_at = 0, charged = 0, tag = 0}
    record.name = name
    redis.call("HSET", tried, id, pack_record(record))
    give_back(id, name)
    note("redriven", id, name, 0, 0)
    came[#came + 1] = id
  end
end
return_all()
seat_all(all_moved())
save()
conclude()
return came
