"""`doubledecker listen --forward-to URL`: what is published is posted to a local URL, as the bus would post it.

It reads `GET /stream`, and not a queue of its own: a position in the journal is all there is to remember, so that
nothing is left on the bus when it is killed, nothing fills while nobody runs it, and it takes no quota but a stream's.

1. A reader follows the stream and puts what comes into a short line; when that breaks off, it comes back to the last
   position, waiting longer each time, and gives up when the bus was away for `give_up_s`.
2. A poster takes from the line, posts with the code of any delivery, and prints how it went. An answer, whatever it is,
   settles the request: the developer sees it, and may send it again. While nobody listens at the URL, as between two
   starts of a server, it waits and posts the same again, in order.
3. Lines on standard input send again: `r` the last event, `r ID` any of the last thousand.

The position moves when something was posted, so that one who goes on from it misses nothing.
"""

import asyncio
import contextlib
import os
import sys
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass

import click
import msgspec

from doubledecker import client, clock
from doubledecker.cli import folder, words
from doubledecker.cli.folder import Address
from doubledecker.cli.listen.shown import Shown
from doubledecker.client import AsyncBus, Streamed
from doubledecker.delivery import formats
from doubledecker.delivery.attempt import Dialer, DialLimits
from doubledecker.errors import BadRequest, BusAway, Refused
from doubledecker.model import callback, signing
from doubledecker.model.dial_guard import DialGuard
from doubledecker.model.event import AcceptedEvent
from doubledecker.model.outcome import OutcomeKind
from doubledecker.model.signing import SigningKeys
from doubledecker.model.subscriber import Subscriber

# As a shell reports a command that was interrupted.
_INTERRUPTED = 130
_NAME = "listen"
# What waits to be posted; beyond it the stream is read no further, and the bus ends it if need be.
_LINE_MAX = 1_000
_KEPT_MAX = 1_000
_PAUSE_S_MIN, _PAUSE_S_MAX = 1.0, 10.0
_STDIN = 0
_decode = msgspec.json.Decoder(AcceptedEvent).decode


@dataclass(frozen=True)
class ForwardPlan:
    """What is posted where: which events, from where in the journal, how many together, in which format."""

    to: str
    pattern: str
    start: str
    format: str
    max_events: int
    timeout_s: float
    give_up_s: float
    count: int | None
    signing_secret: str | None


def listen(address: Address, plan: ForwardPlan, *, as_json: bool) -> None:
    """Forward until there was enough, or for ever."""
    keys = _keys(plan.signing_secret)
    receiver = Subscriber(_NAME, _url(plan.to), uuid=_NAME, signing=keys, format=plan.format)
    forwarder = _Forwarder(receiver, plan, Shown(as_json=as_json))
    try:
        asyncio.run(forwarder.run(address))
    except KeyboardInterrupt:
        if forwarder.position:
            words.say(f"stopped; go on with --from {forwarder.position}")
        sys.exit(_INTERRUPTED)


def _url(text: str) -> str:
    try:
        return str(callback.parse(text))
    except BadRequest as error:
        raise click.UsageError(
            f"--forward-to is {text[:80]!r}: {error}; write it like http://127.0.0.1:8000/"
        ) from error


def _keys(secret: str | None) -> SigningKeys:
    """The keys of the secret that is given, or of a new one, which is shown."""
    if secret is None:
        made = signing.make(clock.now_ms())
        words.say(f"requests are signed with {made.secret}")
        return made
    if not signing.is_secret(secret):
        raise click.UsageError(f"--secret must begin with {signing.PREFIX}, and go on with at least 24 bytes in base64")
    return SigningKeys(secret, clock.now_ms())


class _Forwarder:
    """One run of the command."""

    def __init__(self, receiver: Subscriber, plan: ForwardPlan, shown: Shown) -> None:
        self._receiver = receiver
        self._plan = plan
        self._shown = shown
        self._line: asyncio.Queue[Streamed] = asyncio.Queue(_LINE_MAX)
        # The last events by id, the latest at the end.
        self._kept: dict[str, str] = {}
        self._read_upto = ""
        self._heard_s = 0.0
        self._is_connected = False
        self._posted = 0
        self.position = ""

    async def run(self, address: Address) -> None:
        limits = DialLimits(attempt_s=self._plan.timeout_s, guard=DialGuard(is_private_allowed=True))
        with folder.explained(address.url):
            async with AsyncBus(address.url, address.secret, patience_s=0) as bus, _open(limits) as dialer:
                reading = asyncio.create_task(self._read(bus))
                posting = asyncio.create_task(self._post_all(dialer))
                resending = asyncio.create_task(self._resend_on_request(dialer))
                tasks = [reading, posting, resending]
                try:
                    await asyncio.wait([reading, posting], return_when=asyncio.FIRST_COMPLETED)
                    for task in (posting, reading):
                        if task.done():
                            return task.result()
                finally:
                    for task in tasks:
                        task.cancel()
                    await asyncio.gather(*tasks, return_exceptions=True)

    async def _read(self, bus: AsyncBus) -> None:
        """Follow the stream, for ever; raises when there is no use in going on."""
        loop = asyncio.get_running_loop()
        self._heard_s, pause_s = loop.time(), _PAUSE_S_MIN
        while True:
            began_s = loop.time()
            why = await self._read_until_it_ends(bus)
            self._is_connected = False
            away_s = loop.time() - self._heard_s
            if away_s > self._plan.give_up_s:
                go_on = f"go on later with --from {self.position or self._read_upto}"
                raise BusAway(f"{why}; the bus has been away for {away_s:.0f} s: {go_on}")
            if self._heard_s > began_s:
                pause_s = _PAUSE_S_MIN
            words.say(f"{why}; connecting again in {pause_s:g} s")
            await asyncio.sleep(pause_s)
            pause_s = min(_PAUSE_S_MAX, 2 * pause_s)

    async def _read_until_it_ends(self, bus: AsyncBus) -> str:
        """Read from the last position while one connection lasts; returns why it ended."""
        start = self._read_upto or self._plan.start
        try:
            async with contextlib.aclosing(bus.stream(self._plan.pattern, start=start)) as stream:
                async for each in stream:
                    self._note(each)
                    await self._line.put(each)
                    self._read_upto = each.id
        except client.StreamDropped as error:
            if error.reason == "revoked":
                raise Refused(f"{error.detail}; pass the --token of a client that is there") from error
            return error.detail
        except client.BusAway as error:
            # One that was never there is a mistake to report at once; one that was will be back.
            if not self._read_upto:
                raise
            return str(error)
        return "the stream ended"

    def _note(self, each: Streamed) -> None:
        self._heard_s = asyncio.get_running_loop().time()
        if not self._is_connected:
            self._is_connected = True
            words.say("connected again" if self._read_upto else f"forwarding to {self._receiver.callback}")
        if each.kind == "gap":
            words.say(f"events are missing, they are no longer in the journal: {each.json}")

    async def _post_all(self, dialer: Dialer) -> None:
        """Post what comes, until there was enough."""
        while self._plan.count is None or self._posted < self._plan.count:
            taken = [await self._line.get()]
            while len(_events(taken)) < self._room() and not self._line.empty():
                taken.append(self._line.get_nowait())
            events = _events(taken)
            if events:
                await self._post(dialer, events, message=taken[-1].id if len(events) > 1 else "")
                self._posted += len(events)
            self.position = taken[-1].id

    def _room(self) -> int:
        """How many events the next request may have."""
        left = self._plan.max_events if self._plan.count is None else self._plan.count - self._posted
        return min(left, self._plan.max_events)

    async def _post(self, dialer: Dialer, events: Sequence[str], *, message: str, is_again: bool = False) -> None:
        """Post events in one request, until something answers at the URL."""
        seen = [_decode(event) for event in events]
        for event, named in zip(events, seen, strict=True):
            self._keep(named.id, event)
        lines = [event.encode() for event in events]
        request = await formats.formatted(self._receiver.format, b"[%b]" % b",".join(lines), lines, have_urls=False)
        pause_s = _PAUSE_S_MIN
        while True:
            outcome = await dialer.attempt(self._receiver, request, message=message or seen[0].id)
            is_settled = outcome.kind is not OutcomeKind.UNREACHABLE
            self._shown.attempt(outcome, seen, is_again=is_again)
            if is_settled or is_again:
                return
            words.say(f"nobody answers at {self._receiver.callback}; trying again in {pause_s:g} s")
            await asyncio.sleep(pause_s)
            pause_s = min(_PAUSE_S_MAX, 2 * pause_s)

    def _keep(self, id_: str, event: str) -> None:
        self._kept.pop(id_, None)
        self._kept[id_] = event
        if len(self._kept) > _KEPT_MAX:
            del self._kept[next(iter(self._kept))]

    async def _resend_on_request(self, dialer: Dialer) -> None:
        async for line in _typed():
            word, _, id_ = line.strip().partition(" ")
            wanted = id_.strip() or next(reversed(self._kept), "")
            if word in {"r", "resend"} and wanted in self._kept:
                await self._post(dialer, [self._kept[wanted]], message="", is_again=True)
            elif word in {"r", "resend"}:
                words.say(
                    f"there is no event {wanted!r} among the last {_KEPT_MAX:,}; `doubledecker resend` has older ones"
                )
            elif word:
                words.say("type r to send the last event again, r ID to send another, Ctrl-C to stop")


def _events(taken: Sequence[Streamed]) -> list[str]:
    return [each.json for each in taken if each.kind == "event"]


@contextlib.asynccontextmanager
async def _open(limits: DialLimits) -> AsyncIterator[Dialer]:
    dialer = Dialer(limits)
    try:
        yield dialer
    finally:
        await dialer.close()


async def _typed() -> AsyncIterator[str]:
    """Lines from a terminal or a pipe; none from a file, and none while another program has the terminal."""
    loop, ready = asyncio.get_running_loop(), asyncio.Event()
    try:
        loop.add_reader(_STDIN, ready.set)
    except OSError:
        return
    rest = b""
    try:
        while True:
            await ready.wait()
            ready.clear()
            if os.isatty(_STDIN) and os.tcgetpgrp(_STDIN) != os.getpgrp():
                # Reading in the background would stop this process.
                await asyncio.sleep(1)
                continue
            part = os.read(_STDIN, 65_536)
            if not part:
                return
            *lines, rest = (rest + part).split(b"\n")
            for line in lines:
                yield line.decode(errors="replace")
    finally:
        loop.remove_reader(_STDIN)
