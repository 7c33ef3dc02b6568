"""`doubledecker tail`: events in a terminal as they are published, over HTTP; coloured there, JSON when piped."""

import asyncio
import contextlib
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import click
import msgspec
from rich.console import Console
from rich.text import Text

from doubledecker import client
from doubledecker.cli import folder, words
from doubledecker.cli.folder import Address
from doubledecker.errors import Refused

_RETRY_S = 1.0
# As a shell reports a command that was interrupted.
_INTERRUPTED = 130
_WIDTHS = {"tenant": 12, "topic": 14, "type": 12}


@dataclass(frozen=True)
class TailRequest:
    """What to show: a pattern, from where, and how many (None: without end)."""

    pattern: str
    start: str
    count: int | None


class _Event(msgspec.Struct):
    """What is shown of an event."""

    topic: str
    type: str
    t: int
    tenant: str = "default"
    key: str = ""
    url: str = ""
    data: msgspec.Raw = msgspec.Raw(b"")


def tail(bus: str | None, data: Path | None, secret: str | None, wanted: TailRequest, *, as_json: bool) -> None:
    """Print events until there are enough, or for ever."""
    console = Console()
    show = click.echo if as_json or not console.is_terminal else _Table(console).show
    follower = _Follower(folder.address_of(bus, data, secret), wanted)
    try:
        asyncio.run(follower.follow(show))
    except KeyboardInterrupt:
        if follower.last_id:
            words.say(f"stopped; go on with --from {follower.last_id}")
        sys.exit(_INTERRUPTED)


class _Follower:
    """Reads a stream, and comes back to where it was when it breaks off."""

    def __init__(self, address: Address, wanted: TailRequest) -> None:
        self._address = address
        self._wanted = wanted
        self._shown = 0
        self._is_lost = False
        self.last_id = ""

    async def follow(self, show: Callable[[str], None]) -> None:
        url, secret = self._address.url, self._address.secret
        with folder.explained(url):
            async with client.AsyncBus(url, secret, patience_s=0) as bus:
                while not await self._read(bus, show):  # noqa: ASYNC110 - another process sets no Event
                    await asyncio.sleep(_RETRY_S)

    async def _read(self, bus: "client.AsyncBus", show: Callable[[str], None]) -> bool:
        """Show what comes over one connection; returns whether that is all that was wanted."""
        start = self.last_id or self._wanted.start
        try:
            async with contextlib.aclosing(bus.stream(self._wanted.pattern, start=start)) as stream:
                async for each in stream:
                    if self._take(each, show):
                        return True
        except client.StreamDropped as error:
            if error.reason == "revoked":
                raise Refused(error.detail) from error
            words.say(f"dropped by the bus: {error.detail}")
            self._lose("the stream ended")
        except client.BusAway as error:
            # One that was never there is a mistake to report at once; one that was will be back.
            if not self.last_id:
                raise
            self._lose(str(error))
        return False

    def _take(self, each: "client.Streamed", show: Callable[[str], None]) -> bool:
        """Show what came; returns whether that was the last."""
        if self._is_lost:
            self._is_lost = False
            words.say(f"connected again; going on after {self.last_id}")
        self.last_id = each.id
        if each.kind == "gap":
            words.say(f"events are missing, they are no longer in the journal: {each.json}")
        elif each.kind == "event":
            show(words.printable_json(each.json).decode())
            self._shown += 1
        return self._shown == self._wanted.count

    def _lose(self, why: str) -> None:
        if not self._is_lost:
            words.say(f"{why}; trying again until it is back")
        self._is_lost = True


class _Table:
    """A line an event, in columns that keep their place."""

    def __init__(self, console: Console) -> None:
        self._console = console

    def show(self, data: str) -> None:
        event = msgspec.json.decode(data, type=_Event)
        row = Text()
        row.append(_moment(event.t), style="dim")
        for (name, width), style in zip(_WIDTHS.items(), ("cyan", "bold", "green"), strict=True):
            row.append("  ")
            row.append(getattr(event, name).ljust(width), style=style)
        for rest in (event.key, event.url, bytes(event.data).decode()):
            if rest:
                row.append(f"  {words.printable(rest)}", style="dim")
        self._console.print(row, no_wrap=True, overflow="ellipsis", crop=True)


def _moment(at_ms: int) -> str:
    try:
        return time.strftime("%H:%M:%S", time.localtime(at_ms / 1000)) + f".{at_ms % 1000:03}"
    except (OverflowError, ValueError, OSError):
        return str(at_ms)  # a publisher's timestamp may lie beyond any calendar
