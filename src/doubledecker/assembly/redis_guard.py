"""Redis calls that fail fast: one chain of stages for each server.

A call to a server that hangs fails after a second, and until then its request waits. After a few such calls the breaker
opens, and the others fail at once; each `open_s` one call is let through to see whether the server is back. The process
reads the registry twice a second, so the circuit closes by itself, also when no request comes.

Only silence counts: no connection, or no reply in time. A server that answers with an error is there.
"""

from typing import cast

from doubledecker import log
from doubledecker.errors import BusSilent
from doubledecker.stages import Bound, Breaker, Chain, Count, Event, Notice
from doubledecker.stages.errors import CircuitOpen
from doubledecker.store.line import Reply
from doubledecker.store.nodes import Call, Commands

# More than half of the last eight, at least five: one lost reply is no reason, and five are there within a second.
_CALLS = 8
_CALLS_MIN = 5

_log = log.get("redis")


class RedisGuard:
    """Guards the calls to every server that the process talks to."""

    def __init__(self, *, open_s: float) -> None:
        self._chain = Chain((Breaker(Count(_CALLS), calls_min=_CALLS_MIN, open_s=open_s, on=(BusSilent,)),))
        self.bounds: dict[str, Bound] = {}

    def __call__(self, server: str, call: Call) -> Call:
        """The same call, through the server's chain."""
        run = self.bounds.setdefault(server, self._chain.bind(listener=_Transitions(server).hear)).run

        async def guarded(commands: Commands) -> list[Reply]:
            try:
                return cast("list[Reply]", await run(Event(function=call, args=(commands,))))
            except CircuitOpen as rejected:
                raise BusSilent(f"Redis at {server} has not answered lately; {rejected}") from rejected

        return guarded


class _Transitions:
    """Logs when a server goes away and when it is back; that it is still away after another probe is no news."""

    def __init__(self, server: str) -> None:
        self._server = server
        self._is_away = False

    def hear(self, notice: Notice) -> None:
        was_away = self._is_away
        if notice.what in {"open", "closed"}:
            self._is_away = notice.what == "open"
        if self._is_away and not was_away:
            _log.error("redis.away", server=self._server)
        elif was_away and not self._is_away:
            _log.info("redis.back", server=self._server)
