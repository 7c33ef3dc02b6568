-- End an audited action: what was noted when it began goes, and its record is kept, if it has one.
--
-- Beyond the bounds the oldest go: those of a client that has more than its share, then those of all. Which of these the
-- archive had yet to copy is counted.
--
-- uses journal_order
-- key  begun       audit:begun       hash    actions under way, by their requests
-- key  journal     journal           hash    audit_bytes, audit_trimmed, audit_lost, audit_confirmed, archive
-- key  entries     journal:audit     stream  an entry a record
-- keys of_client   audit:of:<token>  list    the entries of a client, the oldest first
-- arg  request     text  which action
-- arg  is_left     int   1 when it was left behind by a process that died: it counts only if nobody has ended it
-- arg  client      text  whose share it takes; empty for root
-- arg  record      text  its record; empty when nothing was changed
-- arg  client_max  int   how many records a client may have
-- arg  bytes_max   int   how much all records may take
-- arg  cuts_max    int   how many to cut at most
-- returns          1 if a record was kept, else 0

local was_begun = redis.call("HDEL", begun, request) == 1
if record == "" or (is_left == 1 and not was_begun) then
  return 0
end

local function cut(entry)
  local whose, text = entry[2][2], entry[2][4]
  redis.call("XDEL", entries, entry[1])
  redis.call("HINCRBY", journal, "audit_bytes", -#text)
  if whose ~= "" then
    redis.call("LPOP", of_client(whose))
  end
  local known = redis.call("HMGET", journal, "audit_trimmed", "archive", "audit_confirmed")
  if is_after(entry[1], known[1] or "0-0") then
    redis.call("HSET", journal, "audit_trimmed", entry[1])
  end
  if known[2] and is_after(entry[1], known[3] or "0-0") then
    redis.call("HINCRBY", journal, "audit_lost", 1)
  end
end

local place = redis.call("XADD", entries, "*", "client", client, "audit", record)
redis.call("HINCRBY", journal, "audit_bytes", #record)
if client ~= "" and redis.call("RPUSH", of_client(client), place) > client_max then
  local oldest = redis.call("LINDEX", of_client(client), 0)
  cut(redis.call("XRANGE", entries, oldest, oldest)[1])
end
for _ = 1, cuts_max do
  if tonumber(redis.call("HGET", journal, "audit_bytes")) <= bytes_max then
    break
  end
  cut(redis.call("XRANGE", entries, "-", "+", "COUNT", 1)[1])
end
return 1
