"""`GET /stream` on a real server: complete, in order, resumed exactly, and never in the way of publishing."""

import asyncio
import json
import random
import re
import socket
from collections import defaultdict

import pytest
import redis.asyncio as redis

import mixed
from conftest import Topology
from doubledecker.store import counters, journal
from harness import ROOT_KEY, TestBus, a_bus, an_event, basic
from streams import a_stream
from web.asking import ask, bearer

TENANTS = [f"tenant-{n}" for n in range(8)]


async def publish_many(bus: TestBus, secret: str, *, requests: int) -> list[str]:
    """Publish from several clients at once, several tenants and topics in each request; returns all ids."""

    async def one(tenant: str) -> list[str]:
        ids: list[str] = []
        for n in range(requests):
            topics = ("page", "order", "page")
            ids += await bus.publish(
                secret, [an_event(n * 3 + i, topic, tenant=tenant, type="t") for i, topic in enumerate(topics)]
            )
        return ids

    return [id_ for ids in await asyncio.gather(*(one(tenant) for tenant in TENANTS)) for id_ in ids]


def check_complete(events: list[dict], ids: list[str]) -> None:
    """Every event once; those of a tenant in the order of publishing."""
    assert sorted(event["id"] for event in events) == sorted(ids)
    by_tenant = defaultdict(list)
    for event in events:
        by_tenant[event["tenant"]].append(int(event["url"].rpartition("/")[2]))
    assert all(numbers == sorted(numbers) for numbers in by_tenant.values())


async def test_listeners_get_all_that_matches_in_order_while_it_is_published(topology: Topology):
    async with a_bus(topology, workers=0) as bus:
        secret = await bus.token("client")
        async with (
            a_stream(bus.url, secret) as everything,
            a_stream(bus.url, secret, pattern="*:page:*") as pages,
            a_stream(bus.url, ROOT_KEY, pattern="tenant-3:*:?") as one_tenant,
        ):
            ids = await publish_many(bus, secret, requests=20)
            events = await everything.events(len(ids))
            page_events = await pages.events(len(ids) * 2 // 3)
            tenant_events = await one_tenant.events(len(ids) // len(TENANTS))

    check_complete(events, ids)
    check_complete(page_events, [event["id"] for event in events if event["topic"] == "page"])
    check_complete(tenant_events, [event["id"] for event in events if event["tenant"] == "tenant-3"])


async def test_a_listener_that_comes_and_goes_misses_nothing_and_gets_nothing_twice(topology: Topology):
    chance = random.Random(7)
    async with a_bus(topology, workers=0) as bus:
        secret = await bus.token("client")
        async with a_stream(bus.url, secret) as first:
            last_id = first.last_id
        publishing = asyncio.create_task(publish_many(bus, secret, requests=20))
        events: list[dict] = []
        while not publishing.done() or len(events) < len(publishing.result()):
            async with a_stream(bus.url, secret, last_id=last_id) as stream:
                events += await stream.events(1)
                for _ in range(chance.randrange(40)):
                    if publishing.done() and len(events) == len(publishing.result()):
                        break
                    events += await stream.events(1)
                last_id = stream.last_id
        ids = publishing.result()

    check_complete(events, ids)


async def test_one_starts_with_the_oldest_or_after_any_event_in_the_middle_of_a_request(topology: Topology):
    async with a_bus(topology, workers=0) as bus:
        secret = await bus.token("client")
        ids = await publish_many(bus, secret, requests=3)
        # Fifty events in one entry of the journal.
        ids += await bus.publish(secret, [an_event(n + 100, tenant=TENANTS[0]) for n in range(50)])
        async with a_stream(bus.url, secret, **{"from": "earliest"}) as stream:
            places = []
            events = []
            for _ in ids:
                events += await stream.events(1)
                places.append(stream.last_id)
        check_complete(events, ids)
        for index in range(0, len(ids), 7):
            async with a_stream(bus.url, secret, **{"from": places[index]}) as stream:
                rest = await stream.events(len(ids) - index - 1)

            assert [event["id"] for event in rest] == [event["id"] for event in events[index + 1 :]]


async def test_from_latest_is_the_default_and_what_was_before_is_not_told(one: Topology):
    async with a_bus(one, workers=0) as bus:
        secret = await bus.token("client")
        await bus.publish(secret, [an_event(1)])
        async with a_stream(bus.url, secret) as stream:
            [id_] = await bus.publish(secret, [an_event(2)])

            assert [event["id"] for event in await stream.events(1)] == [id_]


async def test_an_event_on_a_stream_is_the_line_of_the_journal(one: Topology):
    async with a_bus(one, workers=0) as bus:
        secret = await bus.token("client")
        async with a_stream(bus.url, secret) as stream:
            await bus.publish(secret, [an_event(1, data={"text": "two\nlines: \u2028 \r é", "n": 1})])
            [event] = await stream.events(1)
        [entry] = await journal.read(bus.partitions.home, "events")

    assert event == json.loads(entry.fields[0][1])


async def test_a_slow_listener_is_dropped_with_a_reason_and_the_others_and_publishing_go_on(one: Topology):
    async with a_bus(one, workers=0, buffer_bytes=65_536) as bus:
        secret = await bus.token("client")
        async with a_stream(bus.url, secret, pattern="default:small:*") as quick:
            slow = await connect_and_never_read(bus, secret)
            accepted = []
            for n in range(40):
                accepted += await bus.publish(secret, [an_event(n, "small"), *(_large(n) for n in range(20))])
            # All is accepted, and the quick one has it, while the slow one has read nothing.
            assert len(accepted) == 40 * 21
            assert len(await quick.events(40)) == 40
            async with asyncio.timeout(10):
                while "dropped" not in slow.seen:
                    slow.seen += (await slow.reader.read(1 << 16)).decode(errors="ignore")[-4000:]
            slow.writer.close()
            last = slow.seen.rpartition("event: ")[2]
            counted = await counters.read(bus.partitions.home)

    assert last.startswith('dropped\ndata: {"reason":"slow"')
    assert counted["streams.dropped:reason=slow"] == 1


async def test_a_slow_listener_comes_back_and_has_missed_nothing(one: Topology):
    async with a_bus(one, workers=0, buffer_bytes=4_096) as bus:
        secret = await bus.token("client")
        ids: list[str] = []
        events: list[dict] = []
        async with a_stream(bus.url, secret) as stream:
            last_id = stream.last_id
            for n in range(30):
                ids += await bus.publish(secret, [_large(n) for n in range(20)])
            frames = await stream.until_ended()
            events += [frame.data for frame in frames if frame.name == "message"]
            last_id = stream.last_id
        assert frames[-1].name == "dropped"
        assert frames[-1].data["reason"] == "slow"
        async with a_stream(bus.url, secret, last_id=last_id) as stream:
            events += await stream.events(len(ids) - len(events))

    assert [event["id"] for event in events] == ids


async def test_a_client_that_reads_nothing_at_all_is_cut_off(one: Topology):
    async with a_bus(one, workers=0, stall_s=0.3, buffer_bytes=1 << 26) as bus:
        secret = await bus.token("client")
        slow = await connect_and_never_read(bus, secret)
        for _ in range(20):
            await bus.publish(secret, [_large(n) for n in range(40)])
        await until_streams(bus, 0)
        slow.writer.close()
        counted = await counters.read(bus.partitions.home)

    assert counted["streams.dropped:reason=stalled"] == 1


async def test_a_client_that_hangs_up_is_noticed(one: Topology):
    async with a_bus(one, workers=0) as bus:
        async with a_stream(bus.url, ROOT_KEY), a_stream(bus.url, ROOT_KEY):
            await until_streams(bus, 2)
        await until_streams(bus, 0)


async def test_what_was_trimmed_is_told_as_a_gap_and_the_stream_goes_on(topology: Topology):
    async with a_bus(topology, workers=0) as bus:
        secret = await bus.token("client")
        async with a_stream(bus.url, secret) as stream:
            start = stream.last_id
        await publish_many(bus, secret, requests=2)
        cut = {}
        for partition in bus.partitions.all:
            while (await journal.trim(partition, "events", bytes_max=0)).removed:
                pass
            cut[partition.index] = (await journal.state(partition))["events_trimmed"]
        ids = await publish_many(bus, secret, requests=2)

        async with a_stream(bus.url, secret, last_id=start) as stream:
            gaps, events = {}, []
            while len(events) < len(ids):
                frame = await stream.frame()
                if frame.name == "gap":
                    gaps[frame.data["partition"]] = frame.data
                else:
                    events.append(frame.data)
            after = stream.last_id
        strict = await ask(bus, "GET", f"/stream?strict=1&from={start}", secret)
        async with a_stream(bus.url, secret, last_id=after, strict="1") as stream:
            [id_] = await bus.publish(secret, [an_event(1)])
            fresh = await stream.events(1)

    assert {index: gap["to"] for index, gap in gaps.items()} == cut
    assert {gap["why"] for gap in gaps.values()} == {"trimmed"}
    check_complete(events, ids)
    assert strict.status == 410
    assert "no longer holds" in strict.detail
    assert [event["id"] for event in fresh] == [id_]


async def test_a_journal_that_began_anew_is_told_as_a_gap(one: Topology):
    async with a_bus(one, workers=0) as bus:
        secret = await bus.token("client")
        ids = await bus.publish(secret, [an_event(n) for n in range(3)])
        future = "99999999999999-0"

        async with a_stream(bus.url, secret, last_id=future) as stream:
            gap = await stream.frame()
            events = await stream.events(3)
        strict = await ask(bus, "GET", f"/stream?strict=1&from={future}", secret)

    assert (gap.name, gap.data["why"], gap.data["after"]) == ("gap", "reset", future)
    assert [event["id"] for event in events] == ids
    assert strict.status == 410


async def test_a_live_listener_is_told_of_a_gap_too(one: Topology):
    """An entry is written and cut in one go, as for a process that reads slower than the journal is cut."""
    async with a_bus(one, workers=0) as bus:
        secret = await bus.token("client")
        async with a_stream(bus.url, secret) as stream, a_stream(bus.url, secret, strict="1") as strict:
            partition = bus.partitions.home
            cut = f"{await partition.time_ms()}-0"
            entries, state = partition.key("journal:events"), partition.key("journal")
            async with redis.from_url(one.url) as client, client.pipeline(transaction=True) as atom:
                atom.xadd(entries, {"publisher": "{}"}, id=cut).xtrim(entries, maxlen=0)
                await atom.hset(state, "events_trimmed", cut).execute()
            [id_] = await bus.publish(secret, [an_event(1)])
            gap = await stream.frame()
            events = await stream.events(1)
            ended = await strict.until_ended()

    assert (gap.name, gap.data["to"], gap.data["why"], gap.id) == ("gap", cut, "trimmed", cut)
    assert [event["id"] for event in events] == [id_]
    assert [(frame.name, frame.data["reason"]) for frame in ended] == [("dropped", "gap")]


@pytest.mark.parametrize(
    ("query", "said"),
    [
        ("pattern=", "it may hold"),
        ("pattern=a[b]:*", "it may hold"),
        ("pattern=page", "tenant:topic:type"),
        ("pattern=a:b:c:d", "tenant:topic:type"),
        ("pattern=" + "*" * 300, "300 characters"),
        ("pattern=*&pattern=*", "the query has 'pattern' 2 times; give it once"),
        ("patern=*", "the query has 'patern'; its parameters are pattern, from, strict"),
        ("from=yesterday", "`earliest` or `latest`"),
        ("from=1-1,2-2", "`earliest` or `latest`"),
        ("from=99999999999999999999-0", "larger than any"),
        ("strict=yes", "must be 0 or 1"),
    ],
)
async def test_a_bad_query_is_refused(one: Topology, query: str, said: str):
    async with a_bus(one, workers=0) as bus:
        answer = await ask(bus, "GET", f"/stream?{query}")

    assert answer.status == 400
    assert said in answer.detail


async def test_a_bad_last_event_id_is_refused_and_a_stranger_too(one: Topology):
    async with a_bus(one, workers=0) as bus:
        bad = await ask(bus, "GET", "/stream", headers={"Last-Event-ID": "x"})
        stranger = await ask(bus, "GET", "/stream", None)

    assert (bad.status, stranger.status) == (400, 401)


async def test_there_are_no_more_streams_than_allowed(one: Topology):
    async with a_bus(one, workers=0, streams_max=1) as bus:
        async with a_stream(bus.url, ROOT_KEY):
            second = await ask(bus, "GET", "/stream")
        await until_streams(bus, 0)
        async with a_stream(bus.url, ROOT_KEY) as third:
            assert third.response.status == 200

    assert second.status == 429
    assert "at most 1" in second.detail


async def test_a_head_request_gets_the_head_alone(one: Topology):
    async with a_bus(one, workers=0) as bus, asyncio.timeout(5):
        answer = await ask(bus, "HEAD", "/stream")

    assert (answer.status, answer.body) == (200, b"")
    assert answer.headers["Content-Type"].startswith("text/event-stream")


async def test_a_stream_tells_past_and_present_as_they_were_accepted_however_they_are_kept(one: Topology):
    async with a_bus(one, workers=0) as bus:
        past = await mixed.write(bus.partitions.home)
        async with a_stream(bus.url, ROOT_KEY, **{"from": "earliest"}) as stream:
            told = await stream.events(len(past))
            present = await mixed.write(bus.partitions.home, first=1001)
            told += await stream.events(len(present))

    assert told == [json.loads(each.message) for each in past + present]


async def test_heartbeats_keep_a_quiet_stream_open_and_its_position_moving(one: Topology):
    """Far longer than a request's head may take to arrive, and with nothing that matches."""
    async with a_bus(one, workers=0, heartbeat_s=0.1, head_s_max=0.2) as bus:
        secret = await bus.token("client")
        async with a_stream(bus.url, secret, pattern="nobody:*") as stream:
            start = stream.last_id
            await bus.publish(secret, [an_event(1)])
            reading = asyncio.create_task(stream.frame())
            async with asyncio.timeout(10):
                while len(stream.comments) < 6:
                    await asyncio.sleep(0.02)
            moved = stream.last_id
            reading.cancel()
        [entry] = await journal.read(bus.partitions.home, "events")

    assert set(stream.comments) == {"heartbeat"}
    assert start != moved == entry.id


async def test_a_stream_ends_when_its_token_is_revoked(one: Topology):
    async with a_bus(one, workers=0, heartbeat_s=0.1) as bus:
        secret = await bus.token("client")
        async with a_stream(bus.url, secret) as stream:
            assert (await ask(bus, "DELETE", f"/api_tokens/{secret}")).status == 204
            frames = await stream.until_ended()

    assert [(frame.name, frame.data["reason"]) for frame in frames] == [("dropped", "revoked")]


async def test_streams_end_in_good_order_when_the_process_stops(one: Topology, caplog: pytest.LogCaptureFixture):
    is_open = asyncio.Event()

    async def listen(url: str) -> list[tuple[str, object]]:
        async with a_stream(url, ROOT_KEY, pattern="*:small:*") as stream:
            is_open.set()
            return [(frame.name, frame.data.get("reason")) for frame in await stream.until_ended()]

    async with asyncio.TaskGroup() as tasks, a_bus(one, workers=0) as bus:
        listening = tasks.create_task(listen(bus.url))
        await is_open.wait()
        # Another does not read, and does not keep the process from stopping.
        slow = await connect_and_never_read(bus, ROOT_KEY)
        secret = await bus.token("client")
        for _ in range(20):
            await bus.publish(secret, [_large(n) for n in range(40)])
    slow.writer.close()

    assert listening.result() == [("dropped", "stopping")]
    # uvicorn says so when it has to cancel a request.
    assert [record.message for record in caplog.records if record.name == "uvicorn.error"] == []


async def test_redis_is_read_no_more_often_for_many_listeners_than_for_one(one: Topology):
    async def reads_with(listeners: int) -> int:
        async with a_bus(one, workers=0) as bus:
            secret = await bus.token("client")
            async with asyncio.TaskGroup() as tasks:
                is_open = [asyncio.Event() for _ in range(listeners)]

                async def listen(n: int) -> None:
                    async with a_stream(bus.url, secret) as stream:
                        is_open[n].set()
                        await stream.events(20)

                for n in range(listeners):
                    tasks.create_task(listen(n))
                for each in is_open:
                    await each.wait()
                await bus.partitions.home.command("CONFIG", "RESETSTAT")
                for n in range(20):
                    await bus.publish(secret, [an_event(n)])
            stats = (await bus.partitions.home.command("INFO", "commandstats")).decode()
            rows = dict(line.split(":", 1) for line in stats.splitlines() if line.startswith("cmdstat_x"))
            return sum(int(rows.get(name, "calls=0").split(",")[0][6:]) for name in ("cmdstat_xread", "cmdstat_xrange"))

    assert await reads_with(20) <= 21
    assert await reads_with(1) >= 1


class Slow:
    """A client that opens a stream and leaves it unread."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer
        self.seen = ""


async def connect_and_never_read(bus: TestBus, secret: str) -> Slow:
    plug = socket.socket()
    plug.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    plug.setblocking(False)
    await asyncio.get_running_loop().sock_connect(plug, ("127.0.0.1", int(bus.url.rpartition(":")[2])))
    reader, writer = await asyncio.open_connection(sock=plug, limit=1024)
    head = "".join(f"{name}: {value}\r\n" for name, value in basic(secret).items())
    writer.write(f"GET /stream HTTP/1.1\r\nHost: x\r\n{head}\r\n".encode())
    assert (await reader.readline()).endswith(b"200 OK\r\n")
    return Slow(reader, writer)


async def until_streams(bus: TestBus, count: int) -> None:
    async with asyncio.timeout(10):
        while sum(map(float, re.findall(r"doubledecker_streams{.*} (.*)", await _metrics(bus)))) != count:
            await asyncio.sleep(0.02)


async def _metrics(bus: TestBus) -> str:
    async with bus.http.get(f"{bus.url}/metrics", headers=bearer(ROOT_KEY)) as response:
        return await response.text()


def _large(n: int) -> dict[str, object]:
    return an_event(n, "large", data="x" * 20_000)
