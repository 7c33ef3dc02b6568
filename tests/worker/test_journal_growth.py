"""The attempt journal keeps to its bound between two runs of the job that cuts it."""

import pytest

from conftest import Topology
from doubledecker.store import journal
from doubledecker.worker import journal_growth
from doubledecker.worker.chores import Chores
from harness import a_bus, an_event
from receiver import Receiver
from web.asking import ask

BOUND, GROWTH = 30_000, 5_000


@pytest.mark.parametrize("kind", ["subscriber", "queue"])
async def test_attempts_are_cut_by_whoever_writes_many(one: Topology, monkeypatch: pytest.MonkeyPatch, kind: str):
    """Those of a second could be more than all journals may hold."""

    async def later(_: Chores) -> None:
        """The job does not come to it."""

    monkeypatch.setattr(Chores, "repair", later)
    monkeypatch.setattr(journal_growth, "_BYTES", GROWTH)
    async with a_bus(one, journal_bytes_max=BOUND) as bus, Receiver() as receiver:
        secret = await bus.token("s")
        if kind == "subscriber":
            await bus.subscribe(secret, receiver.url, "widgets", timeout=0, max=1)
        else:
            hook = {"pattern": ".*", "callback": receiver.url, "timeout": 0, "max": 1}
            assert (await ask(bus, "PUT", "/queues/hook", secret, json=hook)).status == 201
        for first in range(0, 200, 50):
            await bus.publish(secret, [an_event(n, id=f"{n:0128}") for n in range(first, first + 50)])
        await receiver.until_events(200)

        state = await journal.state(bus.partitions.home)
        assert "attempts_trimmed" in state
        assert sum(int(state.get(f"{name}_bytes", 0)) for name in journal.NAMES) <= BOUND + 4 * GROWTH
