"""The audit trail in Redis: bounded in all and for each client, and whole from where it says."""

import pytest

from conftest import Topology
from doubledecker.model import audit as records
from doubledecker.model.audit import AuditFilter
from doubledecker.model.token import Caller
from doubledecker.store import audit, journal
from doubledecker.store.partitions import Partition
from feed import a_feed


async def record(home: Partition, number: int, caller: Caller) -> None:
    begun = records.begun(f"r{number}", number, "queue.changed", caller)
    await audit.begin(home, begun)
    await audit.end(home, begun, begun)


async def numbers(home: Partition) -> list[int]:
    found = await audit.newest(home, AuditFilter(), limit=100)
    assert found.reached is None
    return [each.record.at for each in found.records]


async def test_a_client_pushes_out_its_own_records_and_all_together_the_oldest(
    one: Topology, monkeypatch: pytest.MonkeyPatch
):
    ann, bob, root = Caller("ann-1", "ann"), Caller("bob-2", "bob"), Caller("root", "root", is_root=True)
    monkeypatch.setattr(audit, "CLIENT_MAX", 2)
    async with a_feed(one) as feed:
        home = feed.bus.partitions.home
        await journal.register_archive(home, "lake")
        for number, caller in enumerate((root, ann, bob, bob, bob, root, bob)):
            await record(home, number, caller)

        assert await numbers(home) == [6, 5, 4, 1, 0]
        state = await journal.state(home)
        assert state["audit_lost"] == "2"
        whole_from = (await audit.newest(home, AuditFilter(), limit=1)).whole_from
        assert str(whole_from).startswith(state["audit_trimmed"])

        monkeypatch.setattr(audit, "BYTES_MAX", int(state["audit_bytes"]))
        await journal.confirm(home, "audit", archive="lake", last_id=f"{2**53}-0")
        await record(home, 7, root)
        await record(home, 8, ann)

        assert (await numbers(home))[:3] == [8, 7, 6]
        after = await journal.state(home)
        assert int(after["audit_bytes"]) <= int(state["audit_bytes"])
        assert after["audit_lost"] == "2"
        kept = await home.command("LRANGE", home.key("audit:of:ann-1"), 0, -1)
        entries = [
            each.id.encode()
            for each in journal.entries(await home.command("XRANGE", home.key("journal:audit"), "-", "+"))
        ]
        assert set(kept) <= set(entries)


async def test_what_ended_late_is_recorded_though_it_was_given_up(one: Topology):
    async with a_feed(one) as feed:
        home = feed.bus.partitions.home
        begun = records.begun("r", 1, "queue.changed", Caller("ann-1", "ann"))
        await audit.begin(home, begun)
        assert await audit.end_left(home, now_ms=2**53) == 1
        await audit.end(home, begun, records.ended(begun, "done", status=200, target="", detail=""))

        found = await audit.newest(home, AuditFilter(), limit=10)

    assert [(each.record.request, each.record.outcome) for each in found.records] == [("r", "done"), ("r", "unknown")]
