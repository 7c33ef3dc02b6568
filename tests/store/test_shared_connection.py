"""The line to a server: a server is given up when it is silent, and not when this process was too busy to listen."""

import asyncio
import contextlib
import os
import signal
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from urllib.parse import urlsplit

import pytest
import uvloop
from redis.exceptions import ConnectionError as RedisConnectionError

from conftest import Topology
from doubledecker.assembly.redis_guard import RedisGuard
from doubledecker.errors import BusAway, BusSilent
from doubledecker.store.embedded import EmbeddedServer
from doubledecker.store.nodes import ANSWER_S_MAX, Node
from harness import a_bus, an_event
from tls import a_certificate
from web.asking import ask

pytestmark = pytest.mark.silent_redis


def keep_busy(wall_s: float) -> None:
    """Hold up the loop, as a heavy request does."""
    end_s = time.monotonic() + wall_s
    while time.monotonic() < end_s:
        sum(range(1_000))


@pytest.fixture
async def node(one: Topology) -> AsyncIterator[Node]:
    connected = Node(one.url)
    yield connected
    await connected.close()


async def test_a_reply_that_came_while_the_process_was_busy_is_a_reply(node: Node):
    await node.call([["PING"]])
    calls = [asyncio.create_task(node.call([["PING"]])) for _ in range(10)]
    await asyncio.sleep(0)  # they are on their way
    keep_busy(ANSWER_S_MAX * 1.5)

    assert await asyncio.gather(*calls) == [[b"PONG"]] * 10


async def test_connecting_while_the_process_is_busy_takes_its_time(node: Node):
    calling = asyncio.create_task(node.call([["PING"]]))
    for _ in range(3):
        await asyncio.sleep(0)
        keep_busy(ANSWER_S_MAX * 0.7)

    assert await calling == [b"PONG"]


async def test_a_busy_process_does_not_open_its_circuit(one: Topology):
    guard = RedisGuard(open_s=60)
    node = Node(one.url, guard)
    try:
        for _ in range(2):
            calls = [asyncio.create_task(node.call([["PING"]])) for _ in range(8)]
            await asyncio.sleep(0)
            keep_busy(ANSWER_S_MAX * 1.2)
            await asyncio.gather(*calls)

        assert await node.call([["PING"]]) == [b"PONG"]
    finally:
        await node.close()


async def test_publishes_are_accepted_by_a_web_process_that_is_held_up(one: Topology):
    async def hold_up() -> None:
        for _ in range(8):
            keep_busy(ANSWER_S_MAX * 0.6)
            await asyncio.sleep(0)

    async with a_bus(one, workers=0, redis_open_s=60) as bus:
        shop = await bus.token("shop")
        holding_up = asyncio.create_task(hold_up())
        answers = await asyncio.gather(*(ask(bus, "POST", "/events", shop, json=an_event(n)) for n in range(8)))
        await holding_up

        assert [answer.status for answer in answers] == [202] * 8
        assert (await ask(bus, "POST", "/events", shop, json=an_event(9))).status == 202


async def test_a_silent_server_is_given_up_and_found_again(tmp_path: Path):
    server = await EmbeddedServer.start(tmp_path)
    node = Node(server.url)
    try:
        await node.call([["PING"]])
        os.kill(server.pid, signal.SIGSTOP)
        failed = await asyncio.gather(*(node.call([["PING"]]) for _ in range(3)), return_exceptions=True)
        unconnected = await asyncio.gather(node.call([["PING"]]), return_exceptions=True)
        os.kill(server.pid, signal.SIGCONT)

        assert [type(each) for each in [*failed, *unconnected]] == [BusSilent] * 4
        assert {str(each).partition(" did ")[2] for each in [*failed, *unconnected]} == {"not answer within 1.0 s"}
        async with asyncio.timeout(20):
            while not await is_there(node):
                pass
    finally:
        os.kill(server.pid, signal.SIGCONT)
        await node.close()
        await server.stop()


async def is_there(node: Node) -> bool:
    try:
        return await node.call([["PING"]]) == [b"PONG"]
    except BusSilent:
        return False


async def test_a_call_on_a_line_that_has_closed_fails_at_once(node: Node):
    await node.call([["PING"]])
    line = node._line
    assert line is not None
    await line.close()

    with pytest.raises(RedisConnectionError):
        async with asyncio.timeout(20):
            await line.call([["PING"]])


async def test_replies_that_come_in_pieces_are_told_apart(node: Node):
    large = b"x" * 3_000_000
    replies = await asyncio.gather(
        node.call([["SET", "large", large], ["GET", "large"]]), node.call([["PING"]]), node.call([["STRLEN", "large"]])
    )

    assert replies == [[b"OK", large], [b"PONG"], [len(large)]]


async def test_an_error_is_the_reply_to_its_own_call_alone(node: Node):
    answers = await asyncio.gather(
        node.call([["PING"], ["NOSUCH"], ["PING"]]), node.call([["PING"]]), return_exceptions=True
    )

    assert isinstance(answers[0], BusAway)
    assert "unknown command" in str(answers[0])
    assert answers[1] == [b"PONG"]


async def test_a_call_fails_at_once_when_the_server_hangs_up_and_the_next_connects_anew(node: Node, one: Topology):
    other = Node(one.url)
    waiting = asyncio.create_task(node.call([["BLPOP", "nothing", 0]]))
    try:
        async with asyncio.timeout(ANSWER_S_MAX / 2):
            while b"cmd=blpop" not in (await other.call([["CLIENT", "LIST"]]))[0]:
                pass
            await other.call([["CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"]])
            with pytest.raises(BusSilent):
                await waiting

        assert await node.call([["PING"]]) == [b"PONG"]
    finally:
        await other.close()


async def test_a_call_whose_caller_is_gone_is_counted_too(tmp_path: Path):
    """Its reply is what the others wait for."""
    server = await EmbeddedServer.start(tmp_path)
    node = Node(server.url)
    try:
        await node.call([["PING"]])
        os.kill(server.pid, signal.SIGSTOP)
        gone = asyncio.create_task(node.call([["PING"]]))
        await asyncio.sleep(0)
        gone.cancel()

        with pytest.raises(BusSilent):
            await node.call([["PING"]])
    finally:
        os.kill(server.pid, signal.SIGCONT)
        await node.close()
        await server.stop()


@pytest.mark.parametrize("loop", [asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"])
def test_calls_go_over_tls(one: Topology, tmp_path: Path, loop: Callable[[], asyncio.AbstractEventLoop]):
    """The line takes the connection over from redis-py, once that has shaken hands."""

    async def walk() -> None:
        server = urlsplit(one.url)
        context = await a_certificate(tmp_path)

        async def pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            with contextlib.suppress(ConnectionError, asyncio.CancelledError):
                while data := await reader.read(65_536):
                    writer.write(data)
                    await writer.drain()
            writer.close()

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            to_reader, to_writer = (
                await asyncio.open_unix_connection(server.path)
                if server.scheme == "unix"
                else await asyncio.open_connection(server.hostname, server.port)
            )
            await asyncio.gather(pass_on(reader, to_writer), pass_on(to_reader, writer))

        async with await asyncio.start_server(serve, "127.0.0.1", 0, ssl=context) as proxy:
            node = Node(f"rediss://127.0.0.1:{proxy.sockets[0].getsockname()[1]}/0?ssl_cert_reqs=none")
            try:
                long = b"x" * 300_000
                assert await node.call([["ECHO", long], ["PING"]]) == [long, b"PONG"]
                assert await asyncio.gather(*(node.call([["ECHO", f"{n}"]]) for n in range(50))) == [
                    [f"{n}".encode()] for n in range(50)
                ]
            finally:
                await node.close()
                await asyncio.sleep(0.1)  # until the proxy has closed the other side

    with asyncio.Runner(loop_factory=loop) as runner:
        runner.run(walk())
