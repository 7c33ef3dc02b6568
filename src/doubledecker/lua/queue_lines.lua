-- part: how a facet is kept, and its line of waiting messages.
--
-- The first few ids of a line, its head, stand in the facet's record, and only what is behind them, its tail, in a list
-- of its own. The record is read and written anyway whenever a facet is served, so most turns need no more than that;
-- and a tenant with few messages needs no list. A line that is not empty has a head.

-- Tag, mean cost, 1 if the line may have a tail (to know, one would have to ask each time it gets shorter); then the
-- head, ids with a space in between. (MessagePack would take three times as long.)
local FACET = "<ddB"
local FACET_AND_HEAD, HEAD_AT = FACET .. "c0", struct.size(FACET) + 1
local NO_FACET = struct.pack(FACET_AND_HEAD, 0, 0, 0, "")
-- So many ids come to the head together: many enough that the tail is rarely asked, few enough to be written each time.
local HEAD_SIZE = 8
-- A shorter head takes a few more when there is no tail: so a tenant with few messages has none, whenever they come.
local HEAD_BYTES = 64

-- What is done for each facet or message asks for these once: a global is looked up by its name each time.
local pack, unpack_from, cut = struct.pack, struct.unpack, string.sub

local function unpack_facet(packed)
  packed = packed or NO_FACET
  local tag, mean, has_tail = unpack_from(FACET, packed)
  return tag, mean, has_tail, cut(packed, HEAD_AT)
end

local function ids_in(head)
  local ids, count = {}, 0
  for id in string.gmatch(head, "%S+") do
    count = count + 1
    ids[count] = id
  end
  return ids
end

-- How many messages wait; `tail` is the key of the list.
local function length_of(head, has_tail, tail)
  return #ids_in(head) + (has_tail == 1 and redis.call("LLEN", tail) or 0)
end

-- Put messages at the end of a line; returns its head, and 1 if it may have a tail.
local function lengthen(head, has_tail, tail, ids)
  local first = 1
  if head == "" then
    head, first = table.concat(ids, " ", 1, math.min(#ids, HEAD_SIZE)), HEAD_SIZE + 1
  elseif has_tail == 0 and #ids <= HEAD_SIZE and #head < HEAD_BYTES then
    return head .. " " .. table.concat(ids, " "), 0
  end
  if first <= #ids then
    redis.call("RPUSH", tail, unpack(ids, first))
    has_tail = 1
  end
  return head, has_tail
end

-- Take so many messages from the front of a line, or all; returns their ids, its head, and 1 if it may have a tail.
local function take(head, has_tail, tail, count)
  local ids = ids_in(head)
  local had = #ids
  if count < had then
    head = table.concat(ids, " ", count + 1)
    for i = had, count + 1, -1 do
      ids[i] = nil
    end
  elseif has_tail == 0 then
    head = ""
  else
    -- One that is served many times at once needs its tail each time, and no long head.
    local wanted = count - had + (count == 1 and HEAD_SIZE or 1)
    local more = redis.call("LPOP", tail, wanted) or {}
    for i = 1, math.min(count - had, #more) do
      ids[had + i] = more[i]
    end
    head = table.concat(more, " ", count - had + 1)
    has_tail = #more == wanted and 1 or 0
  end
  return ids, head, has_tail
end
