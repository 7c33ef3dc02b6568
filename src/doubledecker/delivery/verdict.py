"""What to do after an attempt: pure, so that every case is a line in a test.

Failing is a matter of receivers, refusing a matter of content, and each has a clock of its own.

- A batch that its receiver refuses for its content is split in halves, and these again, until the events that are to
  blame stand alone. Such an event is tried again on a schedule that spans hours, holds up nothing else, and then is
  given up: it becomes a dead letter.
- Any other failure makes the receiver *failing*: it is left alone for a while that doubles with every batch that fails,
  and then probed with one batch at a time. The batch that failed stays first in line, so that order holds.
- A batch that has failed twice may be what makes the receiver fail. It is put aside, on its own schedule, and the next
  probe is another batch; if it fails again once the receiver is well, it is split too. An answer about address or
  credentials is likely not about the batch: it has five tries. Where nobody was there, or the receiver asks for
  patience, the batch cannot be to blame, and stays first.
- A failing receiver is never given up, but by a `retry` of its own, which then holds for each batch.

Delays are a random part of a span that doubles (full jitter), so that a receiver that comes back is not met by everyone
at once. A receiver that names its own delay gets at least that.

Of an *ordered* receiver only events that stand alone are put aside, each of which then holds its key: a batch of
several stays first in line until it is taken, split, or given up.

Messages of a queue are settled one by one (`fates`): a receiver may take some of a batch and name those that failed.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from doubledecker.model.outcome import NAMED, Outcome, failed_ids
from doubledecker.model.retry import RetryPolicy
from doubledecker.model.settlement import DELIVERED, FIRST, PATH, Settlement, searches_max
from doubledecker.store.queues import LeasedMessage, QueueMessage

# A receiver that failed once has mostly stumbled: it is probed soon. One that is back is found so within a minute.
PROBE_BASE_MS = 100
PROBE_CAP_MS = 60_000
# After so many failed attempts a batch is put aside, and the next one is tried.
TRIES_MAX = 2
ADDRESS_TRIES_MAX = 5
# An answer may ask for more patience than our own cap, but not for ever.
RETRY_AFTER_MS_MAX = 86_400_000
# Events of an ordered receiver that it named as failed stay first in line, so all others wait for them.
NAMED_MS_MAX = 10_000
# An event that stands alone is tried so often, unless its receiver has a `retry` of its own.
ALONE_ATTEMPTS_MAX = 8
# What is tried again costs the worker, the journal and Redis by its bytes; however short the schedule that its receiver
# asked for, it is not tried more often than so many bytes a millisecond.
_BYTES_PER_MS = 8_192
# Each of these tries waits five times as long as the one before, half of it at random: eight span three to five hours.
_ALONE_GROWTH = 5
_ALONE_CAPS = 48


@dataclass(frozen=True)
class RetrySchedule:
    """The span of a batch's first delay, and the longest."""

    base_ms: int = 1_000
    cap_ms: int = 300_000


@dataclass(frozen=True)
class Tried:
    """What a verdict needs to know of a batch; `attempts` counts this one.

    `failures` are those of its receiver before the attempt; `age_ms` is how long ago the batch was made; `is_ordered`
    is what the receiver asked to be. `bytes` is how long the request was.
    """

    batch: str
    events: int
    attempts: int
    failures: int
    age_ms: int = 0
    is_ordered: bool = False
    bytes: int = 0

    @property
    def is_part(self) -> bool:
        return PATH in self.batch


@dataclass(frozen=True)
class Fates:
    """Which messages are done, which come back and when, and what a dead letter would say."""

    acked: Sequence[LeasedMessage]
    given_back: Sequence[LeasedMessage]
    why: str


def decide(
    outcome: Outcome, tried: Tried, *, backoff: RetrySchedule, chance: float, retry: RetryPolicy | None = None
) -> Settlement:
    """`chance` is random, from 0 to 1; `retry` is what the receiver asked for."""
    if outcome.is_delivered:
        return DELIVERED
    is_suspect = _is_suspect(outcome, tried)
    # A batch that may be to blame itself says nothing new of its receiver; a part of one does once.
    raises = tried.attempts == 1 or not is_suspect
    probe_ms = _probe_ms(outcome, tried.failures + raises, backoff, chance)
    is_blamed, is_one = outcome.blames_content or is_suspect, tried.events == 1
    # While the receiver fails it is not known which of them is to blame.
    is_alone = is_blamed and is_one and tried.failures == 0
    dead = "" if outcome.is_gone else _given_up(tried, retry, is_alone=is_alone)
    is_content = outcome.blames_content or tried.is_part or tried.failures == 0 or tried.is_ordered
    if dead == "attempts" and is_blamed and not is_one:
        # Those that are to blame will stand alone, and have attempts of their own; the others may be taken.
        dead, is_content = "", True
    is_split = not dead and is_blamed and not is_one and is_content
    retry_ms = _retry_ms(tried.attempts, retry, backoff, chance, is_alone=is_alone, size=tried.bytes)
    # Several events of an ordered receiver are never passed by others.
    must_lead = tried.is_ordered and not is_one
    # What is not to blame waits first in line; a receiver with a schedule of its own asked for that in an outage alone.
    may_lead = outcome.acquits_content if retry else not is_blamed
    if retry and (outcome.acquits_content or must_lead):
        # Its receiver waits for as long as it would have.
        probe_ms = max(probe_ms, retry_ms)
    if must_lead or may_lead:
        retry_ms = FIRST
    return Settlement(
        "refused" if outcome.blames_content else "failed",
        raises,
        probe_ms,
        retry_ms,
        is_split,
        dead,
        searches_max(tried.batch, tried.events),
        is_counted=bool(retry and retry.attempts_max) or tried.failures == 0 or tried.attempts <= ADDRESS_TRIES_MAX,
    )


def _is_suspect(outcome: Outcome, tried: Tried) -> bool:
    """Whether a batch may be what makes its receiver fail."""
    tries_max = ADDRESS_TRIES_MAX if outcome.blames_address else 1 if tried.is_part else TRIES_MAX
    return not outcome.acquits_content and tried.attempts >= tries_max


def _probe_ms(outcome: Outcome, failures: int, backoff: RetrySchedule, chance: float) -> int:
    probe_ms = _delay(failures, PROBE_BASE_MS, min(PROBE_CAP_MS, backoff.cap_ms), chance)
    if outcome.patience_ms is not None:
        probe_ms = max(probe_ms, min(outcome.patience_ms, RETRY_AFTER_MS_MAX))
    return probe_ms


def decide_named(
    tried: Tried, *, backoff: RetrySchedule, chance: float, retry: RetryPolicy | None, is_all: bool = False
) -> Settlement:
    """Decide for the events that a receiver named as failed in a 2xx: they go on as a batch of their own.

    Of an ordered receiver they stay first in line, and it is left alone for a while; what was named before, and is
    named again as a whole (`is_all`), is split.
    """
    retry_ms = _retry_ms(tried.attempts, retry, backoff, chance, is_alone=True, size=tried.bytes)
    dead = _given_up(tried, retry, is_alone=True)
    if not tried.is_ordered or tried.events == 1:
        return Settlement("delivered", retry_ms=retry_ms, dead=dead)
    is_split = is_all and not dead and (tried.is_part or tried.attempts > 1)
    return Settlement(
        "delivered", is_split=is_split, dead=dead, pause_ms=0 if is_split else min(retry_ms, NAMED_MS_MAX)
    )


def _given_up(tried: Tried, retry: RetryPolicy | None, *, is_alone: bool) -> str:
    """Why it is given up, if it is. Without a `retry` only what stands alone is, while its receiver takes others."""
    if retry is None:
        return "attempts" if is_alone and tried.attempts >= ALONE_ATTEMPTS_MAX else ""
    most = retry.attempts_max or (ALONE_ATTEMPTS_MAX if is_alone else None)
    if most is not None and tried.attempts >= most:
        return "attempts"
    return "age" if retry.age_max_s and tried.age_ms >= retry.age_max_s * 1000 else ""


def _retry_ms(
    attempts: int, retry: RetryPolicy | None, backoff: RetrySchedule, chance: float, *, is_alone: bool, size: int
) -> int:
    return max(_scheduled_ms(attempts, retry, backoff, chance, is_alone=is_alone), size // _BYTES_PER_MS)


def _scheduled_ms(
    attempts: int, retry: RetryPolicy | None, backoff: RetrySchedule, chance: float, *, is_alone: bool
) -> int:
    if retry is not None and retry.delays_ms:
        return retry.delays_ms[min(attempts, len(retry.delays_ms)) - 1]
    if is_alone and (retry is None or not (retry.base_ms or retry.cap_ms)):
        span_ms = min(_ALONE_CAPS * backoff.cap_ms, backoff.base_ms * _ALONE_GROWTH ** min(attempts - 1, 30))
        return 1 + int((1 + chance) / 2 * span_ms)
    return delay_after(attempts, backoff=schedule(retry, backoff), chance=chance)


def schedule(retry: RetryPolicy | None, backoff: RetrySchedule) -> RetrySchedule:
    """The schedule of a receiver: what it asked for, and the settings' for the rest."""
    if retry is None:
        return backoff
    return RetrySchedule(retry.base_ms or backoff.base_ms, retry.cap_ms or backoff.cap_ms)


def fates(
    outcome: Outcome,
    messages: Sequence[QueueMessage],
    ids: Sequence[str],
    *,
    backoff: RetrySchedule,
    chance: float,
    retry: RetryPolicy | None = None,
) -> Fates:
    """What happens to each message; pure. One chance serves all, so that those of equal attempts keep their order."""
    size = sum(len(message.event) for message in messages)

    def later(message: QueueMessage) -> LeasedMessage:
        delay_ms = _retry_ms(message.tries, retry, backoff, chance, is_alone=False, size=size)
        return LeasedMessage(message.id, message.attempt, delay_ms)

    if outcome.is_delivered:
        failed = failed_ids(outcome.answer)
        pairs = list(zip(messages, ids, strict=True))
        acked = [LeasedMessage(message.id, message.attempt) for message, id_ in pairs if id_ not in failed]
        return Fates(acked, [later(message) for message, id_ in pairs if id_ in failed], NAMED)
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
