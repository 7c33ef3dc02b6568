"""`doubledecker tail`: events in a terminal as they are published, over HTTP; coloured there, JSON when piped."""

import sys
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from urllib.parse import urlencode

import click
import msgspec
from rich.console import Console
from rich.text import Text

from doubledecker.cli import words
from doubledecker.cli.calls import Remote
from doubledecker.errors import BusAway, Refused

# Heartbeats come every 15 s unless set otherwise; two may be lost.
_SILENCE_S = 45.0
_RETRY_S = 1.0
# As a shell says it of a command that was interrupted.
_INTERRUPTED = 130
_WIDTHS = {"tenant": 12, "topic": 14, "type": 12}


@dataclass(frozen=True)
class Wanted:
    """What to show: a pattern, from where, and how many (None: without end)."""

    pattern: str
    start: str
    count: int | None


@dataclass
class _Frame:
    """One server-sent event; without data it only moves the position."""

    id: str = ""
    name: str = ""
    data: str = ""


class _Event(msgspec.Struct):
    """What is shown of an event."""

    topic: str
    type: str
    t: int
    tenant: str = "default"
    key: str = ""
    url: str = ""
    data: msgspec.Raw = msgspec.Raw(b"")


class _End(msgspec.Struct):
    reason: str
    detail: str


def tail(remote: Remote, wanted: Wanted, *, as_json: bool) -> None:
    """Print events until there are enough, or for ever."""
    console = Console()
    show = click.echo if as_json or not console.is_terminal else _Table(console).show
    follower = _Follower(remote, wanted)
    try:
        follower.follow(show)
    except KeyboardInterrupt:
        if follower.last_id:
            _say(f"stopped; go on with --from {follower.last_id}")
        sys.exit(_INTERRUPTED)


class _Follower:
    """Reads a stream, and comes back to where it was when it breaks off."""

    def __init__(self, remote: Remote, wanted: Wanted) -> None:
        self._remote = remote
        self._wanted = wanted
        self._shown = 0
        self._is_lost = False
        self.last_id = ""

    def follow(self, show: Callable[[str], None]) -> None:
        while True:
            try:
                for frame in _frames(self._lines()):
                    if self._take(frame, show):
                        return
                self._lose("the stream ended")
            except BusAway as error:
                # One that was never there is a mistake to tell at once; one that was will be back.
                if not self.last_id:
                    raise
                self._lose(str(error))
            time.sleep(_RETRY_S)

    def _lines(self) -> Iterator[bytes]:
        query = urlencode({"pattern": self._wanted.pattern, "from": self._wanted.start})
        headers = {"Last-Event-ID": self.last_id} if self.last_id else {}
        return self._remote.lines(f"/stream?{query}", headers, silence_s=_SILENCE_S)

    def _take(self, frame: _Frame, show: Callable[[str], None]) -> bool:
        """Show what came; says whether that was the last."""
        if self._is_lost:
            self._is_lost = False
            _say(f"connected again; going on after {self.last_id}")
        self.last_id = frame.id or self.last_id
        if frame.name == "dropped":
            end = msgspec.json.decode(frame.data, type=_End)
            if end.reason == "revoked":
                raise Refused(end.detail)
            _say(f"dropped by the bus: {end.detail}")
        elif frame.name == "gap":
            _say(f"events are missing, they are no longer in the journal: {frame.data}")
        elif frame.data:
            show(frame.data)
            self._shown += 1
        return self._shown == self._wanted.count

    def _lose(self, why: str) -> None:
        if not self._is_lost:
            _say(f"{why}; trying again until it is back")
        self._is_lost = True


def _frames(lines: Iterable[bytes]) -> Iterator[_Frame]:
    frame = _Frame()
    for line in lines:
        word, _, value = line.decode().rstrip("\n").partition(": ")
        if word == "id":
            frame.id = value
        elif word == "event":
            frame.name = value
        elif word == "data":
            frame.data = value
        elif not line.strip():
            yield frame
            frame = _Frame()


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


def _say(message: str) -> None:
    click.echo(f"doubledecker: {message}", err=True)
