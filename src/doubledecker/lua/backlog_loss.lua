-- part: what a subscriber lost, for its owner, for people and for the lake.
--
-- Ranges of time say which events to replay to bring them back; an entry of the attempts' journal has one of each call.
--
-- uses receiver_notices
-- key  dropping          notices:dropping:<token>  string  there while it loses batches, and for an hour after
-- key  losses            losses                    hash    what subscribers lost lately: ranges as MessagePack, by subscriber
-- key  journal           journal                   hash    attempts_bytes: what the attempt journal holds
-- key  journal_attempts  journal:attempts          stream  one entry a delivery attempt
-- now

-- Ranges of one subscriber; one more is joined to the latest, with what lies between.
local RANGES_MAX = 32
local RANGES_KEPT_MS = 30 * 86400000
local QUIET_MS = 3600000
-- The lake counts bytes in 32 bits.
local BYTES_SHOWN_MAX = 2147483647

local function note_range(token, from, upto, batches, events, bytes)
  local kept = redis.call("HGET", losses, token)
  local ranges = kept and cmsgpack.unpack(kept) or {}
  while ranges[1] and ranges[1][2] < now - RANGES_KEPT_MS do
    table.remove(ranges, 1)
  end
  local latest = ranges[#ranges]
  if latest and (from <= latest[2] or #ranges >= RANGES_MAX) then
    latest[1], latest[2] = math.min(latest[1], from), math.max(latest[2], upto)
    latest[3], latest[4], latest[5] = latest[3] + batches, latest[4] + events, latest[5] + bytes
  else
    ranges[#ranges + 1] = {from, upto, batches, events, bytes}
  end
  redis.call("HSET", losses, token, cmsgpack.pack(ranges))
end

-- All that was lost was accepted from `from` until before `upto`; `bid` is the first of the batches.
local function note_loss(token, bid, from, upto, batches, events, bytes)
  note_range(token, from, upto, batches, events, bytes)
  local record = string.format(
    '{"batch":"%s","subscriber":"%s","attempt":0,"outcome":"dropped","took_ms":0,"at":%d,"events":[],"accepted_at":%d,"bytes":%d,'
      .. '"detail":"%d events in %d batches, accepted from %d until before %d: more waited than backlog_max_bytes"}',
    bid, token, now, from, math.min(bytes, BYTES_SHOWN_MAX), events, batches, from, upto
  )
  redis.call("XADD", journal_attempts, "*", "attempt", record)
  redis.call("HINCRBY", journal, "attempts_bytes", #record)
  if redis.call("SET", dropping, now, "NX", "PX", QUIET_MS) then
    add_notice("receiver.dropping", token, "backlog 0", 0, from)
  else
    redis.call("PEXPIRE", dropping, QUIET_MS)
  end
end
