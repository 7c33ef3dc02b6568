"""Redis calls that fail fast: one chain of stages for each server.

A call to a server that hangs fails after a second, and until then its request waits. After a few such calls the breaker
opens, and the others fail at once; each `open_s` one call is let through to see whether the server is back. The process
reads the registry twice a second, so the circuit closes by itself, also when no request comes.

Only silence counts: no connection, or no reply in time. A server that answers with an error is there. A process
that was too busy to read a reply does not blame the server for it: store/shared_connection.py says how.
"""

from typing import cast

from doubledecker import log
from doubledecker.errors import BusSilent
from doubledecker.stages import Bound, Breaker, Chain, Count, Event
from doubledecker.stages.context import Transitions
from doubledecker.stages.errors import CircuitOpen
from doubledecker.store.nodes import Call, Commands
from doubledecker.store.shared_connection import Reply

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
        if server not in self.bounds:
            self.bounds[server] = self._chain.bind(listener=_logged(server))
        run = self.bounds[server].run

        async def guarded(commands: Commands) -> list[Reply]:
            try:
                return cast("list[Reply]", await run(Event(function=call, args=(commands,))))
            except CircuitOpen as rejected:
                raise BusSilent(f"Redis at {server} has not answered lately; {rejected}") from rejected

        return guarded


def _logged(server: str) -> Transitions:
    return Transitions(
        opened=lambda: _log.error("redis.away", server=server),
        closed=lambda: _log.info("redis.back", server=server),
    )
