-- Bring dead letters back to life, each to its old place in its own line, as if never tried.
--
-- uses queue_facets
-- arg  ids  pack  the dead letters
-- returns   the ids that came back

local came, touched = {}, {}
for _, id in ipairs(ids) do
  local packed = redis.call("HGET", dead, id)
  if packed then
    local name, _, _, _, message = unpack(cmsgpack.unpack(packed))
    redis.call("HDEL", dead, id)
    redis.call("ZREM", dead_index, id)
    redis.call("HSET", data, id, message)
    give_back(id, name)
    note("redriven", id, name, 0, 0)
    touched[name] = facet_of(name)
    came[#came + 1] = id
  end
end
for _, facet in pairs(touched) do
  seat(facet)
end
if #came > 0 then
  save()
  conclude()
end
return came
