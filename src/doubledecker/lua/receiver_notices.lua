-- part: notices of what happens to receivers, for a worker to publish.
--
-- They are written in the atom that makes it happen, so that no death of a process loses one. Once its owner was notified
-- that a receiver fails, it is notified of the recovery at once, and of the next failure a minute later at the earliest.
--
-- key  notices   notices                 stream  type, receiver, why, failures and since of each that is yet to be published
-- keys noticed   notices:open:<token>    string  when the notice that it fails was written; empty once it has recovered
-- keys lettered  notices:letter:<token>  string  there for a minute after a notice of a first dead letter
-- now

local NOTICE_MS = 60000
-- A receiver that is gone is forgotten by then; each failed call of one that is not keeps it.
local NOTICED_KEPT_MS = 86400000
-- They wait while no worker runs or memory is full; beyond this the oldest go.
local NOTICES_MAX = 10000
-- As model/subscriber.py has it.
local DISABLED = 2

local function add_notice(type, token, why, failures, since)
  redis.call("XADD", notices, "MAXLEN", "~", NOTICES_MAX, "*",
    "type", type, "receiver", token, "why", why, "failures", failures, "since", since)
end

-- A call has ended: `before` are the receiver's failures before it, `why` is what went wrong, empty when nothing did or
-- when nothing but notices was sent: else a receiver that fails with these alone would be notified of for ever.
local function notice_change(it, before, why)
  if it.failures > 0 and why ~= "" then
    local at = redis.call("GET", noticed(it.token))
    -- One that moved to another address begins anew, though its recovery was never noted.
    if not at or (at ~= "" and before == 0 and now - at >= NOTICE_MS) then
      add_notice("receiver.failing", it.token, why, it.failures, it.failing_since)
      redis.call("SET", noticed(it.token), now, "PX", NOTICED_KEPT_MS)
    elseif at ~= "" then
      redis.call("PEXPIRE", noticed(it.token), NOTICED_KEPT_MS)
    end
  elseif it.failures == 0 and before > 0 then
    local at = redis.call("GET", noticed(it.token)) or ""
    if at ~= "" then
      add_notice("receiver.recovered", it.token, "", before, at)
      redis.call("SET", noticed(it.token), "", "PX", math.max(1, NOTICE_MS - (now - at)))
    end
  end
end

-- Letters of a receiver that had none. Its own lost notifications are no news.
local function notice_first_letter(token, letters)
  for _, it in ipairs(letters) do
    if string.sub(it.topic, 1, 13) ~= "doubledecker." then
      if redis.call("SET", lettered(token), 1, "NX", "PX", NOTICE_MS) then
        add_notice("receiver.dead_letter", token, it.reason .. " " .. it.status, 0, now)
      end
      return
    end
  end
end

-- A receiver is to be halted in this way, or not at all.
local function notice_halt(it, halt)
  if halt == DISABLED and it.halt ~= DISABLED then
    add_notice("receiver.disabled", it.token, "", it.failures, now)
  end
end
