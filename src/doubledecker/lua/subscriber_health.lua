-- Keep the health of subscribers: points won and lost, and when they were last called.
--
-- keys subscriber  subscriber:<token>  hash  health_points, last_attempted_at
-- arg  notes       pack  of each: subscriber, points won or lost in order, when the last attempt began
-- returns          0

for _, note in ipairs(notes) do
  local key, points, last_at = subscriber(note[1]), note[2], note[3]
  if redis.call("EXISTS", key) == 1 then
    local kept = redis.call("HMGET", key, "health_points", "last_attempted_at")
    local health = tonumber(kept[1] or 100)
    for _, by in ipairs(points) do
      health = math.max(0, math.min(100, health + by))
    end
    redis.call("HSET", key, "health_points", health, "last_attempted_at", math.max(last_at, tonumber(kept[2] or 0)))
  end
end
return 0
