"""What queues handed out in the last minute, to whom: read from the journal of settlements while somebody looks.

A pipeline that lands the journal cuts it meanwhile, and a very busy one is not read whole: then it is a sample, whose
shares are those of all.
"""

from collections import Counter, deque
from dataclasses import dataclass, field

from doubledecker.store import journal
from doubledecker.store.partitions import Partition, Partitions

_MINUTE_MS = 60_000
# One call reads some milliseconds' worth of entries; a look so many calls, and then goes on from the end.
_PAGE, _PAGES_MAX, _LINES_MAX = 500, 6, 20_000
# Tenants that are remembered of a moment: what is shown is those who got the most.
_TENANTS_MAX = 5_000


@dataclass
class _Moment:
    """What was handed out in one look: messages by queue and tenant."""

    at_ms: int
    pulled: Counter[tuple[str, str]] = field(default_factory=Counter)


class ServiceWindow:
    """Counts what queues hand out; each look reads what came since the one before."""

    def __init__(self, partitions: Partitions) -> None:
        self._partitions = partitions
        self._after: dict[int, str] = {}
        self._moments: deque[_Moment] = deque()

    async def look(self) -> dict[str, Counter[str]]:
        """How many messages each tenant was handed out of each queue in the last minute."""
        now_ms = await self._partitions.home.time_ms()
        moment = _Moment(now_ms)
        for partition in self._partitions.all:
            await self._read(partition, moment)
        self._moments.append(moment)
        while self._moments[0].at_ms <= now_ms - _MINUTE_MS:
            self._moments.popleft()
        found: dict[str, Counter[str]] = {}
        for each in self._moments:
            for (queue, tenant), count in each.pulled.items():
                found.setdefault(queue, Counter())[tenant] += count
        return found

    async def _read(self, partition: Partition, moment: _Moment) -> None:
        least = f"{moment.at_ms - _MINUTE_MS}-0"
        after = max(self._after.get(partition.index, least), least, key=_order)
        lines = 0
        for _ in range(_PAGES_MAX):
            entries = await journal.read(partition, "settlements", after=after, count=_PAGE)
            for entry in entries:
                lines += _count(entry, moment.pulled)
            if entries:
                after = entries[-1].id
            if len(entries) < _PAGE or lines > _LINES_MAX:
                break
        else:
            after = f"{moment.at_ms}-0"
        self._after[partition.index] = after


def _count(entry: journal.JournalEntry, pulled: Counter[tuple[str, str]]) -> int:
    """Add an entry's messages; a line is the message's id, its tenant, its attempt and a time. Returns how many."""
    (_, queue), *kinds = entry.fields
    name, seen = queue.decode(), 0
    for kind, text in kinds:
        if kind == "pulled":
            tenants = [line.split(b" ", 2)[1].decode() for line in text.split(b"\n")]
            seen += len(tenants)
            for tenant in tenants:
                if len(pulled) < _TENANTS_MAX or (name, tenant) in pulled:
                    pulled[name, tenant] += 1
    return seen


def _order(id_: str) -> tuple[int, int]:
    at, _, number = id_.partition("-")
    return int(at), int(number)
