-- Drop the oldest waiting messages of a queue, because memory is short.
--
-- Facets give a few messages in turn, those with the oldest first. Paused facets give none, and messages in consumers'
-- hands or given back for later stay.
--
-- uses queue_records
-- key  data  queue:data:<queue>  hash  messages by id
-- key  counters      counters  hash  telemetry
-- arg  facets_max    int   how many facets of each place are looked at
-- arg  messages_max  int   how many messages to drop at most
-- arg  bytes_enough  int   stop when so many bytes of messages are gone
-- returns            {messages dropped, their bytes}

-- So many of a facet at a time: as many as its record holds.
local TURN = HEAD_SIZE

local function oldest_of(facet)
  return number_of(string.match(head_of(facet), "%S+"))
end

local function line_up_givers()
  local givers = {}
  for _, place in ipairs({ring, wake, parked}) do
    for _, facet in ipairs(read_all(redis.call("ZRANGE", place, 0, facets_max - 1))) do
      local rule = rule_of[facet]
      if is_waiting(facet) and not (rule and rule.is_paused) then
        givers[#givers + 1] = facet
      end
    end
  end
  table.sort(givers, function(a, b) return oldest_of(a) < oldest_of(b) end)
  return givers
end

local dropped, bytes = 0, 0
local function drop_some(facet)
  local wanted = math.min(TURN, messages_max - dropped)
  local gone, head, tail = take(head_of(facet), has_tail[facet], line(queue, name_of[facet]), wanted)
  set_head(facet, head)
  has_tail[facet], taken_of[facet] = tail, (taken_of[facet] or 0) + #gone
  for _, id in ipairs(gone) do
    bytes = bytes + redis.call("HSTRLEN", data, id)
  end
  drop_holders(queue, gone)
  redis.call("HDEL", data, unpack(gone))
  redis.call("HDEL", tried, unpack(gone))
  dropped = dropped + #gone
end

local givers = line_up_givers()
while #givers > 0 and dropped < messages_max and bytes < bytes_enough do
  local still = {}
  for _, facet in ipairs(givers) do
    if dropped < messages_max and bytes < bytes_enough then
      drop_some(facet)
    end
    if is_waiting(facet) then
      still[#still + 1] = facet
    end
  end
  givers = still
end
if dropped > 0 then
  local some = {}
  for facet in pairs(taken_of) do
    some[#some + 1] = facet
  end
  redis.call("HINCRBY", state, "dropped", dropped)
  redis.call("HINCRBY", counters, "queue.dropped:queue=" .. queue, dropped)
  conclude(some)
end
return {dropped, bytes}
