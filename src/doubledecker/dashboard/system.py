"""The pages of what the bus runs on (memory, processes, jobs, journals), and of who changed what on it."""

from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import urlencode

from doubledecker.bus.overview import MEMORY_MEANS
from doubledecker.dashboard.bus_view import BusView
from doubledecker.dashboard.pages import Visit
from doubledecker.errors import Forbidden
from doubledecker.model.audit import OUTCOMES
from doubledecker.store.processes import ProcessReport

_LAG = "doubledecker_loop_lag_seconds"
_CONNECTIONS = "doubledecker_connections"
_STREAMS = "doubledecker_streams"
_MS = 1000
_AUDIT_FILTER = ("actor", "action", "target", "from", "to")
_AUDIT_ROWS = "50"


@dataclass(frozen=True)
class ProcessRow:
    """A process as it reported last; None is what its kind does not count."""

    name: str
    kind: str
    late_ms: float | None
    connections: float | None
    streams: float | None


class SystemPage:
    def __init__(self, bus: BusView) -> None:
        self._bus = bus

    async def look(self, visit: Visit) -> Mapping[str, object]:
        """What there is; raises Forbidden for a token that is limited to some topics or tenants."""
        if not visit.sees_bus:
            raise Forbidden("this page is of all topics and tenants, and this token is limited to some")
        view = await self._bus.overview()
        reports = await self._bus.processes()
        return {
            "view": view,
            "means": MEMORY_MEANS[view.memory_state],
            "processes": sorted(map(_row, reports), key=lambda row: (row.kind, row.name)),
        }


def _row(report: ProcessReport) -> ProcessRow:
    late_s = _value(report, _LAG)
    return ProcessRow(
        report.process,
        report.kind,
        None if late_s is None else late_s * _MS,
        _value(report, _CONNECTIONS),
        _value(report, _STREAMS),
    )


def _value(report: ProcessReport, name: str) -> float | None:
    """What a process reported of a metric that has no labels."""
    found = (sample.value for family in report.families if family.name == name for sample in family.samples)
    return next(found, None)


class TrailPage:
    async def look(self, visit: Visit) -> Mapping[str, object]:
        """The newest records that fit; of a client those of what it did itself."""
        chosen, before = visit.given(*_AUDIT_FILTER), visit.given("before")
        found = await visit.get("/audit", {**chosen, **before, "limit": _AUDIT_ROWS})
        follows = {**chosen, "before": found["before"]} if found["before"] else {}
        return {
            "found": found,
            "chosen": chosen,
            "outcomes": OUTCOMES,
            "is_first": not before,
            "newest": f"?{urlencode(chosen)}",
            "older": f"?{urlencode(follows)}" if follows else "",
        }
