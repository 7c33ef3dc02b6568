"""Sending past events to one receiver again: found in the journal, else in the lake, then sent (bus/resending.py).

An event's id is its publisher's, and of a CloudEvent its source's: there may be others with the same id. So only events
that the receiver would get are sent again, and where several of them have an id, none is until one is named by its
topic or source.
"""

from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated

import msgspec
from msgspec import UNSET, Meta, Raw
from starlette.requests import Request
from starlette.responses import Response

from doubledecker import clock, log
from doubledecker.bus.pipeline_jobs import asked_erasures
from doubledecker.bus.resending import Resender
from doubledecker.errors import BadRequest, Conflict, LakeUnfit, NotFound, ReadTooLarge
from doubledecker.model import cloud_event, moment, reserved, schema, uid
from doubledecker.model.attempt import IDS_MAX, AttemptFilter, AttemptPlace, ListedAttempt
from doubledecker.model.erasure import Erasure
from doubledecker.model.event import DEFAULT_TENANT, EVENT_ID, ID_LENGTH_MAX, AcceptedEvent, TopicName, check_topic
from doubledecker.model.schema import Shape, matching
from doubledecker.model.subscriber import Subscriber
from doubledecker.model.token import ROOT_NAME, Caller
from doubledecker.store import attempts, journal
from doubledecker.store.partitions import Partitions
from doubledecker.web import auditing, publishing, shapes
from doubledecker.web import body as bodies
from doubledecker.web.attempt_log import AttemptLog
from doubledecker.web.body import BodyLimits
from doubledecker.web.receivers import ChosenReceiver, ReceiverFinder
from doubledecker.web.turns import ClientLocks

# An id that contains its time was made before the event was written, by the clock of another machine.
_BEFORE_MS, _AFTER_MS = 5_000, 60_000
# First only the time around is looked through: what others published before and after would end a bounded look.
_CLOSELY_BEFORE_MS, _CLOSELY_AFTER_MS = 100, 2_000
# Where no time is known, what was accepted lately is looked through.
_LATELY_MS = 600_000
# Topics that a refusal names: enough to see what is meant.
_TOPICS_SHOWN = 10

_log = log.get("web")


class ResendBody(msgspec.Struct, forbid_unknown_fields=True):
    """What is sent again: one event, or those that an attempt at this receiver carried."""

    event: Annotated[str, matching(EVENT_ID, "Its id")] | None = None
    attempt: Annotated[str, Meta(description=f"The id of an attempt with at most {IDS_MAX} events")] | None = None
    # Where several events that the receiver gets have one id, whose is meant.
    topic: TopicName | None = None
    # Where several CloudEvents have one id.
    source: Annotated[str, Meta(description="The `source` of the CloudEvent that is meant")] | None = None


class Resent(Shape):
    """Events that wait for a receiver again."""

    receiver: Annotated[str, Meta(description="A subscriber's id, or `@` and a queue")]
    events: Annotated[list[str], Meta(description="Their ids", min_length=1)]
    missing: Annotated[list[str], Meta(description="Those that are not to be found any more")]
    refused: Annotated[list[str], Meta(description="Those for which the queue had no room")]


_BODY = msgspec.json.Decoder(ResendBody)


@dataclass(frozen=True)
class _Wanted:
    """Events by their ids, when they were accepted, about, and the place of the attempt that carried them, if known."""

    ids: Sequence[str]
    from_ms: int
    upto_ms: int
    carried: AttemptPlace | None = None


@dataclass(frozen=True)
class _Past:
    """An event as it was accepted; `publisher` is also whose event it is, on a reserved topic."""

    event: AcceptedEvent
    publisher: str
    at_ms: int
    partition: int


class _Kept:
    """What several looks have found in the journals; `is_whole` says that none of them had to end before its time."""

    def __init__(self) -> None:
        self.is_whole = True
        self._found: dict[tuple[int, int, str, str, str], _Past] = {}

    @property
    def events(self) -> Sequence[_Past]:
        return list(self._found.values())

    def add(self, found: Iterable[_Past]) -> None:
        for each in found:
            known_by = cloud_event.known_by(each.event)
            self._found[each.partition, each.at_ms, each.publisher, each.event.topic, known_by] = each


class ResendRoutes:
    """Sends past events again; one look a client at a time."""

    def __init__(
        self,
        finder: ReceiverFinder,
        partitions: Partitions,
        kept: AttemptLog,
        reads: ClientLocks,
        limits: BodyLimits,
        resender: Resender,
    ) -> None:
        self._finder = finder
        self._partitions = partitions
        self._log = kept
        self._reads = reads
        self._limits = limits
        self._resender = resender

    async def resend(self, request: Request, caller: Caller) -> Response:
        """Send one event, or those of an attempt, to this receiver again; `replay` in each says so."""
        asked = schema.decode(_BODY, await bodies.read(request.scope, request.receive, self._limits), what="a resend")
        if asked.topic is not None:
            check_topic(asked.topic)
        chosen = await self._finder.find(request, caller)
        receiver = chosen.pushed
        key = publishing.idempotency_key(request.scope)
        async with self._reads.of(caller.id):
            erasures = await asked_erasures(self._partitions.home)
            found: list[_Past] = []
            ids: Sequence[str] = ()
            kept = _Kept()
            async for wanted in self._wanted(asked, chosen, caller):
                ids = wanted.ids
                await self._look(kept, wanted, erasures)
                found = _one_of_each(wanted, await self._find(wanted, kept.events, receiver, asked))
                if len(found) == len(ids):
                    break
            if not found:
                raise NotFound(await self._why_not(ids[0], chosen, is_whole=kept.is_whole))
            some = [past.event for past in found]
            refused = await self._resender.send(some, receiver, caller=caller.id or ROOT_NAME, key=key)
        there = [event.id for event in some]
        sent = [id_ for id_ in there if id_ not in refused]
        _log.info("events.resent", receiver=chosen.token, events=len(sent))
        auditing.learn(request, count=len(sent))
        missing = [id_ for id_ in ids if id_ not in there]
        return shapes.json(Resent(chosen.token, sent, missing, sorted(refused)), status=202)

    async def _wanted(self, asked: ResendBody, chosen: ChosenReceiver, caller: Caller) -> AsyncIterator[_Wanted]:
        """What is asked for, with a guess of the time after another.

        Raises BadRequest, and NotFound for an attempt that is not this receiver's, or was a former owner's of its name.
        """
        if (asked.event is None) == (asked.attempt is None):
            seen = "neither" if asked.event is None else "both"
            raise BadRequest(f"a resend is of an event or of an attempt; there is {seen}")
        if asked.attempt is None:
            id_ = asked.event or ""
            if not EVENT_ID.fullmatch(id_):
                raise BadRequest(f"event is {id_[:80]!r}; it must be 1 to {ID_LENGTH_MAX} printable ASCII characters")
            async for span in self._times(id_, chosen.token):
                yield _Wanted([id_], *span)
            return
        place = AttemptPlace.parse(asked.attempt, field="attempt")
        attempt = await self._log.one(place, ids_max=IDS_MAX)
        is_own = attempt.receiver == chosen.token and (caller.is_admin or attempt.is_of(caller.id))
        if not is_own:
            raise NotFound(f"no attempt {asked.attempt!r}; those that are kept are listed by GET on attempts")
        if not 0 < attempt.event_count <= IDS_MAX:
            raise BadRequest(
                f"the attempt has {attempt.event_count} events; those of one with 1 to {IDS_MAX} are sent again, "
                "more by a replay"
            )
        for span in _spans(attempt):
            yield _Wanted(list(attempt.events), *span, attempt.place)

    async def _times(self, id_: str, token: str) -> AsyncIterator[tuple[int, int]]:
        """When an event may have been accepted: by its id, or the newest attempt that carried it; or lately.

        An attempt at this receiver comes first: one at another may have carried another's event.
        """
        made_at = uid.made_at(id_)
        if made_at is not None:
            yield max(0, made_at - _CLOSELY_BEFORE_MS), made_at + _CLOSELY_AFTER_MS
            yield max(0, made_at - _BEFORE_MS), made_at + _AFTER_MS
        for receivers in (frozenset({token}), None):
            wanted = AttemptFilter(receivers, event=id_)
            carried = (await attempts.newest(self._partitions, wanted, limit=1)).attempts
            if carried:
                for span in _spans(carried[0]):
                    yield span
        now_ms = clock.now_ms()
        yield now_ms - _LATELY_MS, now_ms + _AFTER_MS

    async def _look(self, kept: _Kept, wanted: _Wanted, erasures: Sequence[Erasure]) -> None:
        """Add what is found for it in the journals."""
        for partition in self._partitions.all:
            some = await journal.find_events(partition, wanted.ids, from_ms=wanted.from_ms, upto_ms=wanted.upto_ms)
            kept.is_whole = kept.is_whole and some.is_whole
            # What has not landed yet is still in the journal.
            kept.add(
                _Past(each.event, each.publisher, each.entry.ms, partition.index)
                for each in some.events
                if not _is_erased(each.event, each.entry.ms, erasures)
            )

    async def _find(
        self, wanted: _Wanted, kept: Sequence[_Past], receiver: Subscriber, asked: ResendBody
    ) -> list[_Past]:
        """What is found for it in the journals, and the rest in the lake if this process can read that."""
        found = await self._fitting(kept, receiver, asked)
        there = {past.event.id for past in found}
        left = [id_ for id_ in wanted.ids if id_ not in there]
        return found + (await self._fitting(await self._landed(left, wanted), receiver, asked) if left else [])

    async def _fitting(self, found: Sequence[_Past], receiver: Subscriber, asked: ResendBody) -> list[_Past]:
        """Those that the receiver gets when they are published, of the topic and source that are asked for."""
        some = [past for past in found if _is_asked(past.event, asked) and _may_see(past, receiver.client)]
        kinds = await self._resender.gets(receiver, [(past.event.kind, past.publisher) for past in some])
        return [past for past in some if (past.event.kind, past.publisher) in kinds]

    async def _landed(self, ids: Sequence[str], wanted: _Wanted) -> list[_Past]:
        ground = await self._log.ground()
        if ground is None:
            return []
        from doubledecker.lake import queries, reads  # noqa: PLC0415 - not there without the extra

        since, until = moment.from_ms(wanted.from_ms), moment.from_ms(wanted.upto_ms)
        try:
            rows = await reads.find(ground, queries.events(ids, since=since, until=until))
        except (LakeUnfit, ReadTooLarge) as error:
            _log.warning("lake.unreadable", error=str(error))
            return []
        return [_landed_past(row) for row in rows]

    async def _why_not(self, id_: str, chosen: ChosenReceiver, *, is_whole: bool) -> str:
        """Where it was looked for, and what else can send it."""
        is_read = await self._log.ground() is not None
        if not is_whole:
            return (
                f"the look for event {id_[:80]!r} ended before it had come to the end, as much was published at that "
                "time; name the attempt that carried it, or have a replay send it: "
                f"doubledecker replay --receiver {chosen.token} --where \"id = '…'\""
            )
        where = "the journal or the lake" if is_read else "the journal, and this process reads no lake"
        return (
            f"no event {id_[:80]!r} that this receiver gets was found in {where}, by the time in its id, or an "
            f"attempt that carried it, nor in the last ten minutes. If a pipeline has landed it, a replay sends it: "
            f"doubledecker replay --receiver {chosen.token} --where \"id = '…'\""
        )


def _spans(attempt: ListedAttempt) -> list[tuple[int, int]]:
    """The times between which its events were accepted, at the first and at the second guess."""
    at = attempt.accepted_at
    closely = [(max(0, at - _CLOSELY_BEFORE_MS), at + _CLOSELY_AFTER_MS)] if at else []
    begin = at or attempt.at - _LATELY_MS
    return [*closely, (max(0, begin - _BEFORE_MS), attempt.at + _BEFORE_MS)]


def _one_of_each(wanted: _Wanted, found: Sequence[_Past]) -> list[_Past]:
    """One event for each id that was found, as the ids come; raises Conflict where several are meant by one."""
    by_id: dict[str, list[_Past]] = {}
    for past in found:
        by_id.setdefault(past.event.id, []).append(past)
    return [_only(_carried(by_id[id_], wanted.carried)) for id_ in dict.fromkeys(wanted.ids) if id_ in by_id]


def _carried(same: list[_Past], place: AttemptPlace | None) -> list[_Past]:
    """The events, of those with one id, that the attempt at this place can have carried.

    Most attempts are journaled where their events are; those of the bulk tier and of replays are not.
    """
    if place is None:
        return same
    return [past for past in same if past.partition == place.partition and past.at_ms <= place.ms] or same


def _only(same: list[_Past]) -> _Past:
    """The newest of events with one id, all of one publisher, topic and source; raises Conflict otherwise."""
    topics = sorted({past.event.topic for past in same})
    sources = sorted({source for past in same if (source := cloud_event.source_of(past.event))})
    if len({(past.publisher, past.event.topic, cloud_event.known_by(past.event)) for past in same}) > 1:
        named = ", ".join(topics[:_TOPICS_SHOWN])
        of = f", of the sources {', '.join(each[:80] for each in sources[:_TOPICS_SHOWN])}" if sources else ""
        raise Conflict(
            f"several events that this receiver gets have the id {same[0].event.id!r}, on {named}{of}; "
            'name one with "topic" or, of a CloudEvent, "source", or send it by a replay'
        )
    return max(same, key=lambda past: past.at_ms)


def _is_asked(event: AcceptedEvent, asked: ResendBody) -> bool:
    return asked.topic in {None, event.topic} and asked.source in {None, cloud_event.source_of(event)}


def _is_erased(event: AcceptedEvent, at_ms: int, erasures: Sequence[Erasure]) -> bool:
    return any(each.means(event.topic, event.tenant, event.key, at_ms=at_ms) for each in erasures)


def _may_see(past: _Past, client: str) -> bool:
    """Whether it may go to a receiver of this client; empty for root."""
    if not reserved.is_reserved(past.event.topic) or not client:
        return True
    return reserved.audience(past.publisher) == client


def _landed_past(row: Mapping[str, object]) -> _Past:
    at_ms = moment.to_ms(moment.parse(str(row["at"])))
    return _Past(_event(row), str(row["publisher"]), at_ms, int(str(row["partition"])))


def _event(row: Mapping[str, object]) -> AcceptedEvent:
    """The event of a row of the lake."""

    def text(name: str) -> str:
        return "" if row[name] is None else str(row[name])

    tenant = text("tenant")
    return AcceptedEvent(
        topic=text("topic"),
        type=text("type"),
        url=text("url") or UNSET,
        t=int(text("timestamp")),
        data=Raw(text("data").encode()) if row["data"] is not None else UNSET,
        id=text("id"),
        # The constant itself, not an equal string: the encoder leaves out what is identical to the default.
        tenant=DEFAULT_TENANT if tenant == DEFAULT_TENANT else tenant,
        key=text("key"),
        traceparent=text("traceparent") or UNSET,
        cloudevent=Raw(text("cloudevent").encode()) if row["cloudevent"] is not None else UNSET,
        replay_of=text("replay_of"),
    )
