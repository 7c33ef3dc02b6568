-- Write how the data is laid out.
--
-- key layout    layout  hash  format, count, partitions
-- arg fields    pack  field, value, field, value, …
-- arg is_first  int   1 to write only when there is no data yet
-- returns       the layout as it is now: field, value, …

if is_first == 0 or redis.call("EXISTS", layout) == 0 then
  redis.call("HSET", layout, unpack(fields))
end
return redis.call("HGETALL", layout)
