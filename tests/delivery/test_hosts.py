"""Looking up and vetting hosts, with a name server on loopback that changes its mind, is silent, or points inside.

127.0.0.2 is the receiver's address here, which the operator has allowed; whatever listens on 127.0.0.1 is a trap.
"""

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence

import pytest
import uvloop
from structlog.testing import capture_logs

from doubledecker.delivery import hosts, http
from doubledecker.delivery.hosts import CLIENT_LOOKUPS_MAX, Hosts
from doubledecker.delivery.http import HttpClient
from doubledecker.errors import OutOfDescriptors, ReceiverRefused, ReceiverUnreachable
from doubledecker.model.dial_guard import REFUSAL, DialGuard
from nameserver import NameServer

Walk = Callable[[], Coroutine[object, object, None]]
RECEIVER, TRAP = "127.0.0.2", "127.0.0.1"
GUARD = DialGuard.parse("127.0.0.2,127.0.0.3", is_private_allowed=False)


@pytest.fixture(params=["asyncio", "uvloop"])
def run(request: pytest.FixtureRequest) -> Callable[[Walk], None]:
    factory = uvloop.new_event_loop if request.param == "uvloop" else asyncio.new_event_loop

    def run(walk: Walk) -> None:
        with asyncio.Runner(loop_factory=factory) as runner:
            runner.run(asyncio.wait_for(walk(), 20))  # noqa: TID251 - nothing is cancelled here

    return run


@contextlib.asynccontextmanager
async def a_client(names: NameServer, *, connect_s: float = 5.0) -> AsyncIterator[HttpClient]:
    client = HttpClient(Hosts(GUARD, looked_up=names.look_up), connect_s=connect_s, ssl_verify=True)
    try:
        yield client
    finally:
        await client.close()


@contextlib.asynccontextmanager
async def servers(*addresses: str) -> AsyncIterator[tuple[int, list[str]]]:
    """Servers on one port of several addresses, and the addresses at which somebody connected."""
    connected: list[str] = []

    async def speak(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connected.append(writer.get_extra_info("sockname")[0])
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                await reader.readuntil(b"\r\n\r\n")
                writer.write(b"HTTP/1.1 204 No Content\r\n\r\n")
        writer.close()

    async with contextlib.AsyncExitStack() as held:
        # A port that is free at one address may be taken at another.
        while len(listening := _listening(addresses)) < len(addresses):
            pass
        for each in listening:
            await held.enter_async_context(await asyncio.start_server(speak, sock=each))
        yield listening[0].getsockname()[1], connected


def _listening(addresses: Sequence[str]) -> list[socket.socket]:
    """Sockets on one port of all addresses; none if it is taken at one of them."""
    bound: list[socket.socket] = []
    with contextlib.suppress(OSError):
        for address in addresses:
            bound.append(socket.create_server((address, bound[0].getsockname()[1] if bound else 0)))
    if len(bound) < len(addresses):
        for each in bound:
            each.close()
        return []
    return bound


async def post(client: HttpClient, host: str, port: int, *, by: str = "ann") -> int:
    return (await client.post(http.endpoint(f"http://{host}:{port}/"), b"", b"", client=by)).status


async def post_on(client: HttpClient, host: str, port: int) -> None:
    while True:
        await post(client, host, port)


def test_a_name_is_looked_up_once_for_many_calls_and_its_address_is_dialled(run):
    async def walk() -> None:
        async with NameServer(hooks_example=[RECEIVER]) as names, servers(RECEIVER, TRAP) as (port, connected):
            async with a_client(names) as client:
                assert await asyncio.gather(*(post(client, "hooks.example", port) for _ in range(5))) == [204] * 5

            assert set(connected) == {RECEIVER}
            assert names.asked == {"hooks.example": 1}

    run(walk)


@pytest.mark.parametrize("addresses", [[TRAP], [RECEIVER, TRAP], ["169.254.169.254"], ["8.8.8.8", "::1"], []])
def test_a_name_with_any_address_that_may_not_be_called_is_refused_and_nobody_is_dialled(run, addresses: list[str]):
    async def walk() -> None:
        async with NameServer(hooks_example=addresses) as names, servers(RECEIVER, TRAP) as (port, connected):
            async with a_client(names) as client:
                with capture_logs() as logs, pytest.raises(ReceiverRefused) as refused:
                    await post(client, "hooks.example", port)

            # The same words for whatever is inside, and for what has no address at all.
            assert str(refused.value) == REFUSAL
            assert connected == []
            [line] = logs
            assert (line["host"], line["client"]) == ("hooks.example", "ann")
            assert (line["event"], line.get("address")) == (
                ("host.refused", addresses[-1]) if addresses else ("host.unknown", None)
            )

    run(walk)


@pytest.mark.parametrize("addresses", [[TRAP], []])
def test_a_name_without_an_address_is_answered_for_as_soon_as_one_that_is_refused(run, addresses: list[str]):
    """Each attempt at it waited for the name server, which told that there is no such name inside."""

    async def walk() -> None:
        async with NameServer(hooks_example=addresses) as names, a_client(names) as client:
            with pytest.raises(ReceiverRefused):
                await post(client, "hooks.example", 9)
            names.silent.add("hooks.example")

            for _ in range(3):
                with pytest.raises(ReceiverRefused):
                    await post(client, "hooks.example", 9)

    run(walk)


def test_a_name_that_gets_an_address_is_called_soon(run):
    async def walk() -> None:
        async with NameServer(hooks_example=[]) as names, servers(RECEIVER) as (port, connected):
            async with a_client(names) as client:
                with pytest.raises(ReceiverRefused):
                    await post(client, "hooks.example", port)
                names.names["hooks.example"] = [RECEIVER]
                while not connected:
                    with contextlib.suppress(ReceiverRefused):
                        await post(client, "hooks.example", port)
                    await asyncio.sleep(0.01)

            assert names.asked == {"hooks.example": 2}

    run(walk)


def test_an_address_in_place_of_a_name_is_judged_too(run):
    async def walk() -> None:
        async with NameServer() as names, servers(RECEIVER, TRAP) as (port, connected), a_client(names) as client:
            assert await post(client, RECEIVER, port) == 204
            with pytest.raises(ReceiverRefused):
                await post(client, TRAP, port)

            assert connected == [RECEIVER]
            assert names.asked == {}

    run(walk)


def test_an_answer_that_changes_between_looking_and_dialling_changes_nothing(run):
    """DNS rebinding: the first answer is good, and each later one leads inside."""

    async def walk() -> None:
        async with NameServer(hooks_example=[RECEIVER]) as names, servers(RECEIVER, TRAP) as (port, connected):
            async with a_client(names) as client:
                async with asyncio.TaskGroup() as posting:
                    posts = [posting.create_task(post(client, "hooks.example", port)) for _ in range(5)]
                    names.names["hooks.example"] = [RECEIVER]
                names.names["hooks.example"] = [TRAP]
                assert [each.result() for each in posts] == [204] * 5
                assert await post(client, "hooks.example", port) == 204

            assert set(connected) == {RECEIVER}

    run(walk)


def test_a_pooled_connection_is_not_used_once_its_host_has_moved(run, monkeypatch: pytest.MonkeyPatch):
    async def walk() -> None:
        async with NameServer(hooks_example=[RECEIVER]) as names, servers(RECEIVER, "127.0.0.3") as (port, connected):
            async with a_client(names) as client:
                await post(client, "hooks.example", port)
                await post(client, "hooks.example", port)
                names.names["hooks.example"] = ["127.0.0.3"]
                while connected[-1] != "127.0.0.3":
                    assert await post(client, "hooks.example", port) == 204

                assert len(client._connected) == 1
            assert connected == [RECEIVER, "127.0.0.3"]

    monkeypatch.setattr(hosts, "KNOWN_S_MAX", 0.1)
    monkeypatch.setattr(hosts, "_RENEWED_AFTER_S", 0.05)
    run(walk)


def test_a_pooled_connection_is_not_used_once_its_host_is_refused_or_gone(run, monkeypatch: pytest.MonkeyPatch):
    async def walk() -> None:
        async with NameServer(hooks_example=[RECEIVER]) as names, servers(RECEIVER, TRAP) as (port, connected):
            for then in ([TRAP], []):
                names.names["hooks.example"] = [RECEIVER]
                async with a_client(names) as client:
                    await post(client, "hooks.example", port)
                    names.names["hooks.example"] = then
                    with pytest.raises(ReceiverRefused):
                        await post_on(client, "hooks.example", port)

            assert set(connected) == {RECEIVER}

    monkeypatch.setattr(hosts, "KNOWN_S_MAX", 0.1)
    monkeypatch.setattr(hosts, "_RENEWED_AFTER_S", 0.05)
    run(walk)


def test_no_call_waits_for_the_renewal_of_what_is_known(run, monkeypatch: pytest.MonkeyPatch):
    async def walk() -> None:
        async with NameServer(hooks_example=[RECEIVER]) as names, servers(RECEIVER) as (port, _):
            async with a_client(names) as client:
                await post(client, "hooks.example", port)
                names.silent.add("hooks.example")
                for _ in range(20):
                    assert await post(client, "hooks.example", port) == 204
                while names.asked["hooks.example"] < 2:
                    await asyncio.sleep(0.01)

            # One renewal is under way, however many calls there were.
            assert names.asked == {"hooks.example": 2}

    monkeypatch.setattr(hosts, "_RENEWED_AFTER_S", 0.0)
    run(walk)


def test_a_name_server_that_is_silent_ends_the_attempt_in_time(run):
    async def walk() -> None:
        async with NameServer(hooks_example=[RECEIVER]) as names, a_client(names, connect_s=0.2) as client:
            names.silent.add("hooks.example")
            for _ in range(3):
                with pytest.raises(ReceiverUnreachable, match=r"no address of the host within 0\.2 s"):
                    await post(client, "hooks.example", 9)

            # The look-up goes on, and is not begun again.
            assert names.asked == {"hooks.example": 1}

    run(walk)


def test_names_that_hang_fill_the_look_ups_of_their_own_client_alone(run):
    async def walk() -> None:
        hanging = [f"h{i}.example" for i in range(3 * CLIENT_LOOKUPS_MAX)]
        async with NameServer(hooks_example=[RECEIVER]) as names, servers(RECEIVER) as (port, _):
            names.silent.update(hanging)
            async with a_client(names) as client, asyncio.TaskGroup() as stranger:
                posts = [stranger.create_task(post(client, each, port, by="eve")) for each in hanging]
                while len(names.asked) < CLIENT_LOOKUPS_MAX:
                    await asyncio.sleep(0.01)
                # That she waits for this name too holds it up for nobody else.
                posts.append(stranger.create_task(post(client, "hooks.example", port, by="eve")))
                assert await post(client, "hooks.example", port, by="ann") == 204

                assert len(set(names.asked) - {"hooks.example"}) == CLIENT_LOOKUPS_MAX
                assert names.asked["hooks.example"] == 1
                for each in posts:
                    each.cancel()

    run(walk)


def test_look_ups_of_all_are_bounded_and_clients_alternate(run, monkeypatch: pytest.MonkeyPatch):
    async def walk() -> None:
        async with NameServer(a1_x=[RECEIVER], a2_x=[RECEIVER], a3_x=[RECEIVER], b1_x=[RECEIVER]) as names:
            names.silent.update(names.names)
            looking = Hosts(GUARD, looked_up=names.look_up)
            async with asyncio.TaskGroup() as group:
                for host in ("a1.x", "a2.x", "a3.x"):
                    group.create_task(looking.vetted(host, client="ann"))
                group.create_task(looking.vetted("b1.x", client="bob"))
                while not names.asked:
                    await asyncio.sleep(0.01)
                assert list(names.asked) == ["a1.x"]
                names.answer_all()

        assert list(names.asked) == ["a1.x", "a2.x", "b1.x", "a3.x"]

    monkeypatch.setattr(hosts, "LOOKUPS_MAX", 1)
    run(walk)


def test_a_machine_without_threads_to_spare_blames_no_receiver(run, monkeypatch: pytest.MonkeyPatch):
    async def walk() -> None:
        async with NameServer(hooks_example=[RECEIVER]) as names, a_client(names) as client:
            with monkeypatch.context() as patched:
                patched.setattr(hosts.threading.Thread, "start", _no_thread)
                with pytest.raises(OutOfDescriptors, match="can't start new thread"):
                    await post(client, "hooks.example", 9)
            with pytest.raises(ReceiverUnreachable):
                await post(client, "hooks.example", 9)

    run(walk)


def _no_thread(_thread: object) -> None:
    raise RuntimeError("can't start new thread")


def test_what_is_known_is_bounded(run, monkeypatch: pytest.MonkeyPatch):
    async def walk() -> None:
        looking = Hosts(GUARD, looked_up=lambda _: [RECEIVER])
        for i in range(20):
            await looking.vetted(f"h{i}.example", client="ann")
            assert len(looking._known) <= 5

    monkeypatch.setattr(hosts, "_KNOWN_MAX", 5)
    run(walk)


def test_proxies_of_the_environment_are_ignored(run, monkeypatch: pytest.MonkeyPatch):
    async def walk() -> None:
        async with servers(RECEIVER, TRAP) as (port, connected), NameServer(hooks_example=[RECEIVER]) as names:
            for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
                monkeypatch.setenv(name, f"http://{TRAP}:{port}")
            async with a_client(names) as client:
                assert await post(client, "hooks.example", port) == 204

            assert connected == [RECEIVER]

    run(walk)
