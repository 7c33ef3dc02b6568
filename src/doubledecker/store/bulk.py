"""Bulk delivery as kept at home: how far each shard of a subscriber has come, and what it has to go through.

Everything is in one hash, `bulk:<token>`, so that it begins and ends whole; the set `bulk` says whose there are:

    strand:<partition>.<number>   how far the shard has come, failed attempts, when to try again
    topic:<name>                  where the topic begins: by partition an entry, and how many events it had had
    passed:<name>                 how many of its events are through; `*`: of all topics, if it is for all of them
    until:<partition>             where bulk delivery ends, for a subscriber that is live again
    count:<name>                  how many events the topic had had there, by partition

**Beginning.** Where the journals end is read before the change is written, and the publish script makes batches for the
subscriber until it is. So what falls in between is delivered by both, and nothing by none. **Ending** is the reverse:
the journals' ends are read after every partition has the registry's new version.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import cast

from doubledecker.model.position import Checkpoint, Position, Shard, shards
from doubledecker.model.uid import uid
from doubledecker.store import shared_connection
from doubledecker.store.partitions import Partition, Partitions
from doubledecker.store.scripts import Packable, load
from doubledecker.store.shared_connection import Reply

_SETTLE, _PASS, _END, _FORGET = load("bulk_settle"), load("bulk_pass"), load("bulk_end"), load("bulk_forget")

# What is delivered but once is forgotten when nobody has gone on with it for so long.
_LEDGER_KEPT_MS = 604_800_000


@dataclass(frozen=True)
class Beginning:
    """Where a subscriber's shards and topics begin, as the saving script takes it."""

    shards: Sequence[str] = ()
    starts: Sequence[str] = ()


NOWHERE = Beginning()


@dataclass(frozen=True)
class Start:
    """Where a topic begins in one partition, and how many events it had had there."""

    place: Position
    count: int


@dataclass(frozen=True)
class Progress:
    """What bulk delivery to a subscriber has to go through, and how far it has come."""

    checkpoints: Mapping[Shard, Checkpoint] = field(default_factory=dict)
    topics: Mapping[str, Sequence[Start]] = field(default_factory=dict)
    passed: Mapping[str, int] = field(default_factory=dict)
    until: Mapping[int, Position] = field(default_factory=dict)
    counts: Mapping[str, Sequence[int]] = field(default_factory=dict)


@dataclass(frozen=True)
class Backlog:
    """Events that wait to be delivered in bulk, and since when at most."""

    events: int
    oldest_at: int | None


@dataclass(frozen=True)
class BulkStep:
    """What one attempt changes: its shard, events delivered or given up by topic, the journal's entry, counters."""

    shard: Shard
    former: Checkpoint
    checkpoint: Checkpoint
    passed: Mapping[str, int]
    attempt: bytes
    counts: Mapping[str, int]
    aside: "BatchAside | None" = None


@dataclass(frozen=True)
class BatchAside:
    """A batch that may itself be to blame, for the workers: they split it, and give up what stands alone."""

    token: str
    created_at: int
    attempts: int
    lines: Sequence[bytes]
    delay_ms: int

    @property
    def packed(self) -> list[Packable]:
        """As lua/bulk_settle.lua takes it."""
        text, size = b"\n".join(self.lines).decode(), sum(map(len, self.lines))
        return [uid(), self.token, self.created_at, self.attempts, len(self.lines), text, size, self.delay_ms]


def ledger_of(token: str) -> str:
    """The key that keeps a subscriber's bulk delivery."""
    return f"bulk:{token}"


async def beginning(partitions: Partitions, topics: Sequence[str]) -> Beginning:
    """From here on, in every partition and topic: to be read before the change that it is for is written."""
    begins: list[str] = []
    starts: dict[str, list[str]] = {topic: [] for topic in topics}
    for partition in partitions.all:
        end, counts = await _end_and_counts(partition, topics)
        for shard in shards(partition.index):
            begins += [shard.field, Checkpoint(Position.after(end)).text]
        for topic, count in zip(topics, counts, strict=True):
            starts[topic].append(f"{end}/{count}")
    return Beginning(begins, [word for topic, places in starts.items() for word in (topic, ",".join(places))])


async def end(partitions: Partitions, token: str) -> bool:
    """Bulk delivery goes no further than the journals do now; returns whether there is any.

    Call it after every partition has the version of the change. Nothing happens if the subscriber is bulk again.
    """
    progress = (await progress_of(partitions.home, [token])).get(token)
    if progress is None:
        return False
    topics = list(progress.topics)
    found = [await _end_and_counts(partition, topics) for partition in partitions.all]
    ends = [word for index, (at, _) in enumerate(found) for word in (f"until:{index}", at)]
    for number, topic in enumerate(topics):
        ends += [f"count:{topic}", ",".join(str(counts[number]) for _, counts in found)]
    return await partitions.home.run(_END, token=token, ends=ends) == 1


async def forget(home: Partition, token: str) -> bool:
    """End bulk delivery to a subscriber that is live again; False when it is of the bulk tier once more."""
    return await home.run(_FORGET, token=token) == 1


async def tokens(home: Partition) -> list[str]:
    """The subscribers that are delivered to in bulk, or still are for what came before they were live."""
    return sorted(shared_connection.words(await home.command("SMEMBERS", home.key("bulk"))))


async def progress_of(home: Partition, whose: Sequence[str]) -> dict[str, Progress]:
    """How far bulk delivery has come for those of the subscribers that have any."""
    replies = await home.commands([["HGETALL", home.key(ledger_of(token))] for token in whose])
    return {token: _progress(reply) for token, reply in zip(whose, replies, strict=True) if reply}


async def open_ledger(partitions: Partitions, ledger: str) -> None:
    """Have every shard begin at the very start, unless it has come further: for what is delivered but once."""
    home = partitions.home
    named = [shard.field for partition in partitions.all for shard in shards(partition.index)]
    begun = [["HSETNX", home.key(ledger), field, Checkpoint().text] for field in named]
    key = home.key(ledger)
    await home.commands([*begun, ["HSETNX", key, "passed:*", 0], ["PEXPIRE", key, _LEDGER_KEPT_MS]])


async def progress(home: Partition, ledger: str) -> Progress:
    """How far a ledger says that delivery has come; an empty one where it says nothing."""
    return _progress(await home.command("HGETALL", home.key(ledger)))


async def settle(home: Partition, ledger: str, settled: BulkStep) -> bool:
    """Write an attempt down; returns whether the shard was where it was thought to be.

    The same again changes nothing, and says the same.
    """
    reply = await home.run(
        _SETTLE,
        ledger=ledger,
        field=settled.shard.field,
        former=settled.former.text,
        checkpoint=settled.checkpoint.text,
        passed=[word for pair in settled.passed.items() for word in pair],
        attempt=settled.attempt,
        counts=list(settled.counts.items()),
        aside=settled.aside.packed if settled.aside else [],
    )
    return reply == 1


async def pass_(home: Partition, ledger: str, steps: Mapping[Shard, tuple[Checkpoint, Checkpoint]]) -> int:
    """Move shards, each from where it stood, over what holds nothing for them; returns how many were there."""
    words = [
        word for shard, (former, checkpoint) in steps.items() for word in (shard.field, former.text, checkpoint.text)
    ]
    return cast("int", await home.run(_PASS, ledger=ledger, steps=words)) if words else 0


async def backlogs(partitions: Partitions) -> dict[str, Backlog]:
    """What waits for the subscribers that are delivered to in bulk.

    A topic counts its events, and bulk delivery those that are through: what waits is the difference. Up to the
    place of the last shard nothing does.
    """
    found = await progress_of(partitions.home, await tokens(partitions.home))
    topics = sorted({topic for progress in found.values() for topic in progress.topics})
    counts: dict[tuple[str, int], int] = {}
    for partition in partitions.all if topics else ():
        replies = await partition.commands([_read_count(partition, topic) for topic in topics])
        for topic, reply in zip(topics, replies, strict=True):
            counts[topic, partition.index] = _number(reply)
    return {token: _backlog(progress, counts) for token, progress in found.items()}


def _backlog(progress: Progress, counts: Mapping[tuple[str, int], int]) -> Backlog:
    waiting = 0
    for topic, starts in progress.topics.items():
        ends = progress.counts.get(topic) or [counts[topic, index] for index in range(len(starts))]
        had = sum(max(0, end - start.count) for end, start in zip(ends, starts, strict=True))
        waiting += max(0, had - progress.passed.get(topic, 0))
    if waiting == 0:
        return Backlog(0, None)
    return Backlog(waiting, min(checkpoint.place.ms for checkpoint in progress.checkpoints.values()))


async def _end_and_counts(partition: Partition, topics: Sequence[str]) -> tuple[str, list[int]]:
    """Where the event journal ends, and how many events each topic has had up to there: in one atom."""
    reply = await partition.commands(
        [
            ["MULTI"],
            ["XREVRANGE", partition.key("journal:events"), "+", "-", "COUNT", 1],
            ["HGET", partition.key("journal"), "events_trimmed"],
            *(_read_count(partition, topic) for topic in topics),
            ["EXEC"],
        ]
    )
    last, trimmed, *counts = cast("list[Reply]", reply[-1])
    entries = cast("list[tuple[bytes, list[bytes]]]", last)
    at = entries[0][0] if entries else cast("bytes | None", trimmed) or b"0-0"
    return at.decode(), [_number(count) for count in counts]


def _read_count(partition: Partition, topic: str) -> list[str]:
    return ["HGET", partition.key(f"topic:{topic}"), "counter"]


def _number(reply: Reply) -> int:
    return int(cast("bytes | None", reply) or 0)


def _progress(reply: Reply) -> Progress:
    by_kind: dict[str, dict[str, str]] = {"strand": {}, "topic": {}, "passed": {}, "until": {}, "count": {}}
    for name, value in shared_connection.texts(reply).items():
        kind, _, rest = name.partition(":")
        by_kind[kind][rest] = value
    return Progress(
        checkpoints={Shard.parse(rest): Checkpoint.read(value) for rest, value in by_kind["strand"].items()},
        topics={name: [_start(word) for word in value.split(",")] for name, value in by_kind["topic"].items()},
        passed={name: int(value) for name, value in by_kind["passed"].items()},
        until={int(index): Position.after(value) for index, value in by_kind["until"].items()},
        counts={name: [int(word) for word in value.split(",")] for name, value in by_kind["count"].items()},
    )


def _start(word: str) -> Start:
    at, _, count = word.partition("/")
    return Start(Position.after(at), int(count))
