-- Bring dead letters back to life, each to its old place in its own line, with all its attempts before it.
--
-- uses queue_records
-- arg  ids  pack  the dead letters
-- returns   the ids that came back

local came = {}
for _, id in ipairs(ids) do
  local packed = redis.call("HGET", dead, id)
  if packed then
    local name, attempts, _, _, message = unpack(cmsgpack.unpack(packed))
    revive(id, name, attempts, 1, attempts, message)
    came[#came + 1] = id
  end
end
return_all()
conclude()
return came
