"""How memory stands, for people: by what workers wrote down, and by what is used when there are none."""

import re
from dataclasses import replace

import pytest

from conftest import Topology
from doubledecker.bus import overview
from doubledecker.bus.memory_relief import MemoryRules
from doubledecker.model.subscriber import Subscriber
from doubledecker.store import counters
from doubledecker.store.memory import MemoryState, MemoryUsage, State
from doubledecker.store.partitions import Partition
from doubledecker.store.subscribers import Condition
from harness import a_bus, an_event

NOW_MS = 1_000_000
LIMIT = 1_000
RULES = MemoryRules(reserve_bytes=100, look_ms=1_000)


def state(used: int, standing: MemoryState, rules: MemoryRules = RULES) -> State:
    return overview.judge("a", MemoryUsage(used, LIMIT), standing, rules, now_ms=NOW_MS).state


def test_a_worker_that_looks_is_believed():
    looked = MemoryState(at=NOW_MS - 1_000, limit_bytes=LIMIT, short_at=0)

    assert state(500, looked) == "ok"
    assert state(950, MemoryState(NOW_MS, LIMIT, is_full=True, short_at=NOW_MS)) == "full"
    assert state(500, MemoryState(NOW_MS, LIMIT, is_full=False, short_at=NOW_MS - 59_000)) == "short"


def test_a_worker_is_believed_whatever_reserve_whoever_asks_would_keep():
    assert state(901, MemoryState(at=NOW_MS - 500, limit_bytes=LIMIT)) == "ok"


@pytest.mark.parametrize(("used", "said"), [(900, "ok"), (901, "full"), (1_001, "full")])
def test_without_a_worker_nothing_is_freed_so_memory_is_full_where_it_would_be_short(used: int, said: State):
    assert state(used, MemoryState()) == said
    assert state(used, MemoryState(at=NOW_MS - 600_000, limit_bytes=50)) == said


def test_a_limit_that_only_the_settings_name_counts_too():
    assert state(501, MemoryState(), MemoryRules(bytes_max=600, reserve_bytes=100)) == "full"


def test_a_worker_that_died_while_memory_was_full_leaves_no_full_memory_behind():
    died = MemoryState(at=NOW_MS - 61_000, limit_bytes=LIMIT, is_full=True, short_at=NOW_MS - 61_000)

    assert state(500, died) == "ok"
    assert state(950, died) == "full"


def test_a_worker_that_looks_seldom_is_believed_for_as_long_as_it_does_not_look():
    looked = MemoryState(at=NOW_MS - 200_000, limit_bytes=LIMIT, is_full=True, short_at=NOW_MS - 200_000)

    assert state(950, looked, MemoryRules(reserve_bytes=100, look_ms=60_000)) == "full"
    assert state(500, looked, MemoryRules(reserve_bytes=100, look_ms=30_000)) == "ok"


async def sent_bytes(partition: Partition) -> int:
    """What a server has sent so far."""
    [found] = re.findall(rb"total_net_output_bytes:([0-9]+)", await partition.command("INFO", "stats"))  # type: ignore[arg-type]
    return int(found)


async def test_who_looks_at_one_subscriber_does_not_read_the_counters_of_all(one: Topology):
    async with a_bus(one, workers=0) as bus:
        mail, publisher = await bus.token("mail"), await bus.token("shop")
        await bus.subscribe(mail, "http://127.0.0.1:9/", "widgets", timeout=3_600_000)
        await bus.publish(publisher, [an_event(n) for n in range(3)])
        home = bus.partitions.home
        for what in ("counters", "batches:gauges:event", "batches:gauges:batch"):
            await home.write("HSET", home.key(what), *(word for n in range(2_000) for word in (f"a stranger's {n}", 1)))
        [token] = [row["subscriber"] for row in await bus.get("/subscribers", mail)]  # type: ignore[index, union-attr]
        await counters.add(home, f"delivery.events:subscriber={token},outcome=delivered", 7)
        before = await sent_bytes(home)
        [row] = await bus.get("/subscribers", mail)  # type: ignore[misc]

        assert await sent_bytes(home) - before < 20_000
        assert row["events"]["queued"] == 3  # type: ignore[index]
        assert row["events"]["sent"] == 7  # type: ignore[index]


def test_what_is_due_does_not_jump_when_a_queue_goes_and_comes_back():
    done = {
        f"delivery.events:subscriber={name},outcome={how}": 5 for name in ("a-1", "@q") for how in ("delivered", "x")
    }
    view = overview.Overview(0, (), {"events.added:subscriber=a-1": 7, **done}, {}, 0, (), {}, None)
    one = overview.SubscriberView(Subscriber("@q", "https://a.example", "u"), Condition(), 3, 0, 5, None)

    assert view.due == 7 + 5
    assert replace(view, subscribers=(one,)).due == 7 + 5 + 3
