"""Presence: a process reports what it is and how it fares, every few seconds and off the path of requests.

`/metrics` of any web process shows the last reports of all. A process is shown until it has been silent for as long as
a worker's slot may be.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Sequence

from doubledecker.background import beside
from doubledecker.errors import BusAway
from doubledecker.store import processes
from doubledecker.store.partitions import Partition
from doubledecker.store.processes import Family, MetricSample, ProcessReport

# A third of the silence after which it is not shown any more, so that two reports may be lost.
_REPORT_S = 5.0
# How often the event loop is asked whether it is on time.
_LOOK_S = 0.5

Figures = Callable[[], Sequence[Family]]


class Presence:
    """One process as others see it: its name, its kind, and its own figures."""

    def __init__(self, home: Partition, process: str, *, kind: str, figures: Figures = tuple) -> None:
        self.process = process
        self._home = home
        self._kind = kind
        self._figures = figures
        self._lag_s = 0.0

    def report(self) -> ProcessReport:
        lag = MetricSample("doubledecker_loop_lag_seconds", {}, self._lag_s)
        text = "How late the event loop was at the worst, since the last report"
        return ProcessReport(self.process, self._kind, [Family(lag.name, text, "gauge", [lag]), *self._figures()])

    async def others(self, *, silent_ms_max: int) -> list[ProcessReport]:
        """What the other processes of the bus reported last."""
        found = await processes.reports(self._home, silent_ms_max=silent_ms_max)
        return [report for report in found if report.process != self.process]

    @contextlib.asynccontextmanager
    async def kept(self) -> AsyncIterator[None]:
        """Report while the block runs; sign off at its end."""
        try:
            async with beside(self._keep_reporting()):
                yield
        finally:
            with contextlib.suppress(BusAway):
                await processes.sign_off(self._home, [self.process])

    async def _keep_reporting(self) -> None:
        while True:
            with contextlib.suppress(BusAway):  # others do not see it until Redis is back
                await processes.report(self._home, self.report())
            self._lag_s = 0.0
            for _ in range(round(_REPORT_S / _LOOK_S)):
                await self._look()

    async def _look(self) -> None:
        time = asyncio.get_running_loop().time
        due_s = time() + _LOOK_S
        await asyncio.sleep(_LOOK_S)
        self._lag_s = max(self._lag_s, time() - due_s)
