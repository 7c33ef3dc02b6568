-- part: how far a Spark task has published, and which of its rows were refused; see store/write_offsets.py
--
-- keys fence     fence:<task>    hash  batch, rows and digest of what a Spark task has published
-- keys refusals  refused:<task>  list  its refused rows: what refused them, as JSON, and on the next line their numbers

-- Whether a call begins where the task's last one ended. If not, another attempt of the task was faster.
local function follows(call)
  local kept = redis.call("HMGET", fence(call[1]), "batch", "rows")
  local batch_now = tonumber(kept[1] or -1)
  local rows_now = batch_now == call[2] and tonumber(kept[2]) or 0
  return batch_now <= call[2] and rows_now == call[3]
end

-- Keep the refused rows of this call: `barred` were refused before it, `refused_by` says why others were. `numbers` are
-- the row numbers of the events; without them the events are consecutive rows.
local function keep_refused(task, first, barred, numbers, refused_by)
  local found = barred
  local rows_of = {}
  for i, why in pairs(refused_by) do
    rows_of[why] = rows_of[why] or {}
    table.insert(rows_of[why], numbers[i] or first + i - 1)
  end
  for why, rows in pairs(rows_of) do
    local by = cjson.encode({string.match(why, "^(%S+) (.*)$")})
    found[#found + 1] = by .. "\n" .. table.concat(rows, ",")
  end
  if #found > 0 then
    redis.call("RPUSH", refusals(task), unpack(found))
  end
end

local function advance(call, refused_by)
  local task, kept_ms = call[1], call[6]
  redis.call("HSET", fence(task), "batch", call[2], "rows", call[4], "digest", call[5])
  redis.call("PEXPIRE", fence(task), kept_ms)
  -- A replay does not keep its refusals.
  if call[7] then
    if call[3] == 0 then
      redis.call("DEL", refusals(task))
    end
    keep_refused(task, call[3], call[7], call[8], refused_by)
    redis.call("PEXPIRE", refusals(task), kept_ms)
  end
end
