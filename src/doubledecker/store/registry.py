"""The registry: tokens, topics, subscribers and queues, and the version by which every process knows its copy is old.

It lives in the home partition. The other partitions hold only its version, so that a publish there is refused too
when the publisher's copy is old. A change is written at home, then the version is raised everywhere, then the caller is
answered; a process that dies in between leaves a lower version behind, which `copy_version` (run by every change and by
a chore) raises, or else the first who knows more and goes by that (lua/registry_fence.lua).
"""

import asyncio
import heapq
import itertools
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import cast

import msgspec
from msgspec import structs

from doubledecker.model.event import AcceptedEvent, EventKind
from doubledecker.model.queue import RegisteredQueue
from doubledecker.model.routing import Registry
from doubledecker.model.subscriber import Subscriber
from doubledecker.model.token import Caller, Token
from doubledecker.model.topic import NOBODYS, TopicRights, TopicWanted
from doubledecker.store import shared_connection, subscribers
from doubledecker.store.partitions import Partition, Partitions
from doubledecker.store.scripts import Packable, Value, load
from doubledecker.store.shared_connection import words

# Changes the log keeps; a process that is further behind reads everything.
CHANGES_MAX = 10_000
# A change that comes while others are read is read with them; of one a millisecond, no more than this.
_READS_MAX = 20
TOKENS_MAX = 100_000
QUEUES_MAX = 10_000

_CHANGES, _COPY = load("registry_changes"), load("registry_copy")
_TOKEN_SAVE, _TOKEN_DELETE, _TOKEN_USE = load("token_save"), load("token_delete"), load("token_use")
_CLAIM, _TOPIC_SAVE = load("topic_claim"), load("topic_save")
_TOPIC_DELETE, _TOPIC_GIVE = load("topic_delete"), load("topic_give")
_TOPIC_INDEX = load("topic_index")
# Topics that one call notes: a few milliseconds of the server's time.
_INDEX_COUNT = 1_000
# Topics that are listed at a time: a millisecond or two of this process.
_PAGE = 500
_QUEUE_SAVE, _QUEUE_DELETE = load("queue_save"), load("queue_delete")


@dataclass(frozen=True)
class TopicRecord:
    """A topic as it is kept, and how many events all partitions have accepted on it."""

    name: str
    rights: TopicRights
    description: str
    events: int


@dataclass
class _News:
    """What was read of the registry: what changed, where None stands for what was deleted, or all there is."""

    tokens: dict[str, Token | None] = field(default_factory=dict)
    subscribers: dict[str, Subscriber | None] = field(default_factory=dict)
    queues: dict[str, RegisteredQueue | None] = field(default_factory=dict)
    topics: list[str] = field(default_factory=list)
    is_all: bool = False

    def take_over(self, registry: Registry) -> None:
        if self.is_all:
            registry.put_tokens(filter(None, self.tokens.values()))
            registry.put_subscribers(filter(None, self.subscribers.values()))
            registry.put_queues(filter(None, self.queues.values()))
            registry.rights = {}
            return
        for id_, token in self.tokens.items():
            registry.put_token(id_, token)
        for id_, subscriber in self.subscribers.items():
            registry.put_subscriber(id_, subscriber)
        for name, queue in self.queues.items():
            registry.put_queue(name, queue)
        for name in self.topics:
            registry.rights.pop(name, None)


async def refresh(home: Partition, registry: Registry) -> bool:
    """Bring a process's copy up to date, reading only what changed; returns whether anything did.

    It is taken over in one step, once nothing changed while it was read. Else a process could publish to a subscriber
    that its version does not have, and one who goes by that version would purge what was accepted.
    """
    news, version = _News(), registry.version
    for _ in range(_READS_MAX):
        reply = await home.run(_CHANGES, since=version, keep_max=CHANGES_MAX)
        now, must_read_all, changes = cast("tuple[int, int, list[bytes]]", reply)
        if now == version:
            break
        if must_read_all or version == 0:
            news = await _read_all(home)
        else:
            await _read_changed(home, [change.decode().split(" ", 1) for change in changes], news)
        version = now
    if version == registry.version:
        return False
    news.take_over(registry)
    registry.version = version
    return True


async def version(partition: Partition) -> int:
    return int(cast("bytes | None", await partition.command("HGET", partition.key("registry"), "routing_version")) or 0)


async def copy_version(partitions: Partitions, to: int) -> None:
    """Raise the version in every partition; safe to repeat, in any order."""
    await asyncio.gather(*(partition.run(_COPY, version=to) for partition in partitions.all[1:]))


async def save_token(home: Partition, token: Token, *, seen: int) -> int:
    """Add or change a token, decided by a copy of the registry at version `seen`.

    Returns the new version, 0 when there are too many tokens, -1 when the registry has changed since.
    """
    record = msgspec.json.encode(token)
    return cast("int", await home.run(_TOKEN_SAVE, id=token.id, record=record, seen=seen, most=TOKENS_MAX))


async def note_uses(home: Partition, uses: Mapping[str, int]) -> None:
    """Note when tokens were last used; a few hundred at most, as it is one call."""
    flat: list[Packable] = [word for pair in uses.items() for word in pair]
    await home.run(_TOKEN_USE, uses=flat)


async def last_uses(home: Partition, ids: Sequence[str]) -> dict[str, int]:
    """When tokens were last used, of those that were."""
    found: dict[str, int] = {}
    for first in range(0, len(ids), _PAGE):
        records = await _records(home, "api_tokens:used", ids[first : first + _PAGE])
        found |= {id_: int(at) for id_, at in records.items() if at is not None}
    return found


async def is_imported(home: Partition, secret_hash: str) -> bool:
    """Whether a token was imported before, though it may be gone since."""
    return await home.command("SISMEMBER", home.key("api_tokens:imported"), secret_hash) == 1


async def note_imported(home: Partition, secret_hash: str) -> None:
    await home.write("SADD", home.key("api_tokens:imported"), secret_hash)


async def delete_token(home: Partition, id_: str) -> int:
    """Revoke a token; returns the registry's new version, or 0 when there was none."""
    return cast("int", await home.run(_TOKEN_DELETE, id=id_))


async def claim_topics(home: Partition, names: Sequence[str], *, publisher: str, most: int = 0) -> list[TopicRights]:
    """Claim topics that have no owner; returns who may publish on each: nobody if the publisher would have too many."""
    reply = await home.run(_CLAIM, publisher=publisher, names=list(names), most=most)
    return [_rights(owner, publishers) for owner, publishers in cast("list[list[bytes]]", reply)]


async def index_topics(home: Partition) -> None:
    """Note who owns which topic, in data of a version that did not; a thousand topics at a time."""
    cursor = b"0"
    while (cursor := cast("bytes", await home.run(_TOPIC_INDEX, cursor=cursor, count=_INDEX_COUNT))) != b"0":
        pass


async def counts_of(home: Partition, tokens: Sequence[str]) -> list[tuple[int, int]]:
    """How many topics each client owns, and how many of its idempotency keys are remembered."""
    owned = await home.commands([["SCARD", home.key(f"owned:{token}")] for token in tokens])
    keys = await home.commands([["ZCARD", home.key(f"ages:{token}")] for token in tokens])
    return list(zip(cast("list[int]", owned), cast("list[int]", keys), strict=True))


async def topic_rights(home: Partition, names: Sequence[str]) -> list[TopicRights | None]:
    """Who may publish on each topic, without claiming any; None for one that nobody owns."""
    replies = await home.commands([["HMGET", home.key(f"topic:{name}"), "publisher", "publishers"] for name in names])
    kept = cast("list[list[bytes | None]]", replies)
    return [_rights(owner, publishers) if owner else None for owner, publishers in kept]


async def save_topic(
    home: Partition, name: str, asked: TopicWanted, *, caller: Caller, most: int = 0
) -> tuple[int, bool]:
    """Keep what is asked of a topic, which is the caller's then if it was nobody's; returns whether it was.

    And the new version: 0 when it is nobody's and the caller root, -1 when it is another's, -2 when the caller would
    have too many.
    """
    fields: list[str] = []
    if asked.publishers is not None:
        fields += ["publishers", " ".join(sorted(set(asked.publishers)))]
    if asked.description is not None:
        fields += ["description", asked.description]
    client, is_any = "" if caller.is_root else caller.id, int(caller.is_admin)
    reply = await home.run(_TOPIC_SAVE, name=name, caller=client, is_any=is_any, fields=fields, most=most)
    version, is_new = cast("tuple[int, int]", reply)
    return version, is_new == 1


async def delete_topic(home: Partition, name: str, *, publisher: str) -> tuple[int, int]:
    """Forget a topic; returns the new version and how many subscriptions ended.

    The version is 0 when the topic is unknown, -1 when it is not the publisher's (empty: root). Other partitions count
    it until `end_topic`.
    """
    version, ended = cast("tuple[int, int]", await home.run(_TOPIC_DELETE, name=name, publisher=publisher))
    return version, ended


async def end_topic(partitions: Partitions, name: str) -> None:
    """Forget a deleted topic in the other partitions; safe to repeat."""
    for partition in partitions.all[1:]:
        await partition.command("DEL", partition.key(f"topic:{name}"))
    await partitions.home.command("SREM", partitions.home.key("topics:deleted"), name)


async def deleted_topics(home: Partition) -> list[str]:
    """Topics that were deleted, and that other partitions may still count."""
    return words(await home.command("SMEMBERS", home.key("topics:deleted")))


async def give_topic(home: Partition, name: str, *, to: str) -> int:
    """Make another client a topic's owner; returns the new version, 0 for no such topic, -1 for no such client."""
    return cast("int", await home.run(_TOPIC_GIVE, name=name, to=to))


async def save_queue(
    home: Partition, queue: RegisteredQueue, *, former: RegisteredQueue | None, client: str = ""
) -> int:
    """Register a queue for a client, or for root; returns the registry's version.

    0 when `former` is not what is kept or the client has left, -1 when there are too many.
    """
    is_anew = queue.receiver.begins_anew(former.receiver if former else None)
    reply = await home.run(
        _QUEUE_SAVE,
        name=queue.name,
        record=msgspec.json.encode(structs.replace(queue, anew_since=0) if is_anew else queue),
        former=msgspec.json.encode(former) if former else "",
        client=client,
        most=QUEUES_MAX,
        callback=queue.callback,
        is_anew=int(is_anew),
    )
    return cast("int", reply)


async def queue(home: Partition, name: str) -> RegisteredQueue | None:
    return next(iter(await queues(home, [name])), None)


async def queues(home: Partition, names: Sequence[str]) -> list[RegisteredQueue]:
    """Those of some queues that are registered now."""
    return [_queue(record) for record in (await _records(home, "queues", names)).values() if record is not None]


async def delete_queue(home: Partition, queue: RegisteredQueue, *, discard: bool) -> int:
    """Forget a queue; returns the registry's new version.

    0 when it is gone, or another client's; -1 when it holds messages at home, unless these are to be discarded.
    """
    which: dict[str, Value] = {"name": queue.name, "owner": queue.owner, "since": queue.since}
    return cast("int", await home.run(_QUEUE_DELETE, **which, discard=int(discard)))


async def count_topics(home: Partition) -> int:
    return cast("int", await home.command("SCARD", home.key("topics")))


async def topics(partitions: Partitions) -> AsyncIterator[TopicRecord]:
    """Every topic by name; read some hundreds at a time."""
    async for names in _topic_names(partitions.home):
        for record in await topics_named(partitions, names):
            yield record


async def topics_named(partitions: Partitions, names: Sequence[str]) -> list[TopicRecord]:
    """Those of some topics that there are."""
    home = partitions.home
    asked = [["HMGET", home.key(f"topic:{name}"), "publisher", "publishers", "description"] for name in names]
    kept = cast("list[list[bytes | None]]", await home.commands(asked))
    counts = [0] * len(names)
    for partition in partitions.all:
        replies = await partition.commands([["HGET", partition.key(f"topic:{name}"), "counter"] for name in names])
        found = [int(cast("bytes | None", reply) or 0) for reply in replies]
        counts = [total + count for total, count in zip(counts, found, strict=True)]
    return [
        TopicRecord(name, _rights(owner, publishers), (description or b"").decode(), count)
        for name, (owner, publishers, description), count in zip(names, kept, counts, strict=True)
        if owner
    ]


async def _topic_names(home: Partition) -> AsyncIterator[list[str]]:
    """All topics by name, some hundreds at a time; sorted in pieces too, since a sort of very many holds the loop."""
    pages: list[list[str]] = []
    cursor = b"0"
    while not pages or cursor != b"0":
        reply = await home.command("SSCAN", home.key("topics"), cursor, "COUNT", _PAGE)
        cursor, names = cast("tuple[bytes, list[bytes]]", reply)
        pages.append(sorted(name.decode() for name in names))
    # A scan may find a name twice.
    merged = (name for name, _ in itertools.groupby(heapq.merge(*pages)))
    while some := list(itertools.islice(merged, _PAGE)):
        yield some


async def topics_like(home: Partition, pattern: str) -> list[str]:
    """The topics whose names match a pattern as Redis has it."""
    found: set[str] = set()
    cursor: bytes | None = None
    while cursor != b"0":
        reply = await home.command("SSCAN", home.key("topics"), cursor or b"0", "MATCH", pattern, "COUNT", _PAGE)
        cursor, names = cast("tuple[bytes, list[bytes]]", reply)
        found.update(name.decode() for name in names)
    return sorted(found)


async def last_kinds(partitions: Partitions, most: int) -> dict[EventKind, TopicRights]:
    """Of so many topics the kind of the last event in each partition, with who may publish there."""
    home = partitions.home
    names = sorted(words(await home.command("SRANDMEMBER", home.key("topics"), most)))
    kinds: dict[EventKind, TopicRights] = {}
    for name, rights in zip(names, await topic_rights(home, names), strict=True):
        for partition in partitions.all:
            # One by one, as each may be large.
            message = await partition.command("HGET", partition.key(f"topic:{name}"), "last_event")
            if message:
                kinds[msgspec.json.decode(cast("bytes", message), type=AcceptedEvent).kind] = rights or NOBODYS
    return kinds


async def _read_all(home: Partition) -> _News:
    tokens = shared_connection.fields(await home.command("HGETALL", home.key("api_tokens")))
    found = await subscribers.load_many(home, await subscribers.all_tokens(home))
    queues = shared_connection.fields(await home.command("HGETALL", home.key("queues")))
    return _News(
        tokens={id_: _token(record) for id_, record in tokens.items()},
        subscribers={**found},
        queues={name: _queue(record) for name, record in queues.items()},
        is_all=True,
    )


async def _read_changed(home: Partition, changes: Sequence[Sequence[str]], news: _News) -> None:
    """Read what has changed into the news that there are."""
    named: dict[str, list[str]] = {"token": [], "subscriber": [], "topic": [], "queue": []}
    for kind, name in changes:
        named[kind].append(name)
    for id_, record in (await _records(home, "api_tokens", named["token"])).items():
        news.tokens[id_] = _token(record) if record else None
    found = await subscribers.load_many(home, named["subscriber"])
    news.subscribers.update((token, found.get(token)) for token in named["subscriber"])
    for name, record in (await _records(home, "queues", named["queue"])).items():
        news.queues[name] = _queue(record) if record else None
    news.topics.extend(named["topic"])


async def _records(home: Partition, key: str, names: Sequence[str]) -> dict[str, bytes | None]:
    kept = await home.command("HMGET", home.key(key), *names) if names else []
    return dict(zip(names, cast("list[bytes | None]", kept), strict=True))


def _queue(record: bytes) -> RegisteredQueue:
    return msgspec.json.decode(record, type=RegisteredQueue)


def _token(record: bytes) -> Token:
    return msgspec.json.decode(record, type=Token)


def _rights(owner: bytes, publishers: bytes | None) -> TopicRights:
    return TopicRights(owner.decode(), frozenset((publishers or b"").decode().split()))
