"""The audit trail beyond what Redis keeps: landed once, and listed with what is still there as one."""

from pathlib import Path

import pytest

from conftest import Topology
from doubledecker.lake import audit as landed
from doubledecker.lake.reads import ReadContext
from doubledecker.model import audit as records
from doubledecker.model.audit import AuditFilter
from doubledecker.model.token import Caller
from doubledecker.store import audit
from doubledecker.store.partitions import Partition
from harness import a_bus
from lake.test_attempts import _Client
from lakes import PlainLake
from web.asking import ask

pytestmark = pytest.mark.slow

ANN, ROOT = Caller("ann-1", "ann"), Caller("root", "root", is_root=True)


async def record(home: Partition, number: int) -> None:
    begun = records.begun(f"r{number}", number, "queue.purged", (ANN, ROOT)[number % 2], "jobs")
    await audit.begin(home, begun)
    await audit.end(home, begun, records.ended(begun, "done", status=200, target="jobs", detail="", count=number))


@pytest.mark.parametrize("limit", [1, 4, 100])
async def test_redis_and_lake_are_listed_as_one_each_record_once(
    one: Topology, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit: int
):
    """Of a client that did much some records have gone from the midst of what is still there."""
    monkeypatch.setattr(audit, "CLIENT_MAX", 3)
    async with a_bus(one, workers=0, lake=str(tmp_path / "lake")) as bus:
        home = bus.partitions.home
        mine = await PlainLake(_Client(one), tmp_path).register()
        await mine.land("attempts")
        for number in range(12):
            await record(home, number)
            if number in {3, 9}:
                await mine.land("audit")
        assert "audit_lost" not in await audit.journal.state(home)

        found, before = [], ""
        while True:
            answer = (await ask(bus, "GET", f"/audit?limit={limit}&target=jobs{before}")).json
            found += answer["records"]
            if answer["before"] is None:
                break
            before = f"&before={answer['before']}"

        assert [(row["count"], row["actor_name"]) for row in found] == [
            (number, ("ann", "root")[number % 2]) for number in range(11, -1, -1)
        ]
        assert answer["older"] == ""
        ground = ReadContext(mine.root, bus.partitions)
        [older] = (await landed.newest(ground, AuditFilter(own="ann-1", to_ms=2**40), limit=1)).records or [None]
        assert older is None
        theirs = await landed.newest(ground, AuditFilter(own="ann-1", actor="ann", action="queue.purged"), limit=9)
        assert [each.record.at for each in theirs.records] == [8, 6, 4, 2, 0]
