"""Events that routing kept out of queues whose owner has reached a bound: counted in the process, written in turns.

A client may have a thousand such queues. To count in each of them while an event is published would cost the publisher
as much as the copies that the bound saves, so a publish notes only which set of queues was skipped.
"""

import asyncio
from collections import Counter
from collections.abc import Sequence
from itertools import islice

from doubledecker import log
from doubledecker.model.queue import RegisteredQueue
from doubledecker.store import queues
from doubledecker.store.events import PublishReply, RoutedEvent
from doubledecker.store.partitions import Partition

# Queues counted by one call: less than a millisecond of the server's time.
_QUEUES_MAX = 300
# Clients that a process logs; each once, so that a stranger cannot fill the log.
_LOGGED_MAX = 1_000

_log = log.get("bus")


class Skips:
    """What was skipped since the counts were last written."""

    def __init__(self, home: Partition) -> None:
        self._home = home
        # By identity: routes share these tuples, and the hash of a long one takes long.
        self._counts: dict[int, tuple[tuple[RegisteredQueue, ...], int]] = {}
        self._logged: set[str] = set()

    def note(self, routed: Sequence[RoutedEvent], reply: PublishReply) -> None:
        for at, routed_event in enumerate(routed):
            skipped = routed_event.route.skipped
            if skipped and at not in reply.repeats and at not in reply.refused:
                _, count = self._counts.get(id(skipped), (skipped, 0))
                self._counts[id(skipped)] = skipped, count + 1

    async def flush(self) -> None:
        """Write the counts; raises BusAway, and then those of the failed call are lost."""
        noted, self._counts = self._counts, {}
        totals: Counter[str] = Counter()
        for skipped, count in noted.values():
            for queue in skipped:
                totals[queue.name] += count
            self._log(skipped)
            # There may be many sets of many queues.
            await asyncio.sleep(0)
        left = iter(totals.items())
        while some := dict(islice(left, _QUEUES_MAX)):
            await queues.note_skipped(self._home, some)

    def _log(self, skipped: Sequence[RegisteredQueue]) -> None:
        for owner, count in Counter(queue.owner for queue in skipped).items():
            if owner not in self._logged and len(self._logged) < _LOGGED_MAX:
                self._logged.add(owner)
                _log.warning("queues.skipped", client=owner, queues=count)
