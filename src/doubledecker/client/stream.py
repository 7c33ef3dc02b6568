"""What passes over a bus, as it passes: the frames of `GET /stream`, for as long as one connection lasts."""

from collections.abc import AsyncGenerator, AsyncIterator
from typing import Literal

import msgspec

from doubledecker.client.calls import Calls, decode, path
from doubledecker.client.errors import BusAway, StreamDropped
from doubledecker.client.message import Event, read_event

# The bus sends a heartbeat every 15 s unless set otherwise; two may be lost.
SILENCE_S_MAX = 45.0


class Streamed(msgspec.Struct, frozen=True):
    """What came over a stream: an event; a gap, where the journal no longer holds events; or only a new position.

    `id` is the position after it: a stream that starts there goes on with what followed. `json` is the event or the
    gap as the bus wrote it.
    """

    kind: Literal["event", "gap", "position"]
    id: str
    json: str = ""

    @property
    def event(self) -> Event | None:
        """The event, if it is one."""
        return read_event(self.json.encode()) if self.kind == "event" else None


class _End(msgspec.Struct):
    reason: str
    detail: str


async def read(calls: Calls, pattern: str, *, start: str, silence_s_max: float) -> AsyncGenerator[Streamed, None]:
    """All that comes; ends with an error, as a stream has no end."""
    query = path("stream", **{"pattern": pattern, "from": start})
    last_id = ""
    async for lines in _frames(calls.chunks(query, silence_s=silence_s_max)):
        fields = dict(line.partition(": ")[::2] for line in lines.split("\n"))
        name, json, last_id = fields.get("event", ""), fields.get("data", ""), fields.get("id", last_id)
        if name == "dropped":
            end = decode(json.encode(), _End)
            raise StreamDropped(end.reason, end.detail)
        if name == "gap":
            yield Streamed("gap", last_id, json)
        else:
            yield Streamed("event" if json else "position", last_id, json)
    raise BusAway("the stream ended")


async def _frames(chunks: AsyncIterator[bytes]) -> AsyncIterator[str]:
    rest = b""
    async for chunk in chunks:
        *whole, rest = (rest + chunk).split(b"\n\n")
        for frame in whole:
            yield frame.decode()
