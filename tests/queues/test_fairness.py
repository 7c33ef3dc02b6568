"""Fairness, measured on real servers in all shapes: noisy, late, churning and slow tenants; weights; live changes."""

import asyncio
import heapq
import random
from dataclasses import dataclass, field

import pytest

from doubledecker.model.queue import FacetRule, RegisteredQueue
from doubledecker.store import facets
from doubledecker.store.partitions import Partitions
from queues.pulling import a_queue, drain, held, jain, pass_time, push, quiet_rings, shares_of

QUIET = tuple(f"quiet-{n}" for n in range(99))
EACH = 10
# The last of 99 x 10 quiet messages when all 100 tenants take turns.
IDEAL = 100 * EACH


async def noise(partitions: Partitions, queue: RegisteredQueue, *, noisy: int = 5000) -> None:
    """NN-100: one tenant enqueues thousands, then 99 tenants ten each; then consumers start."""
    await push(partitions, queue, ["noisy"] * noisy)
    await push(partitions, queue, [tenant for tenant in QUIET for _ in range(EACH)])


@pytest.mark.parametrize("most", [1, 7, 100, 200])
@pytest.mark.parametrize("charge", ["time", "count"])
async def test_the_last_quiet_message_is_served_at_its_ideal_place(plain: Partitions, most: int, charge: str):
    queue = a_queue(charge=charge)
    await noise(plain, queue, noisy=2000)
    # Nobody settles, so that every message costs the same.
    rings = quiet_rings(plain)
    served = []
    while len(served) < IDEAL + 100:
        served += (await rings.pull(queue, most=most)).messages

    places = [place for place, message in enumerate(served, 1) if message.tenant != "noisy"]
    assert len(places) == 990
    assert places[-1] <= IDEAL
    assert jain(list(shares_of(served[:100]).values())) == 1.0
    assert len(shares_of(served[:100])) == 100


async def test_quiet_tenants_are_served_in_turn_in_every_shape(partitions: Partitions):
    """Over several partitions the rings turn as one, as nearly as batches allow."""
    queue = a_queue(charge="count")
    await noise(partitions, queue)
    served = await drain(quiet_rings(partitions), queue, most=50, count_max=1500)

    places = [place for place, message in enumerate(served, 1) if message.tenant != "noisy"]
    # A partition's share of a batch is a whole number.
    tolerance = 0 if len(partitions.all) == 1 else len(partitions.all)
    assert places[-1] <= IDEAL + tolerance
    first_round = shares_of(served[: 100 + tolerance])
    assert jain([first_round[tenant] for tenant in (*QUIET, "noisy")]) >= 0.99 - tolerance / 100


async def test_several_consumers_together_are_as_fair_as_one(partitions: Partitions):
    """In whatever order they come, nobody is served twice before all are served once, but for what is under way."""
    queue = a_queue(charge="count")
    await noise(partitions, queue)
    served = []

    async def consume() -> None:
        rings = quiet_rings(partitions)
        while len(served) < 1300:
            pull = await rings.pull(queue, most=random.choice([1, 5, 20]))
            served.extend(pull.messages)
            await rings.ack(queue, held(pull.messages))

    await asyncio.gather(*(consume() for _ in range(6)))

    places = [place for place, message in enumerate(served, 1) if message.tenant != "noisy"]
    assert len(places) == 990
    assert places[-1] <= IDEAL * 1.1
    assert jain([shares_of(served[:IDEAL])[tenant] for tenant in QUIET]) >= 0.99


async def test_a_late_message_is_served_by_the_next_pull(partitions: Partitions):
    queue = a_queue()
    rings = quiet_rings(partitions)
    await push(partitions, queue, [f"busy-{n}" for n in range(1000) for _ in range(3)])
    await drain(rings, queue, most=200, count_max=1400)
    await push(partitions, queue, ["late"])

    pull = await rings.pull(queue, most=1)

    assert [message.tenant for message in pull.messages] == ["late"]


async def test_a_tenant_that_comes_back_for_each_message_gains_nothing(partitions: Partitions):
    """Churn: it re-enqueues whenever it is served, and gets 1/n."""
    queue = a_queue(charge="count")
    rings = quiet_rings(partitions)
    others = [f"busy-{n}" for n in range(9)]
    await push(partitions, queue, [tenant for tenant in others for _ in range(200)])
    await push(partitions, queue, ["churn"])
    served = []
    for _ in range(400):
        pull = await rings.pull(queue, most=1)
        served += pull.messages
        await rings.ack(queue, held(pull.messages))
        if pull.messages[0].tenant == "churn":
            await push(partitions, queue, ["churn"])

    assert len(served) == 400
    tolerance = 1 if len(partitions.all) == 1 else 6
    assert abs(shares_of(served)["churn"] - 40) <= tolerance


async def test_by_count_every_tenant_is_served_once_before_any_is_served_again(plain: Partitions):
    queue = a_queue(charge="count")
    tenants = [f"t{n}" for n in range(20)]
    await push(plain, queue, [tenant for tenant in tenants for _ in range(10)])
    rings = quiet_rings(plain)
    served = []
    while len(served) < 200:
        # Settling between pulls, at once or late, changes nothing in the order.
        pull = await rings.pull(queue, most=random.choice([1, 3, 8, 33]))
        served += pull.messages
        await rings.ack(queue, held(random.sample(served, len(served) // 2)))

    rounds = [tuple(message.tenant for message in served[i : i + 20]) for i in range(0, 200, 20)]
    assert all(set(each) == set(tenants) for each in rounds)
    assert len(set(rounds)) == 1


@pytest.mark.parametrize("charge", ["time", "count"])
@pytest.mark.parametrize("most", [1, 50])
async def test_weights_are_kept_within_two_percent(plain: Partitions, charge: str, most: int):
    queue = a_queue(charge=charge, lease_ms=3_600_000)
    weights = {"one": 1.0, "two": 2.0, "four": 4.0}
    for tenant, weight in weights.items():
        await facets.set_rule(plain.home, queue, tenant, FacetRule(weight=weight))
    await push(plain, queue, [tenant for tenant in weights for _ in range(450)])
    rings = quiet_rings(plain)
    served = []
    while len(served) < 700:
        pull = await rings.pull(queue, most=min(most, 700 - len(served)))
        served += pull.messages
        # Long work, beside which the time that a busy machine adds is nothing.
        pass_time(plain, 5_000 * len(pull.messages))
        await rings.ack(queue, held(pull.messages))

    shares = shares_of(served)
    for tenant, weight in weights.items():
        assert shares[tenant] == pytest.approx(100 * weight, rel=0.02)


async def test_a_tenant_in_a_partition_that_ran_empty_waits_for_nobody_elses_debt(partitions: Partitions):
    """A tenant's long work must not set back whoever shares its partition."""
    queue = a_queue()
    rings = quiet_rings(partitions)
    names = [f"t{n}" for n in range(200)]
    home = [name for name in names if partitions.of(an_event(name).kind).index == 0]
    away = [name for name in names if partitions.of(an_event(name).kind).index != 0] or home[100:]
    await push(partitions, queue, [home[0]])
    slow = (await rings.pull(queue, most=1)).messages
    pass_time(partitions, 3_600_000)
    await rings.ack(queue, held(slow))
    await push(partitions, queue, away[:20] * 50)
    await drain(rings, queue, most=10, count_max=100)
    await push(partitions, queue, [home[1]])

    served = await drain(rings, queue, most=10, count_max=60)

    assert home[1] in {message.tenant for message in served}


def an_event(tenant: str):
    from doubledecker.model.event import AcceptedEvent

    return AcceptedEvent(topic="widgets", type="update", tenant=tenant)


@dataclass
class Factory:
    """Workers in virtual time: quick tenants' jobs take 20 ms, the slow one's a second."""

    partitions: Partitions
    queue: RegisteredQueue
    workers: int
    now_ms: int = 0
    waits: dict[str, list[int]] = field(default_factory=dict)
    busy_ms: int = 0
    born: dict[str, list[int]] = field(default_factory=dict)

    async def run(self, until_ms: int, coming: list[tuple[int, str]]) -> None:
        rings = quiet_rings(self.partitions)
        free, under_way, at = self.workers, [], 0
        while self.now_ms < until_ms:
            while at < len(coming) and coming[at][0] <= self.now_ms:
                due = [tenant for born, tenant in coming[at:] if born <= self.now_ms]
                await push(self.partitions, self.queue, due)
                for tenant in due:
                    self.born.setdefault(tenant, []).append(self.now_ms)
                at += len(due)
            while free:
                pull = await rings.pull(self.queue, most=1, lease_ms=10_000_000)
                if not pull.messages:
                    break
                free -= 1
                [message] = pull.messages
                self.waits.setdefault(message.tenant, []).append(self.now_ms - self.born[message.tenant].pop(0))
                cost = 1000 if message.tenant == "slow" else 20
                self.busy_ms += cost
                heapq.heappush(under_way, (self.now_ms + cost, message.id, message))
            ends = [under_way[0][0]] if under_way else []
            ends += [coming[at][0]] if at < len(coming) else []
            if not ends:
                break
            pass_time(self.partitions, min(ends) - self.now_ms)
            self.now_ms = min(ends)
            done = []
            while under_way and under_way[0][0] <= self.now_ms:
                done.append(heapq.heappop(under_way)[2])
            free += len(done)
            if done:
                await rings.ack(self.queue, held(done))


def arrivals(until_ms: int) -> list[tuple[int, str]]:
    """A backlog of slow jobs, and of each of nine quick tenants a job every 25 ms: 7.2 of ten workers' time."""
    quick = [(at + tenant, f"quick-{tenant}") for tenant in range(9) for at in range(0, until_ms, 25)]
    return sorted([(0, "slow")] * 300 + quick)


async def test_slow_work_of_one_tenant_does_not_make_the_quick_ones_wait(plain: Partitions):
    """Ten workers, a backlog of 1 s jobs, and nine tenants whose 20 ms jobs arrive at 80 % of what is their due."""
    factory = Factory(plain, a_queue(), workers=10)
    await factory.run(5_000, arrivals(5_000))

    waits = sorted(wait for tenant, each in factory.waits.items() if tenant != "slow" for wait in each)
    assert len(waits) > 1600
    assert waits[int(len(waits) * 0.99)] < 1000
    # Work-conserving: all workers were at work, and the slow tenant got what the others left.
    assert factory.busy_ms >= 0.97 * 10 * 5_000
    assert len(factory.waits["slow"]) >= 10


async def test_the_same_by_count_lets_slow_work_take_the_workers(plain: Partitions):
    """The reason for charging time; if this were fair too, the test above would show nothing."""
    factory = Factory(plain, a_queue(charge="count"), workers=10)
    await factory.run(5_000, arrivals(5_000))

    waits = sorted(wait for tenant, each in factory.waits.items() if tenant != "slow" for wait in each)
    assert waits[int(len(waits) * 0.5)] > 1000


async def test_a_tenant_is_paused_resumed_and_capped_while_it_is_served(partitions: Partitions):
    queue = a_queue(charge="count")
    rings = quiet_rings(partitions)
    at = partitions.of(an_event("ann").kind)
    await push(partitions, queue, ["ann"] * 50 + ["bob"] * 300)
    await drain(rings, queue, most=4, count_max=20)
    await facets.set_rule(at, queue, "ann", FacetRule(paused=True))
    paused = await drain(rings, queue, most=4, count_max=40)
    await facets.set_rule(at, queue, "ann", FacetRule())
    resumed = await drain(rings, queue, most=4, count_max=40)
    await facets.set_rule(at, queue, "ann", FacetRule(concurrency=2))
    capped = [message for _ in range(8) for message in (await rings.pull(queue, most=6)).messages]

    assert shares_of(paused) == {"bob": 40}
    assert 15 <= shares_of(resumed)["ann"] <= 25
    assert shares_of(capped)["ann"] == 2
    await rings.ack(queue, held([message for message in capped if message.tenant == "ann"][:1]))
    more = [message for _ in range(4) for message in (await rings.pull(queue, most=6)).messages]
    assert shares_of(more)["ann"] == 1
