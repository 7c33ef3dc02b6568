"""What to do after an attempt: pure, so that every case is a line in a test.

Failing is a matter of receivers, refusing a matter of content, and each has a clock of its own.

- A batch that its receiver refuses for its content is tried again on its own schedule, and holds up nothing else.
- Any other failure makes the receiver *failing*: it is left alone for a while that doubles with every batch that fails,
  and then probed with one batch at a time. The batch that failed stays first in line, so that order holds.
- A batch that has failed twice may be what makes the receiver fail. It is put aside, on its own schedule, and the next
  probe is another batch. An answer about address or credentials is likely not about the batch: it has five tries. Where
  nobody was there, or the receiver asks for patience, the batch cannot be to blame, and stays first.

Delays are a random part of a span that doubles (full jitter), so that a receiver that comes back is not met by everyone
at once. A receiver that names its own delay gets at least that.

Messages of a queue are settled one by one (`fates`): a receiver may take some of a batch and name those that failed.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from doubledecker.model.outcome import Outcome, failed_ids
from doubledecker.model.settlement import DELIVERED, FIRST, Settlement
from doubledecker.store.queues import LeasedMessage, QueueMessage

# A receiver that failed once has mostly stumbled: it is probed soon. One that is back is found so within a minute.
PROBE_BASE_MS = 100
PROBE_CAP_MS = 60_000
# After so many failed attempts a batch is put aside, and the next one is tried.
TRIES_MAX = 2
ADDRESS_TRIES_MAX = 5
# An answer may ask for more patience than our own cap, but not for ever.
RETRY_AFTER_MS_MAX = 3_600_000


@dataclass(frozen=True)
class RetrySchedule:
    """The span of a batch's first delay, and the longest."""

    base_ms: int = 1_000
    cap_ms: int = 300_000


@dataclass(frozen=True)
class Fates:
    """Which messages are done, which come back and when, and what a dead letter would say."""

    acked: Sequence[LeasedMessage]
    given_back: Sequence[LeasedMessage]
    why: str


def decide(outcome: Outcome, *, attempts: int, failures: int, backoff: RetrySchedule, chance: float) -> Settlement:
    """`attempts` counts this one; `failures` are those of the receiver before it; `chance` is random, from 0 to 1."""
    if outcome.is_delivered:
        return DELIVERED
    tries_max = ADDRESS_TRIES_MAX if outcome.blames_address else TRIES_MAX
    is_suspect = not outcome.acquits_content and attempts >= tries_max
    # A batch that may be to blame itself says nothing new of its receiver.
    raises = not is_suspect
    probe_ms = _delay(failures + raises, PROBE_BASE_MS, min(PROBE_CAP_MS, backoff.cap_ms), chance)
    if outcome.patience_ms is not None:
        probe_ms = max(probe_ms, min(outcome.patience_ms, RETRY_AFTER_MS_MAX))
    retry_ms = delay_after(attempts, backoff=backoff, chance=chance)
    if outcome.blames_content:
        return Settlement("refused", raises, probe_ms, retry_ms)
    return Settlement("failed", raises, probe_ms, retry_ms if is_suspect else FIRST)


def fates(
    outcome: Outcome, messages: Sequence[QueueMessage], ids: Sequence[str], *, backoff: RetrySchedule, chance: float
) -> Fates:
    """What happens to each message; pure. One chance serves all, so that those of equal attempts keep their order."""

    def later(message: QueueMessage) -> LeasedMessage:
        return LeasedMessage(message.id, message.attempt, delay_after(message.tries, backoff=backoff, chance=chance))

    if outcome.is_delivered:
        failed = failed_ids(outcome.answer)
        pairs = list(zip(messages, ids, strict=True))
        acked = [LeasedMessage(message.id, message.attempt) for message, id_ in pairs if id_ not in failed]
        return Fates(acked, [later(message) for message, id_ in pairs if id_ in failed], "failed by the receiver")
    why = f"{outcome.kind.value}: {outcome.detail if outcome.status is None else outcome.status}"
    if outcome.acquits_content:
        return Fates([], [LeasedMessage(message.id, message.attempt, is_spared=True) for message in messages], why)
    return Fates([], [later(message) for message in messages], why)


def delay_after(attempts: int, *, backoff: RetrySchedule, chance: float) -> int:
    """Milliseconds until a batch or a message is tried again by its own schedule."""
    return _delay(attempts, backoff.base_ms, backoff.cap_ms, chance)


def _delay(times: int, base_ms: int, cap_ms: int, chance: float) -> int:
    # Doubling beyond 2^30 would only overflow what the cap cuts off anyway.
    return 1 + int(chance * min(cap_ms, base_ms * 2 ** max(0, min(times - 1, 30))))
