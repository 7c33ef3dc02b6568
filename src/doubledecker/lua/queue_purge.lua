-- Destroy waiting messages of one facet, the oldest first; those in consumers' hands are left to them.
--
-- uses queue_records
-- key  data  queue:data:<queue>  hash  messages by id
-- key  scheduled     queue:scheduled:<queue>  zset  ids of messages that come back later, by when
-- arg  facet    text  the facet
-- arg  most     int   how many of its line in one call
-- arg  delayed  pack  ids of messages that come back later; those of this facet go too
-- arg  held     pack  lanes of this facet that are held: so many of those that wait behind each go too
-- returns       how many were destroyed

if is_anothers then
  return 0
end
local purged = facet_of(facet)
local gone, head, tail = take(head_of(purged), has_tail[purged], line(queue, facet), most)
set_head(purged, head)
has_tail[purged], taken_of[purged] = tail, #gone > 0 and #gone or nil
for _, id in ipairs(delayed) do
  local record = redis.call("HGET", tried, id)
  if record and unpack_record(id, record).name == facet and redis.call("ZREM", scheduled, id) == 1 then
    gone[#gone + 1] = id
  end
end
for _, lane in ipairs(held) do
  for _, id in ipairs(redis.call("LPOP", queue_behind(queue, lane), most) or {}) do
    gone[#gone + 1] = id
  end
end
if #gone == 0 then
  return 0
end
drop_holders(queue, gone)
redis.call("HDEL", data, unpack(gone))
redis.call("HDEL", tried, unpack(gone))
redis.call("HINCRBY", state, "purged", #gone)
conclude({purged})
return #gone
