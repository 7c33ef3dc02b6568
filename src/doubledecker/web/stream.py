"""`GET /stream`: events as they are published, live, from wherever a listener left off.

A stream ends when its client goes away, or when the bus drops it: it reads too slowly or not at all, its token was
revoked, the process stops. A client that is dropped gets the reason in a last event, if it still reads.
"""

import asyncio
from collections import defaultdict
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Message, Receive, Scope, Send

from doubledecker import clock, log
from doubledecker.bus import telemetry
from doubledecker.bus.registry import LiveRegistry
from doubledecker.errors import BadRequest, BusAway, Gone
from doubledecker.model import glob, position, quota
from doubledecker.model.glob import Glob
from doubledecker.model.position import Position
from doubledecker.model.quota import Quotas
from doubledecker.model.token import Caller
from doubledecker.model.uid import uid
from doubledecker.store import counters, journal
from doubledecker.store.partitions import Partition, Partitions
from doubledecker.store.quotas import LEASE_MS, enter, leave, renew
from doubledecker.web import queries, sse
from doubledecker.web.catch_up import CatchUp
from doubledecker.web.feed import Feed
from doubledecker.web.protocol import ABORT
from doubledecker.web.sse import Gap, Listener, Reason, Why

# How many streams a client has open, over all web processes: a lease in Redis for each, renewed while it is open.

# A third of the lease, so that two renewals may be lost.
_RENEW_S = LEASE_MS / 1000 / 3


@dataclass(frozen=True)
class StreamLease:
    """The place of one open stream among those of its client."""

    client: str
    stream: str


class StreamLeases:
    """Gives leases for streams, within the quota of their client; root needs none."""

    def __init__(self, home: Partition, quotas: Quotas) -> None:
        self._home = home
        self._quotas = quotas
        self._held: set[StreamLease] = set()

    async def take(self, caller: Caller) -> StreamLease | None:
        """A lease that ends by itself unless it is held; raises QuotaExceeded when the client has as many as it may."""
        if caller.is_root:
            return None
        lease, most = StreamLease(caller.id, uid()), self._quotas.client_streams_max
        if not await enter(self._home, lease.client, lease.stream, most=most):
            quota.check_streams(self._quotas, most + 1)
        return lease

    @asynccontextmanager
    async def held(self, lease: StreamLease | None) -> AsyncIterator[None]:
        """Renew a lease while the block runs, and end it then."""
        if lease is None:
            yield
            return
        self._held.add(lease)
        try:
            yield
        finally:
            self._held.discard(lease)
            with suppress(BusAway):  # then it ends by itself
                await leave(self._home, lease.client, lease.stream)

    async def run(self) -> None:
        """Renew for as long as the process lives."""
        while True:
            await asyncio.sleep(_RENEW_S)
            by_client: dict[str, list[str]] = defaultdict(list)
            for lease in self._held:
                by_client[lease.client].append(lease.stream)
            with suppress(BusAway):
                for client, held in by_client.items():
                    await renew(self._home, client, held)


_PARAMETERS = ("pattern", "from", "strict")
# A stream is written in pieces of this, each of which a client has to read in time.
_PIECE = 65_536
# A client that does not read its last words within this does not hold up a stop.
_STOP_S = 1.0

_log = log.get("web")


@dataclass(frozen=True)
class StreamRules:
    """When the bus sends on a quiet stream, and when it gives a listener up."""

    # What may wait for a slow listener: some thousand events, and 500 streams take half a gigabyte at the most.
    buffer_bytes: int = 1_048_576
    # Proxies close what is silent for 30 s or 60 s.
    heartbeat_s: float = 15.0
    # Two heartbeats unread.
    stall_s: float = 30.0


@dataclass(frozen=True)
class StreamRequest:
    """What a listener asked for: which events, from where, and whether a gap ends it."""

    pattern: Glob
    start: str
    is_strict: bool


@dataclass(frozen=True)
class _Start:
    """Where a stream begins, and what is missing before that."""

    places: Sequence[Position]
    gaps: Sequence[Gap] = ()


class Streaming:
    """Answers `GET /stream`."""

    def __init__(
        self, partitions: Partitions, registry: LiveRegistry, feed: Feed, leases: StreamLeases, rules: StreamRules
    ) -> None:
        self._partitions = partitions
        self._registry = registry
        self._feed = feed
        self._leases = leases
        self._rules = rules

    async def get_stream(self, request: Request, caller: Caller) -> Response:
        """Events as they are published, as server-sent events; any client gets those of all topics.

        A token that is limited to topics or tenants gets those alone. Of reserved topics it gets what concerns itself.
        """
        wanted = parse(request.query_params.multi_items(), request.headers)
        if request.method == "HEAD":
            return Response(headers=_HEADERS)
        self._feed.check_room()
        with self._feed.held():
            await self._feed.until_at()
            start = await self._find(wanted)
            lease = await self._leases.take(caller)
            await self._feed.until_at(start.places)
        # Nothing may wait from here until the listener is registered: others would take its room, the feed fall asleep.
        self._feed.check_room()
        return _Stream(self, wanted, start, caller, lease)

    async def _find(self, wanted: StreamRequest) -> _Start:
        if wanted.start == "latest":
            return _Start(self._feed.places)
        ends = [await journal.ends(partition) for partition in self._partitions.all]
        cuts = [Position.after(trimmed) for trimmed, _ in ends]
        if wanted.start == "earliest":
            return _Start(cuts)
        places = position.parse(wanted.start, partitions=len(ends))
        gaps: list[Gap] = []
        for i, (_, last) in enumerate(ends):
            if places[i] > Position.after(last):
                # The journal is younger than the listener: all that it holds is news.
                gaps.append(Gap(i, places[i], cuts[i], Why.RESET))
                places[i] = cuts[i]
        if wanted.is_strict and (gaps or any(cut > place for cut, place in zip(cuts, places, strict=True))):
            raise Gone(
                f"the journal no longer holds all that followed {wanted.start[:80]}; without strict=1 the stream goes "
                "on after a gap, with from=earliest it starts with what is left"
            )
        return _Start(places, gaps)

    async def frames(self, listener: Listener, start: _Start, caller: Caller) -> AsyncIterator[bytes]:
        """Everything that goes out on a stream, but its end: the opening, the past, the present."""
        at = position.render(start.places)
        yield sse.opening(at) + b"".join(sse.gap(at, gap) for gap in start.gaps)
        past = CatchUp(self._partitions, self._feed, listener, start.places)
        loop_time = asyncio.get_running_loop().time
        spoke_at = loop_time()
        async for frames in past.read():
            if not self._is_welcome(listener, caller):
                return
            if frames or loop_time() - spoke_at > self._rules.heartbeat_s:
                yield frames or sse.heartbeat(past.position)
                spoke_at = loop_time()
        if past.position != at:
            yield sse.heartbeat(past.position)
        while True:
            frames = await listener.take(wait_s=self._rules.heartbeat_s)
            if not self._is_welcome(listener, caller):
                return
            yield frames or sse.heartbeat(position.render(self._feed.places))

    def _is_welcome(self, listener: Listener, caller: Caller) -> bool:
        if not self._registry.is_known(caller, now_ms=clock.now_ms()):
            listener.drop(Reason.REVOKED)
        elif self._registry.snapshot.scopes_of(caller.id) != caller.scopes:
            listener.drop(Reason.CHANGED)
        return listener.end is None

    async def serve(
        self, wanted: StreamRequest, start: _Start, caller: Caller, lease: StreamLease | None, connection: "_Connection"
    ) -> None:
        """Send a stream until it ends, one way or another."""
        size = self._rules.buffer_bytes
        listener = Listener(
            wanted.pattern, buffer_bytes=size, is_strict=wanted.is_strict, client=caller.id, scopes=caller.scopes
        )
        with self._feed.registered(listener):
            async with self._leases.held(lease):
                await self._send_all(listener, start, caller, connection)
        if listener.end is not None:
            await self._note(listener, listener.end, caller)

    async def _send_all(self, listener: Listener, start: _Start, caller: Caller, connection: "_Connection") -> None:
        await connection.start()
        async with asyncio.TaskGroup() as tasks:
            leaving = tasks.create_task(connection.until_gone())
            sending = tasks.create_task(self._send(listener, start, caller, connection))
            patience = tasks.create_task(self._until_cut(listener, connection))
            await asyncio.wait((sending, leaving), return_when=asyncio.FIRST_COMPLETED)
            for task in (sending, leaving, patience):
                task.cancel()

    async def _send(self, listener: Listener, start: _Start, caller: Caller, connection: "_Connection") -> None:
        try:
            async for frames in self.frames(listener, start, caller):
                for first in range(0, len(frames), _PIECE):
                    await connection.send(frames[first : first + _PIECE], within_s=self._rules.stall_s)
            await connection.end(sse.dropped(listener.end or Reason.STOPPING), within_s=self._rules.stall_s)
        except TimeoutError:
            listener.drop(Reason.STALLED)
            await connection.cut()

    async def _until_cut(self, listener: Listener, connection: "_Connection") -> None:
        """When the process stops, let a client read its last words, but not for long."""
        await listener.until_stopped()
        await asyncio.sleep(_STOP_S)
        await connection.cut()

    async def _note(self, listener: Listener, reason: Reason, caller: Caller) -> None:
        say = _log.info if reason is Reason.STOPPING else _log.warning
        say("stream.dropped", pattern=listener.pattern.text, client=caller.id, reason=reason.value)
        try:
            await counters.add(self._partitions.home, telemetry.counter("streams.dropped", reason=reason.value), 1)
        except BusAway:
            return  # the log line has it


class _Stream(Response):
    """A stream as an answer, before it is sent."""

    def __init__(
        self, streaming: Streaming, wanted: StreamRequest, start: _Start, caller: Caller, lease: StreamLease | None
    ) -> None:
        super().__init__(headers=_HEADERS)
        self._streaming = streaming
        self._wanted = wanted
        self._start = start
        self._caller = caller
        self._lease = lease

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        connection = _Connection(scope, receive, send)
        await self._streaming.serve(self._wanted, self._start, self._caller, self._lease, connection)


class _Connection:
    """The way to a client."""

    def __init__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self._scope = scope
        self._receive = receive
        self._send = send

    async def start(self) -> None:
        await self._send({"type": "http.response.start", "status": 200, "headers": _RAW_HEADERS})

    async def send(self, body: bytes, *, within_s: float, is_last: bool = False) -> None:
        """Send; raises TimeoutError when the client does not read what came before in time."""
        message: Message = {"type": "http.response.body", "body": body, "more_body": not is_last}
        async with asyncio.timeout(within_s):
            await self._send(message)

    async def end(self, body: bytes, *, within_s: float) -> None:
        await self.send(body, within_s=within_s, is_last=True)

    async def cut(self) -> None:
        """Hang up without waiting for the client to read, and wait until that is done."""
        self._scope["extensions"][ABORT]["call"]()
        await self.until_gone()

    async def until_gone(self) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass


_HEADERS = {"Content-Type": sse.CONTENT_TYPE, "Cache-Control": "no-store", "X-Accel-Buffering": "no"}
_RAW_HEADERS = [(name.lower().encode(), value.encode()) for name, value in _HEADERS.items()]


def parse(parameters: Sequence[tuple[str, str]], headers: Mapping[str, str]) -> StreamRequest:
    """What the query and the headers ask for; raises BadRequest with what is allowed."""
    names = [name for name, _ in parameters]
    queries.check_names(names, _PARAMETERS)
    for name in names:
        if names.count(name) > 1:
            raise BadRequest(f"the query has {name!r} {names.count(name)} times; give it once")
    asked = dict(parameters)
    if asked.get("strict", "0") not in {"0", "1"}:
        raise BadRequest(f"strict is {asked['strict'][:80]!r}; it must be 0 or 1")
    # A client that comes back sends the id of the last event it got, and the same query as at first.
    start = headers.get("Last-Event-ID") or asked.get("from") or "latest"
    return StreamRequest(glob.parse(asked.get("pattern", "*")), start, asked.get("strict") == "1")
