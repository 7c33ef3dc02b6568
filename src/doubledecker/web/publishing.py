"""The publish routes: `POST /topics/:name` and `POST /events`, the busiest of all.

A request is read, parsed, handed to the publisher, and answered when Redis has written it.
"""

import contextlib
import hashlib
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import cast
from urllib.parse import parse_qs

import msgspec
from msgspec import Raw
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Scope

from doubledecker import clock
from doubledecker.bus.publish import Publisher
from doubledecker.bus.publish_rate import Pacer
from doubledecker.errors import BadRequest, Conflict, Forbidden, QueueFull, Refused, TooLarge, UnknownMedia
from doubledecker.model import cloud_event, schema
from doubledecker.model import event as parsing
from doubledecker.model.event import Draft, EventKind, EventLimits, Offered
from doubledecker.model.quota import Quotas
from doubledecker.model.scopes import Scopes
from doubledecker.model.token import Caller
from doubledecker.model.uid import event_id, event_ids, repeatable_event_id
from doubledecker.store.partitions import Partitions
from doubledecker.store.quotas import claim_key, forget_key, update_key
from doubledecker.web import body as bodies
from doubledecker.web import cloud_events, problem
from doubledecker.web.arrays import BEGIN, PIECE_BYTES, Arrays, Item
from doubledecker.web.authentication import require_client
from doubledecker.web.body import BodyLimits
from doubledecker.web.cloud_events import CloudEvents, Mode
from doubledecker.web.shapes import PublishedAnswer, RefusedEvent
from doubledecker.web.turns import Turns

# An answer longer than this is not remembered but made again, from ids that depend on the key alone.
_ANSWER_BYTES_MAX = 4_096
KEY_LENGTH_MAX = 255
EVENTS_MAX = 10_000  # as many small events as fit into the largest body; each is some µs of the loop's time
KEY = re.compile(rf"[\x21-\x7e]{{1,{KEY_LENGTH_MAX}}}")
NDJSON = (b"application/x-ndjson", b"application/ndjson", b"application/jsonl")
# Other requests get their turn after so many events, or bytes of events: half a millisecond, or some ten if all of
# them are refused.
_PARSED_AT_ONCE = 200
_PARSED_BYTES_AT_ONCE = PIECE_BYTES
# Every other line may be empty.
_LINES_AN_EVENT_MAX = 2
_NO_CONTENT = Response(status_code=204)
# curl -d sends forms by default; what it holds is JSON all the same.
_JSON = (b"", b"application/json", b"text/json", b"application/x-www-form-urlencoded")


@dataclass(frozen=True)
class PublishRules:
    """What a publish request may be."""

    body: BodyLimits
    event: EventLimits
    events_max: int
    quotas: Quotas = field(default_factory=Quotas)


@dataclass
class _Parsed:
    """The events of a request that are well formed, and by index why the others are not."""

    drafts: list[Draft] = field(default_factory=list)
    refused: dict[int, Refused] = field(default_factory=dict)

    def is_refused(self, *, is_whole: bool) -> bool:
        """Whether nothing of the request is published; a whole one falls with its first bad event.

        A queue that turns out to be full refuses the events of one partition; those of others may be written already.
        """
        wrong = [why for why in self.refused.values() if not isinstance(why, QueueFull)]
        return not self.drafts or (is_whole and bool(wrong))


@dataclass(frozen=True)
class _Memory:
    """What is kept under a request's idempotency key; empty without a key."""

    digest: str = ""
    answer: bytes = b""
    is_new: bool = False


_NO_MEMORY = _Memory()


class Publishing:
    """Answers publish requests."""

    def __init__(self, partitions: Partitions, publisher: Publisher, pacer: Pacer, rules: PublishRules) -> None:
        self._partitions = partitions
        self._pacer = pacer
        self._publisher = publisher
        self._rules = rules
        self._arrays = Arrays(rules.events_max, rules.event.event_bytes_max)
        self._turns = Turns()

    async def post_topic(self, request: Request, caller: Caller) -> Response:
        """Publish one event; the first client to do so owns the topic."""
        require_client(caller)
        topic = request.path_params["name"]
        body = await bodies.read(request.scope, request.receive, self._rules.body)
        parsing.check_size(body, self._rules.event)
        schema.check_text(body)
        key = idempotency_key(request.scope)
        now_ms = clock.now_ms()
        id_ = repeatable_event_id(caller.id, key, "0") if key else event_id(now_ms)
        event = parsing.parse_posted(body, topic=topic, id_=id_, now_ms=now_ms, limits=self._rules.event)
        if (why := _beyond(caller.scopes, event.kind)) is not None:
            raise why
        await self._pacer.admit(caller.id, 1)
        memory = await self._recall(caller, key, topic.encode() + b"\n" + body) if key else _NO_MEMORY
        refused = await self._publisher.publish(caller.id, [parsing.draft(event, is_id_given=bool(key))])
        if refused:
            await self._forget(caller, key, memory)
            raise refused[0]
        return _NO_CONTENT

    async def post_events(self, request: Request, caller: Caller) -> Response:
        """Publish any number of events; one that is refused does not stop the others."""
        require_client(caller)
        scope = request.scope
        is_whole = _is_whole(scope)
        body = await bodies.read(scope, request.receive, self._rules.body)
        key = idempotency_key(scope)
        content_type = bodies.header(scope, b"content-type") or b""
        kind = content_type.partition(b";")[0].strip().lower()
        cloud = cloud_events.of_request(scope, content_type, kind)
        items, is_single = await self._items(kind, body, cloud, caller)
        parsed = await self._parse(items, caller, key, cloud)
        _refuse_beyond(caller.scopes, parsed)
        if is_single and parsed.refused:
            raise parsed.refused[0]
        if parsed.is_refused(is_whole=is_whole):
            return _all_refused(parsed, len(items))
        await self._pacer.admit(caller.id, len(parsed.drafts))
        beside = b"" if cloud is None else cloud.beside_body
        memory = await self._recall(caller, key, b"%d\n" % is_whole + beside + body)
        if memory.answer:
            return _accepted(memory.answer)
        await self._publish(parsed, caller, key, memory, is_whole=is_whole)
        if parsed.is_refused(is_whole=is_whole):
            await self._forget(caller, key, memory)
            if is_single:
                raise parsed.refused[0]
            return _all_refused(parsed, len(items))
        answer = _answer(parsed)
        if key and len(answer) <= _ANSWER_BYTES_MAX:
            record = f"{memory.digest}\n{answer.decode()}"
            await update_key(self._partitions.home, token=caller.id, key=key, record=record)
        return _accepted(answer)

    async def _publish(self, parsed: _Parsed, caller: Caller, key: str, memory: _Memory, *, is_whole: bool) -> None:
        try:
            refused = await self._publisher.publish(caller.id, parsed.drafts, is_whole=is_whole)
        except Refused:
            await self._forget(caller, key, memory)
            raise
        if refused:
            parsed.refused |= refused
            parsed.drafts = [draft for draft in parsed.drafts if draft.index not in refused]

    async def _recall(self, caller: Caller, key: str, body: bytes) -> _Memory:
        """What was answered to this request before, if it was; raises Conflict for another body under its key."""
        if not key:
            return _Memory()
        digest = hashlib.sha256(body).hexdigest()
        quotas = self._rules.quotas
        kept = await claim_key(self._partitions.home, token=caller.id, key=key, record=digest, quotas=quotas)
        if kept is None:
            return _Memory(digest, is_new=True)
        before, _, answer = kept.partition("\n")
        if before != digest:
            raise Conflict("this Idempotency-Key was used within 24 h for another request; use a new one")
        return _Memory(digest, answer.encode())

    async def _forget(self, caller: Caller, key: str, memory: _Memory) -> None:
        """A refused request changes nothing: its key is free again, unless an earlier request had taken it."""
        if memory.is_new:
            await forget_key(self._partitions.home, token=caller.id, key=key)

    async def _items(
        self, kind: bytes, body: bytes, cloud: CloudEvents | None, caller: Caller
    ) -> tuple[Sequence[Item], bool]:
        """The events of a body, and whether it was a single one."""
        if cloud is not None and cloud.mode is not Mode.BATCH:
            return self._single(body, is_text=cloud.mode is Mode.STRUCTURED), True
        if cloud is None and kind not in (*_JSON, *NDJSON):
            raise UnknownMedia(
                f"the content type is {kind.decode('latin-1')[:80]!r}; send application/json, application/x-ndjson, "
                "application/cloudevents+json or application/cloudevents-batch+json"
            )
        if cloud is None and kind in NDJSON:
            schema.check_text(body)
            items: Sequence[Item] = _lines(body, lines_max=_LINES_AN_EVENT_MAX * self._rules.events_max)
        elif cloud is not None or BEGIN.match(body):
            schema.check_text(body)
            items = await self._array(body, caller, is_raw=cloud is not None)
        else:
            return self._single(body), True
        if not items:
            raise BadRequest("there is no event in the body")
        if len(items) > self._rules.events_max:
            raise TooLarge(f"{len(items)} events; at most {self._rules.events_max} are allowed in one request")
        return items, False

    def _single(self, body: bytes, *, is_text: bool = True) -> Sequence[Item]:
        parsing.check_size(body, self._rules.event)
        if is_text:
            schema.check_text(body)
        return [body]

    async def _array(self, body: bytes, caller: Caller, *, is_raw: bool) -> Sequence[Item]:
        """The items of an array; those of a large one in turns with other clients."""
        pieces = self._arrays.pieces(body, is_raw=is_raw)
        if len(body) <= PIECE_BYTES:
            return next(pieces)
        items, piece = list[Item](), None
        while piece is None or piece:
            async with self._turns.taken(caller.id):
                piece = next(pieces, ())
            items += piece
        return items

    async def _parse(
        self, items: Sequence[Item], caller: Caller, key: str, cloud: CloudEvents | None = None
    ) -> _Parsed:
        parsed = _Parsed()
        now_ms = clock.now_ms()
        if cloud is not None:
            return await self._parse_cloud_events(cloud, items, caller, now_ms, parsed)
        repeatable = (repeatable_event_id(caller.id, key, str(i)) for i in range(len(items)))
        ids = repeatable if key else iter(event_ids(now_ms, len(items)))
        pieces = _pieces(items)
        if len(pieces) == 1:
            self._parse_piece(pieces[0], items, ids, now_ms, parsed, is_repeatable=bool(key))
            return parsed
        for piece in pieces:
            async with self._turns.taken(caller.id):
                self._parse_piece(piece, items, ids, now_ms, parsed, is_repeatable=bool(key))
        return parsed

    async def _parse_cloud_events(
        self, cloud: CloudEvents, items: Sequence[Item], caller: Caller, now_ms: int, parsed: _Parsed
    ) -> _Parsed:
        """Each brings its own id, so a repeat is known without a key."""
        pieces = _pieces(items)
        for piece in pieces:
            async with self._turns.taken(caller.id) if len(pieces) > 1 else contextlib.nullcontext():
                for i in piece:
                    item = cast("bytes | Raw", items[i])
                    try:
                        parsing.check_size(item, self._rules.event)
                        offered = cloud.read(item)
                        drafted = cloud_event.draft(offered, now_ms=now_ms, limits=self._rules.event, index=i)
                    except Refused as refusal:
                        parsed.refused[i] = refusal.bare()
                    else:
                        parsed.drafts.append(drafted)
        return parsed

    def _parse_piece(
        self,
        piece: range,
        items: Sequence[Item],
        ids: Iterator[str],
        now_ms: int,
        parsed: _Parsed,
        *,
        is_repeatable: bool,
    ) -> None:
        limits = self._rules.event
        for i, id_ in zip(piece, ids, strict=False):
            item = items[i]
            try:
                offered = item if isinstance(item, Offered) else parsing.parse_offered(item, limits)
                event = parsing.accept(offered, id_=id_, now_ms=now_ms, limits=limits)
            except Refused as refusal:
                parsed.refused[i] = refusal.bare()
            else:
                is_id_given = is_repeatable or offered.id is not None
                parsed.drafts.append(parsing.draft(event, is_id_given=is_id_given, index=i))


def _refuse_beyond(scopes: Scopes, parsed: _Parsed) -> None:
    """Refuse events on topics and of tenants that the token may not publish."""
    if scopes.limits_events:
        beyond = {draft.index: why for draft in parsed.drafts if (why := _beyond(scopes, draft.kind)) is not None}
        parsed.refused |= beyond
        parsed.drafts = [draft for draft in parsed.drafts if draft.index not in beyond]


def _beyond(scopes: Scopes, kind: EventKind) -> Forbidden | None:
    try:
        scopes.check_topics([kind.topic], to="publish on")
        scopes.check_tenants([kind.tenant], to="publish for")
    except Forbidden as why:
        return why.bare()
    return None


def _pieces(items: Sequence[Item]) -> list[range]:
    """The indexes of the items, cut where other requests get their turn."""
    pieces, start, size = list[range](), 0, 0
    for i, item in enumerate(items):
        size += len((item.data or b"") if isinstance(item, Offered) else item)
        if size > _PARSED_BYTES_AT_ONCE or i - start + 1 >= _PARSED_AT_ONCE:
            pieces.append(range(start, i + 1))
            start, size = i + 1, 0
    return [*pieces, range(start, len(items))] if start < len(items) else pieces


def _lines(body: bytes, *, lines_max: int) -> list[bytes]:
    count = body.count(b"\n") + 1
    if count > lines_max:
        raise TooLarge(f"{count} lines; at most {lines_max} are allowed in one request")
    return [line for line in body.split(b"\n") if line.strip()]


def _is_whole(scope: Scope) -> bool:
    query: bytes = scope["query_string"]
    if not query:
        return False
    value = parse_qs(query.decode("latin-1")).get("all", ["0"])[-1]
    if value not in {"0", "1"}:
        raise BadRequest(f"all is {value[:80]!r}; it must be 0 or 1")
    return value == "1"


def idempotency_key(scope: Scope) -> str:
    """The key that makes a request repeatable, or empty; raises BadRequest."""
    value = bodies.header(scope, b"idempotency-key")
    if value is None:
        return ""
    key = value.decode("latin-1")
    if not KEY.fullmatch(key):
        raise BadRequest(f"Idempotency-Key must be 1 to {KEY_LENGTH_MAX} printable ASCII characters without spaces")
    return key


def _answer(parsed: _Parsed) -> bytes:
    ids = [draft.id for draft in parsed.drafts]
    return msgspec.json.encode(PublishedAnswer(ids, _refusals(parsed)))


def _refusals(parsed: _Parsed) -> list[RefusedEvent]:
    return [RefusedEvent(i, why.detail) for i, why in sorted(parsed.refused.items())]


def _accepted(answer: bytes) -> Response:
    return Response(answer, status_code=202, media_type="application/json")


def _all_refused(parsed: _Parsed, count: int) -> Response:
    detail = f"{len(parsed.refused)} of {count} events were refused, so none was published"
    status = next(reversed(parsed.refused.values())).status
    return problem.plain(status, "Events refused", detail, refused=_refusals(parsed))
