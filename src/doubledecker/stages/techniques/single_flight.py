"""Single-flight: many who ask for the same at the same time share one call.

When a hot key leaves a cache, everyone misses at once and asks the dependency for the same answer (a stampede). Here
the first one's question is asked in a task of its own, and all of the same key wait for it: one call, one answer or
one exception for all. Who gives up leaves the others alone; when the last one gives up, the call is cancelled.
"""

import asyncio
from dataclasses import dataclass

from doubledecker.stages.errors import KeyMissing
from doubledecker.stages.event import Event
from doubledecker.stages.stage import Stage


@dataclass
class _Flight:
    task: "asyncio.Task[object]"
    waiting: int = 0


@dataclass
class SingleFlight(Stage):
    """By the event's key."""

    def start(self) -> None:
        self._flights: dict[str, _Flight] = {}

    @property
    def needs_key(self) -> bool:
        return True

    def admit(self, event: Event) -> None:
        if event.key is None:
            raise KeyMissing(self.name)

    async def work(self, event: Event) -> object:
        key = event.key or ""
        flight = self._flights.get(key) or self._depart(event, key)
        flight.waiting += 1
        try:
            await asyncio.wait((flight.task,))
            return flight.task.result()
        finally:
            flight.waiting -= 1
            if flight.waiting == 0:
                flight.task.cancel()
                self._land(key, flight)

    def _depart(self, event: Event, key: str) -> _Flight:
        flight = _Flight(self.ask(event.again()))
        self._flights[key] = flight
        flight.task.add_done_callback(lambda _: self._land(key, flight))
        return flight

    def _land(self, key: str, flight: _Flight) -> None:
        if self._flights.get(key) is flight:
            del self._flights[key]
