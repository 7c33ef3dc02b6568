"""Pipeline jobs: what the pipeline is asked to do once, and how far it has come: replays and erasures.

A job is *waiting* until a pipeline takes it up, then *running*, and at its end *done*, *failed* or *cancelled*.
Whatever carries it out may die and be replaced: all that is needed to go on is in the job.
"""

from collections import Counter
from collections.abc import Iterable
from typing import Annotated, Any

import msgspec
from msgspec import UNSET, Meta, UnsetType

from doubledecker.errors import Refused
from doubledecker.model import moment
from doubledecker.model.erasure import Erasure
from doubledecker.model.replay import MOMENT, Replay, ToQueue, ToSubscriber, ToTopic
from doubledecker.model.schema import Count, Shape, one_of
from doubledecker.model.token import ROOT_NAME

STATES = ("waiting", "running", "done", "failed", "cancelled")
ACTIVE = frozenset({"waiting", "running"})
# A round that fails is tried again; one that fails this often in a row will not do better.
FAILURES_MAX = 5
_ERROR_LENGTH_MAX = 500
# Rows of counts that are kept; beyond, days are summed up, and then the topics with the least.
_COUNTS_MAX = 1_000

Counts = tuple[tuple[str, str, int], ...]
Moment = Annotated[str, Meta(description=MOMENT)]


class PipelineJob(msgspec.Struct, frozen=True, omit_defaults=True):
    """One job; `asked` is its kind's own JSON, `counts` says what it is about by topic and day.

    `cursor` is the time, in milliseconds, before which everything is done; `note` says what it waits for.
    """

    id: str
    owner: str
    asked: msgspec.Raw
    created_at: int
    state: str = "waiting"
    changed_at: int = 0
    total: int = 0
    done: int = 0
    refused: int = 0
    cursor: int = 0
    lanes: int = 0
    counts: Counts = ()
    failures: int = 0
    note: str = ""
    error: str = ""

    @property
    def is_active(self) -> bool:
        return self.state in ACTIVE

    def failed(self, error: Exception, *, now_ms: int, is_final: bool) -> "PipelineJob":
        """After a failure: tried again, or given up. What Spark reports may name paths: root alone is shown that."""
        is_shown = not self.owner or isinstance(error, Refused)
        text = text_of(error) if is_shown else "the pipeline could not carry it out; its log has the reason"
        failures = self.failures + 1
        state = "failed" if is_final or failures >= FAILURES_MAX else self.state
        return msgspec.structs.replace(self, state=state, failures=failures, error=text, note="", changed_at=now_ms)


def text_of(error: Exception) -> str:
    """An error as one line of bounded length."""
    return " ".join(str(error).split())[:_ERROR_LENGTH_MAX] or type(error).__name__


def condensed(counts: Iterable[tuple[str, str, int]]) -> Counts:
    """Counts by topic and day, in order, or in fewer rows when there are too many to keep."""
    found = sorted(counts)
    if len(found) <= _COUNTS_MAX:
        return tuple(found)
    by_topic: Counter[str] = Counter()
    for topic, _, count in found:
        by_topic[topic] += count
    most = by_topic.most_common(_COUNTS_MAX - 1)
    others = by_topic.total() - sum(count for _, count in most)
    rest = [("others", "all", others)] if others else []
    return (*((topic, "all", count) for topic, count in most), *rest)


class DayCount(Shape):
    topic: str
    day: str
    events: Count


class PipelineJobShape(Shape, kw_only=True):
    """What replays and erasures show alike."""

    id: str
    owner: Annotated[str, Meta(description="A token's id, or root")]
    state: Annotated[str, one_of(STATES)]
    created_at: Count
    changed_at: Count
    total: Annotated[Count, Meta(description="How many events it is about, once counted")]
    counts: Annotated[list[DayCount], Meta(description="What it is about, once counted")]
    note: Annotated[str, Meta(description="What it waits for, such as a pipeline when none runs")]
    error: Annotated[str, Meta(description="What went wrong last")]


class ReplayAnswer(PipelineJobShape, kw_only=True, rename={"start": "from", "end": "to"}):
    """A replay, and how far it has come."""

    sent: Count
    refused: Annotated[
        Count, Meta(description="Not published, because a queue that refuses was full; of a topic alone")
    ]
    start: Moment
    end: Moment
    topic: str | None
    tenant: str | None
    where: str | None
    to_subscriber: ToSubscriber | UnsetType = UNSET
    to_queue: ToQueue | UnsetType = UNSET
    to_topic: ToTopic | UnsetType = UNSET
    rate: Count
    direct: bool
    dry_run: bool


class ErasureAnswer(PipelineJobShape, kw_only=True):
    """An erasure, and how far it has come."""

    erased: Count
    before: Moment
    tenant: str | None
    key: str | None
    topic: str | None
    dry_run: bool


def replay(job: PipelineJob) -> ReplayAnswer:
    """A replay as it is shown."""
    asked = msgspec.json.decode(job.asked, type=Replay)
    return ReplayAnswer(
        **_shown(job),
        sent=job.done - job.refused,
        refused=job.refused,
        start=moment.from_ms(asked.from_ms).isoformat(),
        end=moment.from_ms(asked.upto_ms).isoformat(),
        topic=asked.topic or None,
        tenant=asked.tenant or None,
        where=asked.where or None,
        to_subscriber=asked.name if asked.target == "subscriber" else UNSET,
        to_queue=asked.name if asked.target == "queue" else UNSET,
        to_topic=asked.name if asked.target == "topic" else UNSET,
        rate=asked.rate,
        direct=asked.direct,
        dry_run=asked.dry_run,
    )


def erasure(job: PipelineJob) -> ErasureAnswer:
    """An erasure as it is shown."""
    asked = msgspec.json.decode(job.asked, type=Erasure)
    return ErasureAnswer(
        **_shown(job),
        erased=job.done,
        before=moment.from_ms(asked.before_ms).isoformat(),
        tenant=asked.tenant or None,
        key=asked.key or None,
        topic=asked.topic or None,
        dry_run=asked.dry_run,
    )


def _shown(job: PipelineJob) -> dict[str, Any]:
    """The fields that both show."""
    return {
        "id": job.id,
        "owner": job.owner or ROOT_NAME,
        "state": job.state,
        "created_at": job.created_at,
        "changed_at": job.changed_at,
        "total": job.total,
        "counts": [DayCount(*each) for each in job.counts],
        "note": job.note,
        "error": job.error,
    }
