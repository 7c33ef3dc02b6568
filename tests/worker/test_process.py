"""The worker process: due on time, clean stop, errors that do not end it, slots of the dead."""

import asyncio

import pytest

from conftest import Topology
from doubledecker.assembly import build
from doubledecker.errors import BusAway, RetryLater
from doubledecker.model.job import AUX, MAIN, Job
from doubledecker.store import deliveries, jobs
from doubledecker.store.deliveries import Turn
from doubledecker.store.jobs import Take, Taken
from doubledecker.store.partitions import Partition, Partitions
from doubledecker.worker import aux_jobs, process
from doubledecker.worker.aux_jobs import AuxJobs
from doubledecker.worker.monitor import Monitor
from harness import a_bus, an_event, quick_settings, within
from receiver import Receiver
from worker.test_deliver import _until


async def test_a_due_job_leaves_on_time(plain: Partitions):
    late_ms = []
    done = asyncio.Event()

    async def execute(taken: Taken) -> None:
        late_ms.append(await plain.home.time_ms() - int(taken.job.args[0]))
        await jobs.ack(taken)
        if len(late_ms) == 20:
            done.set()

    aux = AuxJobs(plain, "slot", execute, process="p", sleep_s_max=5.0)
    now_ms = await plain.home.time_ms()
    for n in range(20):
        await jobs.push(plain.home, Job("x", (str(now_ms + 50 + n * 20),)), delay_ms=50 + n * 20)
    running = asyncio.create_task(aux.run())
    await within(done.wait(), 10)
    await aux.stop(patience_s=1)
    await running

    # Not one by one at the end of a sleep of five seconds; how late they are is the machine's noise.
    assert sorted(late_ms)[10] < 1_000


async def test_a_job_that_raises_is_tried_again_and_the_others_go_on(plain: Partitions):
    seen = []

    async def execute(taken: Taken) -> None:
        seen.append(taken.job.name)
        if taken.job.name == "broken":
            raise ValueError("nobody foresaw this")
        if seen.count("later") == 1 and taken.job.name == "later":
            raise RetryLater(1)
        await jobs.ack(taken)

    for name in ("broken", "later", "fine"):
        await jobs.push(plain.home, Job(name))
    aux = AuxJobs(plain, "slot", execute, process="p", sleep_s_max=0.05)
    running = asyncio.create_task(aux.run())
    async with asyncio.timeout(5):
        while seen.count("later") < 2 or "fine" not in seen:
            await asyncio.sleep(0.01)
    await aux.stop(patience_s=1)
    await running

    counts = await jobs.counts(plain.home)
    assert (counts[AUX, "index"], counts[AUX, "scheduled"]) == (1, 1)


async def test_an_error_that_nobody_foresaw_in_taking_jobs_does_not_end_it_in_silence(
    plain: Partitions, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    """Aux jobs ended, and the worker went on without them."""
    take, done = jobs.take, asyncio.Event()
    errors = [ValueError("nobody foresaw this")]

    async def failing_once(*words: object, **named: object) -> Take:
        if errors:
            raise errors.pop()
        return await take(*words, **named)  # type: ignore[arg-type]

    async def execute(taken: Taken) -> None:
        await jobs.ack(taken)
        done.set()

    monkeypatch.setattr(jobs, "take", failing_once)
    monkeypatch.setattr(aux_jobs, "_ERROR_DELAY_MS", 10)
    await jobs.push(plain.home, Job("x"))
    aux = AuxJobs(plain, "slot", execute, process="p", sleep_s_max=5.0)
    running = asyncio.create_task(aux.run())
    await within(done.wait(), 5)
    await aux.stop(patience_s=1)
    await running

    assert "nobody foresaw this" in "".join(capsys.readouterr())


async def test_a_clean_stop_gives_back_what_it_holds(topology: Topology):
    async with a_bus(topology, workers=0) as bus, Receiver(plan=lambda _: "hang") as hanging:
        await bus.subscribe(await bus.token("s"), hanging.url, "widgets", timeout=0)
        await bus.publish(await bus.token("publisher"), [an_event()])
        stop = asyncio.Event()
        working = asyncio.create_task(process.run(quick_settings(topology, shutdown_s=0.1), stop))
        await hanging.until_attempts(1)

        stop.set()
        # No partition's part of the worker sleeps on: that would be for five seconds.
        await within(working, 3)

        states = [await jobs.counts(partition) for partition in bus.partitions.all]
        assert sum(count[MAIN, "instant"] for count in states) == 1
        assert [await jobs.beats(partition) for partition in bus.partitions.all] == [{}] * topology.partitions


async def test_a_job_that_comes_while_the_worker_stops_goes_back(one: Topology, monkeypatch: pytest.MonkeyPatch):
    """It was run, for as long as its receiver took."""
    stop = asyncio.Event()
    turn = deliveries.turn

    async def slowly(*words: object, **named: object) -> Turn:
        reply = await turn(*words, **named)  # type: ignore[arg-type]
        if reply.jobs:
            stop.set()
            await asyncio.sleep(0.3)
        return reply

    monkeypatch.setattr(deliveries, "turn", slowly)
    async with a_bus(one, workers=0) as bus, Receiver(plan=lambda _: "hang") as hanging:
        await bus.subscribe(await bus.token("s"), hanging.url, "widgets", timeout=0)
        await bus.publish(await bus.token("publisher"), [an_event()])
        await within(process.run(quick_settings(one, shutdown_s=0.1), stop), 3)

        assert hanging.attempts == 0
        assert (await jobs.counts(bus.partitions.home))[MAIN, "instant"] == 1
        assert (await deliveries.turn(bus.partitions.home, [], ["s"], process="p", probes_max=1)).jobs


async def test_a_worker_outlives_the_absence_of_redis(one: Topology, data_dir):
    from doubledecker.store.embedded import EmbeddedServer

    server = await EmbeddedServer.start(data_dir)
    own = Topology("own", server.url, 1, (server.url,))
    async with a_bus(own) as bus, Receiver() as receiver:
        await bus.subscribe(await bus.token("s"), receiver.url, "widgets", timeout=0)
        publisher = await bus.token("publisher")
        await bus.publish(publisher, [an_event(1)])
        await receiver.until_events(1)

        server.kill()
        await server.wait()
        await server.restart()
        async with asyncio.timeout(10):
            while True:
                async with bus.http.get(f"{bus.url}/readyz") as response:
                    if response.status == 200:
                        break
                await asyncio.sleep(0.02)
        ids = await bus.publish(publisher, [an_event(2)])
        await receiver.until(lambda: ids[0] in receiver.ids)
    await server.stop()


@pytest.mark.parametrize("is_stopped", [False, True])
async def test_a_worker_that_starts_while_redis_is_silent_waits_for_it(one: Topology, is_stopped: bool):
    stop = asyncio.Event()
    async with (
        a_bus(one, workers=0) as bus,
        build.open_bus(bus.settings) as other,
        build.open_deliverer(bus.settings, other.partitions, part="worker") as deliverer,
    ):
        worker = process.Worker(bus.settings, other, deliverer, Monitor([]))
        await other.partitions.home.command("CLIENT", "PAUSE", 1_500, "ALL")
        working = asyncio.create_task(worker.run(stop))
        await asyncio.sleep(1.2)
        is_waiting = not working.done()
        async with asyncio.timeout(10):
            while not is_stopped and not await beats(other.partitions.home):
                await asyncio.sleep(0.05)
        stop.set()
        await within(working, 10)

    assert is_waiting


async def beats(partition: Partition) -> dict[str, int]:
    """None while the server is silent."""
    try:
        return await jobs.beats(partition)
    except BusAway:
        return {}


async def test_jobs_of_a_dead_slot_are_done_by_another(topology: Topology):
    async with a_bus(topology, workers=0) as bus, Receiver() as receiver:
        await bus.subscribe(await bus.token("s"), receiver.url, "widgets", timeout=0)
        await bus.publish(await bus.token("publisher"), [an_event()])
        for partition in bus.partitions.all:
            await partition.command("HSET", partition.key("workers"), "dead", 1)
            await deliveries.turn(partition, [], ["dead"], process="dead", probes_max=1)
        stop = asyncio.Event()

        settings = quick_settings(topology, worker_dead_s=1)
        working = asyncio.create_task(process.run(settings, stop))
        await receiver.until_events(1)

        stop.set()
        await working
        assert len(receiver.events) == 1


@pytest.mark.slow
async def test_after_redis_was_silent_no_living_slot_counts_as_dead(one: Topology):
    """Whoever came first took the jobs of all others, whose last heartbeats were old, and they were delivered twice."""
    quick = {"worker_dead_s": 1.0, "acquire_timeout_s": 1.0}
    async with a_bus(one, workers=3, **quick) as bus, Receiver(delay_s=0.3) as receiver:
        await bus.subscribe(await bus.token("s"), receiver.url, "widgets", timeout=0, max=1, concurrency=6)
        ids = await bus.publish(await bus.token("publisher"), [an_event(n) for n in range(60)])
        for _ in range(3):
            await receiver.until_attempts(receiver.attempts + 6)
            await bus.partitions.home.command("CLIENT", "PAUSE", 1_500, "ALL")
        await receiver.until(lambda: len(set(receiver.ids)) == len(ids), within_s=30)
        await _until(lambda: jobs.counts(bus.partitions.home), lambda found: found[MAIN, "index"] == 0)

    assert sorted(receiver.ids) == sorted(ids)


async def test_many_workers_run_a_recurring_chore_once_a_period(plain: Partitions):
    added = [await jobs.push(plain.home, Job("monitor"), every_ms=10_000) for _ in range(5)]
    [taken] = (await jobs.take(plain.home, ["slot"], process="p")).taken
    await jobs.ack(taken)
    again = await jobs.push(plain.home, Job("monitor"), every_ms=10_000)
    plain.home.shift_ms = 10_001
    later = await jobs.push(plain.home, Job("monitor"), every_ms=10_000)

    assert added == [True, False, False, False, False]
    assert (again, later) == (False, True)


async def test_a_recurring_chore_does_not_wait_behind_what_publishers_caused(plain: Partitions):
    for n in range(3):
        await jobs.push(plain.home, Job("fanout", (str(n),)))
    await jobs.push(plain.home, Job("autodrop"), every_ms=10_000)
    [taken] = (await jobs.take(plain.home, ["slot"], process="p")).taken

    assert taken.job.name == "autodrop"


async def test_the_registry_version_is_mended_after_a_crash_between_partitions(topology: Topology):
    from doubledecker.model.subscriber import Subscriber
    from doubledecker.store import registry, subscribers

    async with a_bus(topology) as bus, build.open_bus(bus.settings) as other:
        token = (await other.registry.clients.create("s", "secret", now_ms=1)).id
        subscriber = Subscriber(token, "http://127.0.0.1:9/", "u", ("a",))
        version = await subscribers.save(other.partitions.home, subscriber, seen=other.registry.snapshot.version)

        async with asyncio.timeout(5):
            for partition in bus.partitions.all:
                while await registry.version(partition) < version:
                    await asyncio.sleep(0.02)


async def test_a_job_whose_end_got_lost_while_redis_is_silent_is_run_again_in_the_slot_that_holds_it(plain: Partitions):
    ran: list[str] = []
    may_end = asyncio.Event()

    async def execute(taken: Taken) -> None:
        ran.append(taken.slot)
        if len(ran) == 1:
            await may_end.wait()
            raise BusAway("the reply was lost")
        await jobs.ack(taken)

    aux = AuxJobs(plain, "slot", execute, process="p", sleep_s_max=0.05)
    running = asyncio.create_task(aux.run())
    await jobs.push(plain.home, Job("x"))
    async with asyncio.timeout(5):
        while not ran:
            await asyncio.sleep(0.01)
        await plain.home.command("CLIENT", "PAUSE", 300, "ALL")
        aux.wake()
        await asyncio.sleep(0.1)
        may_end.set()
        while (await jobs.counts(plain.home))[AUX, "index"]:
            await asyncio.sleep(0.01)
    await aux.stop(patience_s=1)
    await running

    assert ran == [ran[0]] * 2
