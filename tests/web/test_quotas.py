"""What one client may have: each bound is refused by name, holds for one client alone, and not for root."""

from conftest import Topology
from harness import TestBus, a_bus
from web.asking import Answer, ask


async def put(bus: TestBus, secret: str, name: str, *patterns: str) -> Answer:
    return await ask(bus, "PUT", f"/queues/{name}", secret, json={"pattern": list(patterns)})


def assert_refused(answer: Answer, bound: str, most: int) -> None:
    """A 429 that names the bound, its value, its setting and what to do."""
    assert answer.status == 429, answer.body
    assert answer.json["title"] == "Quota exceeded"
    assert f"at most {most} are allowed (DOUBLEDECKER_{bound.upper()});" in answer.detail


class TestQueues:
    async def test_a_client_has_so_many_queues(self, one: Topology):
        async with a_bus(one, workers=0, client_queues_max=2) as bus:
            ann, bob = await bus.token("ann"), await bus.token("bob")
            answers = [await put(bus, ann, f"q{n}", "a") for n in range(3)]

            assert [answer.status for answer in answers[:2]] == [201, 201]
            assert_refused(answers[2], "client_queues_max", 2)
            # A queue that there is may still be changed, and others have their own quota.
            assert (await put(bus, ann, "q1", "b")).status == 200
            assert (await put(bus, bob, "q3", "a")).status == 201
            assert [(await put(bus, "root-key-of-the-tests", f"r{n}", "a")).status for n in range(3)] == [201] * 3
            await ask(bus, "DELETE", "/queues/q0", ann)
            assert (await put(bus, ann, "q2", "a")).status == 201

    async def test_a_clients_patterns_have_so_many_steps(self, one: Topology):
        async with a_bus(one, workers=0, client_pattern_steps_max=60) as bus:
            ann = await bus.token("ann")
            assert (await put(bus, ann, "q1", ".*:page:.*", ".*")).status == 201
            # The same pattern is compiled once.
            assert (await put(bus, ann, "q2", ".*:page:.*")).status == 201
            refused = await put(bus, ann, "q3", ".*:user:.*")

            assert_refused(refused, "client_pattern_steps_max", 60)
            assert "fewer repetitions" in refused.detail
            assert (await put(bus, ann, "q1", ".*:user:.*")).status == 200

    async def test_all_clients_patterns_have_so_many_steps_together(self, one: Topology):
        async with a_bus(one, workers=0, pattern_steps_max=60) as bus:
            ann, bob = await bus.token("ann"), await bus.token("bob")
            assert (await put(bus, ann, "q1", ".*:page:.*", ".*")).status == 201
            assert_refused(await put(bus, bob, "q2", ".*:page:.*"), "pattern_steps_max", 60)
            # What there is may be put again, as services do at each start.
            assert (await put(bus, ann, "q1", ".*:page:.*", ".*")).status == 200

    async def test_zero_is_no_bound(self, one: Topology):
        async with a_bus(one, workers=0, client_queues_max=0, client_pattern_steps_max=0, pattern_steps_max=0) as bus:
            ann = await bus.token("ann")

            assert (await put(bus, ann, "q1", ".*:page:.*")).status == 201
