-- part: messages of a queue that die, and live again.
--
-- uses queue_records
-- uses dead_letters
-- key  data  queue:data:<queue>  hash  messages by id

local as_receiver = "@" .. queue

-- A message dies. `reason` is a word; `status`, `headers` and `answer` are what its receiver answered last, if it was pushed.
local function bury(record, reason, why, status, headers, answer)
  local id, text = record.id, redis.call("HGET", data, record.id)
  note("dead", id, record.name, record.attempt, 0)
  add_dead_letter(as_receiver, {
    id = id, topic = string.match(text, '^{"topic":"([^"]*)"') or "", tenant = record.name, reason = reason,
    status = status or 0, attempts = record.attempt, accepted_at = 0, detail = why, answer_headers = headers or "",
    answer = answer or "", batch = "", event = text,
  })
  redis.call("HDEL", data, id)
  redis.call("HDEL", tried, id)
  free_lanes({id})
end

-- A dead letter lives again as a message that was tried so often; its attempts are counted on, so that a consumer
-- which held it before it died cannot settle it now.
local function revive(letter, together, forgiven)
  local id, name = letter.id, letter.tenant
  redis.call("HSET", data, id, letter.event)
  redis.call("HSET", tried, id, pack(RECORD_AND_NAME, letter.attempts, together, forgiven, 0, 0, 0, name))
  give_back(id, name)
  note("redriven", id, name, 0, 0)
end
