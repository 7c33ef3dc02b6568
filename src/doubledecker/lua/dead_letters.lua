-- part: dead letters of receivers: of subscribers, and of queues as `@<queue>`.
--
-- A letter is a record by its id. Its id stands in five sorted sets: that of all letters of its receiver, and one each for
-- its topic, tenant, reason and status, so that those of a value are listed and counted without a look at the others. The
-- score is the letter's stamp: the microsecond of its death, or the next that is free, so that no two letters of a receiver
-- have the same and a page can begin after one. The sets are there while they have a member. `store/dead_letters.py` reads.
--
-- Letters that a call adds are written together: it ends with `write_dead_letters`.
--
-- uses receiver_notices
-- keys letters_of     dead:letters:<receiver>             hash  its letters by id, as MessagePack
-- keys letters_index  dead:index:<receiver>               zset  their ids by stamp
-- keys letters_by     dead:by:<receiver>:<field>:<value>  zset  ids of those with this value
-- keys letter_counts  dead:counts:<receiver>:<field>      zset  how many letters have each value
-- key  letter_bytes   dead:bytes                          zset  receivers by the bytes that their letters take
-- key  letters_done   dead:done                           hash  how many letters each job has redriven or purged
-- now

-- The values that letters are found by; a record begins with them.
local LETTER_FIELDS = {"topic", "tenant", "reason", "status"}
-- What a letter takes beside its record: 518 bytes of each of 20,000, whose ids have 22 characters.
local LETTER_EXTRA_BYTES = 520
-- Records that are read by one command: each may have 70 KiB.
local LETTERS_READ = 25

local letters_added = {}

-- Keep what is given up for a receiver. Of a letter: `id`, which is new; `topic`, `tenant`; `reason`, a word; `status`, of
-- the last answer, or 0; `attempts`; `accepted_at`, in milliseconds, or 0; `detail`, a line; `answer_headers`, a header a
-- line; `answer`, the answer's beginning; `batch`; `event`, as it is delivered; `died_at`, if that was before. All texts are
-- UTF-8.
local function add_dead_letter(receiver, letter)
  letters_added[receiver] = letters_added[receiver] or {}
  table.insert(letters_added[receiver], letter)
end

-- Sort ids by the values of their letters: of each field, of each value, the words for a command.
local function note_values(by, record, ...)
  for i, field in ipairs(LETTER_FIELDS) do
    local value = tostring(record[i])
    by[field] = by[field] or {}
    by[field][value] = by[field][value] or {}
    for _, word in ipairs({...}) do
      table.insert(by[field][value], word)
    end
  end
end

local function write_dead_letters()
  for receiver, letters in pairs(letters_added) do
    local last = tonumber(redis.call("ZRANGE", letters_index(receiver), -1, -1, "WITHSCORES")[2] or 0)
    local stamp, records, index, by, bytes = last, {}, {}, {}, 0
    for i, it in ipairs(letters) do
      local died_at = it.died_at or now
      stamp = math.max(died_at * 1000, stamp + 1)
      local record = {
        it.topic, it.tenant, it.reason, it.status, it.attempts, it.accepted_at, died_at, it.detail, it.answer_headers,
        it.answer, it.batch, it.event,
      }
      records[2 * i - 1], records[2 * i] = it.id, cmsgpack.pack(record)
      index[2 * i - 1], index[2 * i] = stamp, it.id
      note_values(by, record, stamp, it.id)
      bytes = bytes + #records[2 * i] + LETTER_EXTRA_BYTES
    end
    -- What died before and was kept elsewhere is no news.
    if last == 0 and not letters[1].died_at then
      notice_first_letter(receiver, letters)
    end
    redis.call("HSET", letters_of(receiver), unpack(records))
    redis.call("ZADD", letters_index(receiver), unpack(index))
    for field, values in pairs(by) do
      for value, words in pairs(values) do
        redis.call("ZADD", letters_by(receiver, field, value), unpack(words))
        redis.call("ZINCRBY", letter_counts(receiver, field), #words / 2, value)
      end
    end
    redis.call("ZINCRBY", letter_bytes, bytes, receiver)
  end
  letters_added = {}
end

-- The letter of a record, named as `add_dead_letter` takes it.
local function read_letter(id, packed)
  local v = cmsgpack.unpack(packed)
  return {
    id = id, topic = v[1], tenant = v[2], reason = v[3], status = v[4], attempts = v[5], accepted_at = v[6],
    died_at = v[7], detail = v[8], answer_headers = v[9], answer = v[10], batch = v[11], event = v[12],
  }
end

-- Take letters away, of those with these ids the ones that are there, until they have had so many bytes; returns them, how
-- many ids were gone through, and the bytes.
local function take_dead_letters(receiver, ids, bytes_enough)
  local found, seen, gone, by, bytes, at = {}, {}, {}, {}, 0, 0
  while at < #ids and bytes < bytes_enough do
    local first, last = at + 1, math.min(#ids, at + LETTERS_READ)
    local page = redis.call("HMGET", letters_of(receiver), unpack(ids, first, last))
    while at < last and bytes < bytes_enough do
      at = at + 1
      local id, packed = ids[at], page[at - first + 1]
      if packed and not seen[id] then
        local letter = read_letter(id, packed)
        found[#found + 1], seen[id], gone[#gone + 1] = letter, true, id
        note_values(by, {letter.topic, letter.tenant, letter.reason, letter.status}, id)
        bytes = bytes + #packed + LETTER_EXTRA_BYTES
      end
    end
  end
  if #gone == 0 then
    return found, at, 0
  end
  redis.call("HDEL", letters_of(receiver), unpack(gone))
  redis.call("ZREM", letters_index(receiver), unpack(gone))
  for field, values in pairs(by) do
    for value, words in pairs(values) do
      redis.call("ZREM", letters_by(receiver, field, value), unpack(words))
      redis.call("ZINCRBY", letter_counts(receiver, field), -#words, value)
    end
    redis.call("ZREMRANGEBYSCORE", letter_counts(receiver, field), "-inf", 0)
  end
  redis.call("ZINCRBY", letter_bytes, -bytes, receiver)
  redis.call("ZREMRANGEBYSCORE", letter_bytes, "-inf", 0)
  return found, at, bytes
end

-- An event that is delivered once more because somebody asked for it: out of order, and it says so. Its last field is ours.
local function mark_redriven(event)
  -- Looked for in the last bytes alone: the pattern would try every comma of the event.
  local field, times = string.match(string.sub(event, -32), '(,"redriven":(%d+)})$')
  return string.sub(event, 1, -1 - #(field or "}")) .. ',"redriven":' .. (times or 0) + 1 .. "}"
end

-- So many letters have left as a job wanted; those of no job are not counted.
local function count_for(job, amount)
  if job ~= "" and amount > 0 then
    redis.call("HINCRBY", letters_done, job, amount)
  end
end
