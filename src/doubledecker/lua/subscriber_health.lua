-- Keep the health of subscribers: points won and lost, and when they were last called.
--
-- keys subscriber  subscriber:<token>  hash  health_points, last_attempted_at
-- arg  notes       pack  of each: subscriber, points won or lost, least and most that it has then, when the last attempt began
-- returns          0

for _, note in ipairs(notes) do
  local token, by, least, most, last_at = unpack(note)
  local key = subscriber(token)
  if redis.call("EXISTS", key) == 1 then
    local kept = redis.call("HMGET", key, "health_points", "last_attempted_at")
    local health = math.max(least, math.min(most, tonumber(kept[1] or 100) + by))
    redis.call("HSET", key, "health_points", health, "last_attempted_at", math.max(last_at, tonumber(kept[2] or 0)))
  end
end
return 0
