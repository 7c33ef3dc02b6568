"""A receiver of webhooks as an ASGI or a WSGI app: it verifies who sends, and calls handlers with the events.

    drain = Drain(secret="whsec_…")

    @drain.on("orders")
    def note(event: Event) -> None: ...

The drain is the ASGI app, and `drain.wsgi` the WSGI one. An event whose handler raises is named as failed in the
answer, and the bus sends it again, while the others are done. So nothing is lost when a handler fails, nor when the
process dies before it has answered: handlers may see an event twice.
"""

import asyncio
import base64
import binascii
import contextlib
import hmac
import inspect
import json
import logging
import threading
import time
import uuid
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterable, Iterator, MutableMapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias, TypeVar

import msgspec

from doubledecker.client.errors import ClientError, NotABus
from doubledecker.client.message import Event, read_event
from doubledecker.pickling import Portable

# A request that was signed longer ago may be one that somebody has recorded.
TOLERANCE_S = 300
# A batch has 16 MiB at the most, and an event that is larger than that comes alone.
BODY_BYTES_MAX = 33_554_432
# How many ids, and URLs with their times, are remembered.
MEMORY_MAX = 100_000

Handler = Callable[[Event], Awaitable[None] | None]
_H = TypeVar("_H", bound=Handler)
Headers = MutableMapping[str, str]
Scope: TypeAlias = MutableMapping[str, Any]
Receive: TypeAlias = Callable[[], Awaitable[Any]]
Send: TypeAlias = Callable[[Any], Awaitable[None]]

# Stands for all topics among handlers; none has this name.
_ALL = ""
_ARRAY = msgspec.json.Decoder(list[msgspec.Raw])
_REASONS = {200: "OK", 204: "No Content", 400: "Bad Request", 401: "Unauthorized", 405: "Method Not Allowed"}
_REASONS |= {413: "Content Too Large", 500: "Internal Server Error", 501: "Not Implemented"}

_log = logging.getLogger("doubledecker.client")


class DrainMemory(Protocol):
    """What a drain remembers, and for how long is its own affair; one that processes share may be given."""

    def get(self, key: str) -> int | None: ...

    def put(self, key: str, at: int) -> None: ...


class RecentMemory:
    """The newest keys, in this process alone."""

    def __init__(self, most: int = MEMORY_MAX) -> None:
        self._most = most
        self._known: OrderedDict[str, int] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, key: str) -> int | None:
        with self._lock:
            return self._known.get(key)

    def put(self, key: str, at: int) -> None:
        with self._lock:
            self._known[key] = at
            self._known.move_to_end(key)
            if len(self._known) > self._most:
                self._known.popitem(last=False)


@dataclass(frozen=True)
class DrainAnswer:
    """What is answered to a request of the bus."""

    status: int
    body: bytes = b""
    content_type: str = "text/plain; charset=utf-8"

    @property
    def failed(self) -> list[str]:
        """The ids of events that the bus is to send again."""
        found: list[str] = json.loads(self.body)["failed"] if self.content_type == "application/json" else []
        return found

    @property
    def headers(self) -> list[tuple[str, str]]:
        if not self.body:
            return []
        return [("content-type", self.content_type), ("content-length", str(len(self.body)))]


class _Answered(Portable):
    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.answer = DrainAnswer(status, text.encode())


class Drain:
    """Takes what the bus posts, and hands each event to the handlers of its topic, one after the other.

    Who sends is verified by the signing `secret` of the subscription or queue, by its `uuid`, or by both; of a secret
    several may be given during a rotation. With neither, `trusts_anyone` has to say so.

    An event whose id is known is skipped, unless it is one of a replay. With `latest_only` an event is skipped as well
    when one of the same URL came that was not older, which is for receivers that go by URLs, as Routemaster's do.
    """

    def __init__(
        self,
        *,
        secret: str | Sequence[str] = (),
        uuid: str = "",
        trusts_anyone: bool = False,
        latest_only: bool = False,
        memory: DrainMemory | None = None,
    ) -> None:
        secrets = [secret] if isinstance(secret, str) else list(secret)
        self._keys = [_key(each) for each in secrets if each]
        self._uuid = uuid
        self._latest_only = latest_only
        self._memory: DrainMemory = RecentMemory() if memory is None else memory
        self._handlers: dict[str, list[Handler]] = {}
        if not self._keys and not uuid and not trusts_anyone:
            raise ClientError("a drain needs the secret or the uuid of what it receives for, or trusts_anyone=True")

    def on(self, *topics: str) -> Callable[[_H], _H]:
        """Have a function called with each event of these topics, or of all when none is named."""
        if any(not isinstance(topic, str) for topic in topics):
            raise TypeError('name topics: @drain.on("orders"), or @drain.on() for all')

        def add(handler: _H) -> _H:
            for topic in topics or (_ALL,):
                self._handlers.setdefault(topic, []).append(handler)
            return handler

        return add

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """The ASGI app; plain handlers are called in a thread."""
        if scope["type"] == "lifespan":
            await _live(receive, send)
            return
        if scope["type"] != "http":
            raise ClientError(f"a drain takes http requests; this is {scope['type']!r}")
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
        try:
            body = await _body(receive)
            answer = await self._handle_async(self._events(scope["method"], headers, body))
        except _Answered as early:
            answer = early.answer
        names = [(name.encode(), value.encode()) for name, value in answer.headers]
        await send({"type": "http.response.start", "status": answer.status, "headers": names})
        await send({"type": "http.response.body", "body": answer.body})

    def wsgi(self, environ: MutableMapping[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        """The WSGI app, for plain handlers."""
        if any(inspect.iscoroutinefunction(each) for some in self._handlers.values() for each in some):
            raise ClientError("this drain has async handlers; serve the drain itself, as an ASGI app")
        headers = {
            name[5:].lower().replace("_", "-"): value for name, value in environ.items() if name.startswith("HTTP_")
        }
        headers["content-type"] = environ.get("CONTENT_TYPE", "")
        try:
            length = int(environ.get("CONTENT_LENGTH") or 0)
            _check_length(length)
            answer = self._handle(self._events(environ["REQUEST_METHOD"], headers, environ["wsgi.input"].read(length)))
        except _Answered as early:
            answer = early.answer
        start_response(f"{answer.status} {_REASONS[answer.status]}", answer.headers)
        return [answer.body]

    def _events(self, method: str, headers: Headers, body: bytes) -> list[Event]:
        """The events of a request of the bus; anything else is answered at once."""
        if method != "POST":
            raise _Answered(405, "the bus posts; nothing else is answered here")
        self._verify(headers, body)
        kind = headers.get("content-type", "").partition(";")[0].strip()
        if kind != "application/json" or "ce-id" in headers:
            # No 4xx that blames the content: these events are good, and are kept until the format is another one.
            raise _Answered(501, f"a drain takes the formats json and routemaster, and this is {kind or 'of no type'}")
        try:
            return [read_event(each) for each in _ARRAY.decode(body)]
        except (msgspec.DecodeError, NotABus) as error:
            raise _Answered(400, f"not an array of events: {error}") from error

    def _verify(self, headers: Headers, body: bytes) -> None:
        if self._keys and not any(_is_signed(key, headers, body) for key in self._keys):
            raise _Answered(401, "the signature is missing, wrong or older than five minutes")
        if self._uuid and not hmac.compare_digest(_user(headers).encode(), self._uuid.encode()):
            raise _Answered(401, "the user name is not the uuid of this receiver")

    def _due(self, events: Sequence[Event]) -> list[tuple[Event, list[Handler]]]:
        """The events to handle now, with their handlers."""
        newest = {event.url: event for event in sorted(events, key=lambda event: event.t)}
        due = []
        for event in events:
            is_repeat = not event.replay and self._memory.get(_name(event)) is not None
            is_stale = self._latest_only and bool(event.url) and (newest[event.url] is not event or self._is_old(event))
            handlers = [*self._handlers.get(event.topic, ()), *self._handlers.get(_ALL, ())]
            if handlers and not is_repeat and not is_stale:
                due.append((event, handlers))
        return due

    def _is_old(self, event: Event) -> bool:
        at = self._memory.get(f"url {event.url}")
        return at is not None and event.t <= at

    @contextlib.contextmanager
    def _handling(self, event: Event, failed: list[Event]) -> Iterator[None]:
        """Remember an event that its handlers took, and note one that they did not."""
        try:
            yield
        except Exception:  # noqa: BLE001 - whatever a handler raises, the event is not taken
            _log.exception("event.failed topic=%s type=%s id=%s", event.topic, event.type, event.id)
            failed.append(event)
            return
        if event.id:
            self._memory.put(_name(event), event.t)
        if self._latest_only and event.url:
            self._memory.put(f"url {event.url}", event.t)

    def _handle(self, events: Sequence[Event]) -> DrainAnswer:
        failed: list[Event] = []
        for event, handlers in self._due(events):
            with self._handling(event, failed):
                for handler in handlers:
                    handler(event)
        return _answer(failed)

    async def _handle_async(self, events: Sequence[Event]) -> DrainAnswer:
        failed: list[Event] = []
        for event, handlers in self._due(events):
            with self._handling(event, failed):
                for handler in handlers:
                    if inspect.iscoroutinefunction(handler):
                        await handler(event)
                    else:
                        await asyncio.to_thread(handler, event)
        return _answer(failed)


class DrainTester:
    """Posts events to a drain as the bus does, without a server: for tests of handlers."""

    def __init__(self, drain: Drain, *, secret: str = "", uuid: str = "") -> None:
        self._drain = drain
        self._secret = secret
        self._uuid = uuid

    def post(self, *events: MutableMapping[str, Any] | Event) -> DrainAnswer:
        """The drain's answer to a request with these events; what they lack is made up."""
        body = msgspec.json.encode([_completed(each) for each in events])
        return asyncio.run(self._post(body))

    async def _post(self, body: bytes) -> DrainAnswer:
        sent: list[Any] = []
        names = {"content-type": "application/json", **signed(self._secret, body), **_basic(self._uuid)}
        headers = [(name.encode(), value.encode()) for name, value in names.items()]

        async def receive() -> Any:
            return {"type": "http.request", "body": body, "more_body": False}

        async def send(message: Any) -> None:
            sent.append(message)

        await self._drain({"type": "http", "method": "POST", "headers": headers}, receive, send)
        start, rest = sent
        kind = dict(start["headers"]).get(b"content-type", b"").decode()
        return DrainAnswer(start["status"], rest["body"], kind)


def signed(secret: str, body: bytes) -> dict[str, str]:
    """The headers by which the bus signs a request with a secret; none without one."""
    if not secret:
        return {}
    name, at = str(uuid.uuid4()), str(int(time.time()))
    return {"webhook-id": name, "webhook-timestamp": at, "webhook-signature": _signature(_key(secret), name, at, body)}


def _signature(key: bytes, name: str, at: str, body: bytes) -> str:
    return "v1," + base64.b64encode(hmac.digest(key, f"{name}.{at}.".encode() + body, "sha256")).decode()


def _is_signed(key: bytes, headers: Headers, body: bytes) -> bool:
    name, at = headers.get("webhook-id", ""), headers.get("webhook-timestamp", "")
    if not (at.isascii() and at.isdecimal()) or abs(time.time() - int(at)) > TOLERANCE_S:
        return False
    expected = _signature(key, name, at, body).encode()
    given = headers.get("webhook-signature", "").encode().split(b" ")
    return any(hmac.compare_digest(expected, each) for each in given)


def _key(secret: str) -> bytes:
    try:
        return base64.b64decode(secret.removeprefix("whsec_"), validate=True)
    except binascii.Error as error:
        raise ClientError("secret is not one that the bus gives, like whsec_…") from error


def _basic(user: str) -> dict[str, str]:
    return {"authorization": "Basic " + base64.b64encode(f"{user}:x".encode()).decode()} if user else {}


def _user(headers: Headers) -> str:
    scheme, _, rest = headers.get("authorization", "").partition(" ")
    try:
        return base64.b64decode(rest).decode().partition(":")[0] if scheme.lower() == "basic" else ""
    except ValueError:
        return ""


def _completed(event: MutableMapping[str, Any] | Event) -> MutableMapping[str, Any]:
    given = msgspec.to_builtins(event) if isinstance(event, Event) else event
    return {"type": "noop", "t": int(time.time() * 1000), "id": str(uuid.uuid4()), **given}


def _name(event: Event) -> str:
    """What no other event has: an id is its topic's alone and, of a CloudEvent, its source's."""
    return f"id {event.topic} {(event.cloudevent or {}).get('source', '')} {event.id}"


def _answer(failed: Sequence[Event]) -> DrainAnswer:
    if not failed:
        return DrainAnswer(204)
    # One without an id cannot be named, so that all are to come again.
    if not all(event.id for event in failed):
        return DrainAnswer(500, b"a handler failed")
    return DrainAnswer(200, msgspec.json.encode({"failed": [event.id for event in failed]}), "application/json")


def _check_length(length: int) -> None:
    if length > BODY_BYTES_MAX:
        raise _Answered(413, f"the body has {length} bytes; at most {BODY_BYTES_MAX} are read")


async def _body(receive: Receive) -> bytes:
    parts, length, more = [], 0, True
    while more:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise _Answered(400, "the connection broke off")
        parts.append(message.get("body", b""))
        length += len(parts[-1])
        _check_length(length)
        more = message.get("more_body", False)
    return b"".join(parts)


async def _live(receive: Receive, send: Send) -> None:
    while True:
        message = await receive()
        await send({"type": f"{message['type']}.complete"})
        if message["type"] == "lifespan.shutdown":
            return
