"""What filters cost a published event: CPU time to route it and to plan its write, by how many filters there are.

python -m bench.filters
"""

import random
import time
from collections.abc import Callable
from typing import cast

import msgspec

from doubledecker.bus.selections import Selections
from doubledecker.model import filter_syntax
from doubledecker.model.event import AcceptedEvent, Draft, draft
from doubledecker.model.queue import RegisteredQueue
from doubledecker.model.routing import Registry
from doubledecker.store.events import RoutedEvent, write_plan
from doubledecker.store.nodes import Nodes
from doubledecker.store.partitions import Partition

# Planning asks no server.
_PARTITION = Partition(cast("Nodes", None), index=0, count=1, prefix="rm:")
_COUNTS = (0, 1, 100, 1_000, 10_000)
_GROUP, _GROUPS = 100, 10
_SORTS: dict[str, Callable[[int], dict[str, object]]] = {
    "one key": lambda n: {"key": [f"customer-{n}"]},
    "one key and a range": lambda n: {"key": [f"customer-{n}"], "data": {"total": [{"numeric": [">", 500]}]}},
    "one path of data": lambda n: {"data": {"customer": {"id": [n]}}},
    "one tenant": lambda n: {"tenant": [f"tenant-{n}"]},
    "a range": lambda n: {"data": {"total": [{"numeric": [">", 1_000 + n]}]}},
}
# By default a client may have 100 that are not found by a value, and all clients 1 000.
_CHECKED, _CHECKED_MAX = "a range", 1_000


def main() -> None:
    """Print a row for each sort of filter: microseconds an event by the number of queues with one."""
    print(f"{'filters':22}" + "".join(f"{count:>9}" for count in _COUNTS))
    for sort, made in _SORTS.items():
        counts = [count for count in _COUNTS if sort != _CHECKED or count <= _CHECKED_MAX]
        print(f"{sort:22}" + "".join(f"{_cost(count, made):>9.2f}" for count in counts))


def _cost(count: int, made: Callable[[int], dict[str, object]]) -> float:
    """Microseconds of CPU an event, the best of five."""
    registry = Registry()
    texts = (filter_syntax.parse(made(n)).text for n in range(count))
    queues = [RegisteredQueue(f"q{n}", "", (".*",), filter=text) for n, text in enumerate(texts)]
    registry.put_queues([RegisteredQueue("all", "", (".*",)), *queues])
    drafts = [_draft(n) for n in range(_GROUP * _GROUPS)]
    return min(_run(registry, drafts) for _ in range(5)) / len(drafts) * 1e6


def _run(registry: Registry, drafts: list[Draft]) -> float:
    started = time.process_time()
    for first in range(0, len(drafts), _GROUP):
        selections = Selections()
        routed = [
            RoutedEvent(selections.route("shop", each, registry), each.message, "shop")
            for each in drafts[first : first + _GROUP]
        ]
        write_plan(_PARTITION, routed)
    return time.process_time() - started


def _draft(number: int) -> Draft:
    chance = random.Random(number)
    customer = chance.randrange(20_000)
    data = {
        "customer": {"id": customer},
        "total": chance.randrange(1_000),
        "items": [{"sku": "a"}] * 3,
        "text": "x" * 80,
    }
    event = AcceptedEvent(
        "orders",
        "paid",
        t=1,
        id=f"o-{number}",
        tenant=f"tenant-{customer % 50}",
        key=f"customer-{customer}",
        data=msgspec.Raw(msgspec.json.encode(data)),
    )
    return draft(event, is_id_given=False, index=number)


if __name__ == "__main__":
    main()
