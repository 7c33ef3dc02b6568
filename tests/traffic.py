"""A lake's rows made from chance: what rounds of landing leave in its tables, without a bus."""

import json
from collections.abc import Sequence
from random import Random

from doubledecker.lake import arrow, rows, snapshots
from doubledecker.model.position import Position
from doubledecker.model.uid import event_id
from doubledecker.pipeline.lake import files
from doubledecker.pipeline.land import landing
from doubledecker.pipeline.metrics.measures import OUTCOMES, SETTLEMENTS
from doubledecker.store.journal import JournalEntry

BEGAN_MS = 1_794_740_000_000


def land(root: str, name: str, entries: Sequence[JournalEntry], *, partition: int = 0) -> None:
    """Commit entries as one round of landing does."""
    table = landing.table_of(root, name)
    batch = arrow.to_batch(rows.layout(name), entries, partition=partition)
    table.commit(table.open(), list(files.write(table, [batch])), snapshots.reaches({partition: last(entries)}))


def last(entries: Sequence[JournalEntry]) -> Position:
    return Position.parse(entries[-1].id)


class Traffic:
    """Entries of every journal, each partition with a clock of its own that only goes forward."""

    def __init__(self, seed: int, *, partitions: int = 3, pace_ms: int = 900) -> None:
        self._chance = Random(seed)
        self._pace_ms = pace_ms
        self._clocks = {(name, index): BEGAN_MS for name in landing.TABLES for index in range(partitions)}

    def land(self, root: str, name: str, *, partition: int, entries: int) -> None:
        make = {
            "events": self._events,
            "attempts": self._attempt,
            "settlements": self._settlements,
            "audit": self._audit,
        }[name]
        made = []
        for _ in range(entries):
            self._clocks[name, partition] += self._chance.randrange(self._pace_ms) + 1
            # Several numbers a millisecond, past nine: as text they would not sort.
            id_ = f"{self._clocks[name, partition]}-{self._chance.randrange(12)}"
            made.append(JournalEntry(id_, make(self._clocks[name, partition])))
        land(root, name, made, partition=partition)

    def _events(self, at: int) -> tuple[tuple[str, bytes], ...]:
        chance = self._chance
        lines = [
            {
                "topic": f"topic_{chance.choice('abc')}",
                "type": "update",
                "t": at,
                "id": event_id(at),
                "tenant": f"t{int(chance.paretovariate(1)) % 7}",
                **({"key": f"key-{chance.randrange(3000)}"} if chance.random() < 0.9 else {}),
                "data": "x" * chance.randrange(50),
            }
            for _ in range(chance.randrange(1, 40))
        ]
        return (("shop", b"\n".join(json.dumps(line).encode() for line in lines)),)

    def _attempt(self, at: int) -> tuple[tuple[str, bytes], ...]:
        chance = self._chance
        took_ms = int(chance.lognormvariate(4, 2))
        ids = [event_id(at - chance.randrange(100_000)) for _ in range(chance.randrange(1, 9))]
        told = {
            "batch": "b",
            "subscriber": f"shop-{chance.randrange(4)}",
            "attempt": chance.choice([1, 1, 1, 2, 3]),
            "outcome": chance.choice([*OUTCOMES, "delivered", "delivered"]),
            "took_ms": took_ms,
            "at": at - took_ms,
            "events": [*ids, "a-publishers-own-id"],
        }
        return (("attempt", json.dumps(told).encode()),)

    def _settlements(self, at: int) -> tuple[tuple[str, bytes], ...]:
        chance = self._chance
        kind = chance.choice([*SETTLEMENTS, "pulled", "pulled", "acked"])
        lines = [
            f"0-{at + n} t{int(chance.paretovariate(1)) % 9} 1 {chance.randrange(900)}"
            for n in range(chance.randrange(1, 20))
        ]
        return ("queue", f"queue-{chance.randrange(3)}".encode()), (kind, "\n".join(lines).encode())

    def _audit(self, at: int) -> tuple[tuple[str, bytes], ...]:
        told = {"request": f"r{at}", "at": at, "actor": "root", "actor_name": "root", "action": "queue.purged"}
        more = {"target": "jobs", "outcome": "done", "status": 200, "count": self._chance.randrange(9)}
        named = (
            {"client": "shop-1", "fields": ["tenant"], "address": "192.0.2.1"} if self._chance.random() < 0.5 else {}
        )
        return (("client", b""), ("audit", json.dumps({**told, **more, **named}).encode()))
