"""The guarded protocol against real sockets: slow and greedy clients are cut off, honest ones notice nothing.

Where a test must let time pass it waits on the socket, so that an answer too early fails it at once.
"""

import json
import select
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.client import HTTPResponse
from typing import NamedTuple

import pytest
import uvicorn
from structlog.testing import capture_logs

from doubledecker.web import head, protocol
from doubledecker.web.protocol import GuardedProtocol, RefusalLog, guarded

HEAD_S_MAX = 0.5
HEAD_BYTES_MAX = 4096
HEADERS_MAX = 20
WAIT_S_MAX = 10  # an answer that has not come by then will not come

GET = b"GET /a HTTP/1.1\r\nhost: x\r\n\r\n"
CHUNKED = b"POST /a HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n"


class Answer(NamedTuple):
    status: int
    body: bytes
    headers: dict[str, str]

    @property
    def problem(self) -> dict[str, object]:
        assert self.headers["content-type"] == "application/problem+json"
        assert self.headers["connection"] == "close"
        return json.loads(self.body)


async def tell(scope, receive, send) -> None:
    """Answers with the path and the body's length; /early answers before it reads."""
    length = 0
    more_body = scope["path"] != "/early"
    while more_body:
        message = await receive()
        length += len(message.get("body", b""))
        more_body = message.get("more_body", False)
    body = f"{scope['path']} {length}".encode()
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"%d" % len(body))]})
    await send({"type": "http.response.body", "body": body})


@pytest.fixture(scope="module", params=["asyncio", "uvloop"])
def port(request: pytest.FixtureRequest) -> Iterator[int]:
    bounds = guarded(head_s_max=HEAD_S_MAX, head_bytes_max=HEAD_BYTES_MAX, headers_max=HEADERS_MAX)
    config = uvicorn.Config(tell, http=bounds, loop=request.param, lifespan="off", log_config=None)
    server = uvicorn.Server(config)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        # The socket listens before the server runs: a client that connects early waits in its backlog.
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
        thread.start()
        yield listener.getsockname()[1]
        server.should_exit = True
        thread.join(WAIT_S_MAX)
        assert not thread.is_alive()


@contextmanager
def a_server_with_little_patience() -> Iterator[int]:
    """One that closes idle connections after a second."""
    config = uvicorn.Config(tell, http=guarded(), lifespan="off", log_config=None, timeout_keep_alive=1)
    server = uvicorn.Server(config)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
        thread.start()
        try:
            yield listener.getsockname()[1]
        finally:
            server.should_exit = True
            thread.join(WAIT_S_MAX)


@contextmanager
def a_client(port: int) -> Iterator[socket.socket]:
    with socket.create_connection(("127.0.0.1", port), timeout=WAIT_S_MAX) as client:
        yield client


def read(client: socket.socket) -> Answer:
    """One answer; what http.client has read beyond it is lost, so only for answers that come one by one."""
    response = HTTPResponse(client)
    response.begin()
    return Answer(response.status, response.read(), {k.lower(): v for k, v in response.getheaders()})


def read_to_end(client: socket.socket) -> bytes:
    pieces = []
    while piece := client.recv(65536):
        pieces.append(piece)
    return b"".join(pieces)


def is_silent(client: socket.socket, wait_s: float) -> bool:
    """Whether neither a byte nor the end comes within this time."""
    return not select.select([client], [], [], wait_s)[0]


def drip(client: socket.socket, data: bytes, *, every_s: float = 0.1) -> float:
    """Send a byte at a time until the server says something; how long it took."""
    started_s = time.monotonic()
    for i in range(len(data)):
        client.sendall(data[i : i + 1])
        if not is_silent(client, every_s):
            return time.monotonic() - started_s
    pytest.fail("the server took every byte")


def test_a_connection_is_closed_when_it_has_been_idle_since_its_last_answer():
    with a_server_with_little_patience() as port, a_client(port) as client:
        began_s = time.monotonic()
        while time.monotonic() - began_s < 2:  # busy for longer than it may be idle
            client.sendall(b"GET /a HTTP/1.1\r\nhost: x\r\n\r\n")
            assert read(client).body == b"/a 0"
        answered_s = time.monotonic()

        assert read_to_end(client) == b""
        assert time.monotonic() - answered_s > 0.9


def test_an_idle_connection_has_one_timer_however_many_requests_it_had(monkeypatch: pytest.MonkeyPatch):
    armed: list[float] = []
    arm = GuardedProtocol._arm_idle
    monkeypatch.setattr(GuardedProtocol, "_arm_idle", lambda self, delay_s: (armed.append(delay_s), arm(self, delay_s)))
    with a_server_with_little_patience() as port, a_client(port) as client:
        for _ in range(20):
            client.sendall(b"GET /a HTTP/1.1\r\nhost: x\r\n\r\n")
            assert read(client).body == b"/a 0"

    assert len(armed) <= 2


def test_a_client_that_drips_its_head_gets_408_at_the_deadline(port: int):
    with a_client(port) as client:
        took_s = drip(client, b"GET /a HTTP/1.1\r\nhost: x\r\nx: " + b"a" * 100)
        answer = read(client)

        assert answer.problem == {
            "type": "about:blank",
            "title": "Request timeout",
            "status": 408,
            "detail": answer.problem["detail"],
        }
        assert "0.5 s are allowed" in str(answer.problem["detail"])
        assert HEAD_S_MAX * 0.8 <= took_s < HEAD_S_MAX * 4
        assert client.recv(1) == b""


def test_a_client_that_drips_its_second_head_gets_408_counted_from_its_first_byte(port: int):
    with a_client(port) as client:
        client.sendall(GET)
        read(client)
        assert is_silent(client, HEAD_S_MAX * 1.5)

        took_s = drip(client, GET[:-2] + b"x: " + b"a" * 100)

        assert read(client).problem["status"] == 408
        assert HEAD_S_MAX * 0.8 <= took_s < HEAD_S_MAX * 4


def test_a_client_that_says_nothing_is_let_go_without_an_answer(port: int):
    with a_client(port) as client:
        assert read_to_end(client) == b""


def test_a_client_that_drips_empty_lines_between_requests_is_let_go(port: int):
    with a_client(port) as client:
        client.sendall(GET)
        read(client)
        drip(client, b"\r\n" * 50)

        assert client.recv(1) == b""


def test_a_client_that_drips_a_body_after_its_answer_is_let_go(port: int):
    with a_client(port) as client:
        client.sendall(b"POST /early HTTP/1.1\r\nhost: x\r\ncontent-length: 1000\r\n\r\n")
        assert read(client).status == 200

        drip(client, b"a" * 100)


def test_a_slow_body_is_left_to_the_app(port: int):
    with a_client(port) as client:
        client.sendall(b"POST /a HTTP/1.1\r\nhost: x\r\ncontent-length: 2\r\n\r\na")
        assert is_silent(client, HEAD_S_MAX * 2)
        client.sendall(b"b")

        assert read(client).body == b"/a 2"


def test_a_huge_header_gets_431_even_while_the_client_goes_on_sending(port: int):
    with a_client(port) as client:
        client.sendall(b"GET /a HTTP/1.1\r\nhost: x\r\nx: " + b"a" * 4_000_000)
        answer = read(client)

        assert answer.status == 431
        assert answer.problem["title"] == "Request header fields too large"
        assert answer.problem["status"] == 431
        assert f"at most {HEAD_BYTES_MAX} are allowed" in str(answer.problem["detail"])
        assert client.recv(1) == b""


def test_a_client_refused_for_its_request_line_may_not_send_for_ever(port: int, monkeypatch):
    monkeypatch.setattr(protocol, "LINGER_S", 0.2)
    with a_client(port) as client:
        client.sendall(b"GET /" + b"a" * HEAD_BYTES_MAX)
        assert read(client).problem["status"] == 431

        with pytest.raises((ConnectionResetError, BrokenPipeError)):
            send_until(client, end_s=time.monotonic() + WAIT_S_MAX)


def send_until(client: socket.socket, *, end_s: float) -> None:
    while time.monotonic() < end_s:
        client.sendall(b"a")


def a_get(head_bytes: int) -> bytes:
    start = b"GET /a HTTP/1.1\r\nhost: x\r\nx: "
    return start + b"a" * (head_bytes - len(start) - 4) + b"\r\n\r\n"


@pytest.mark.parametrize(("head_bytes", "status"), [(HEAD_BYTES_MAX, 200), (HEAD_BYTES_MAX + 1, 431)])
def test_the_bound_on_a_head_is_exact(port: int, head_bytes: int, status: int):
    with a_client(port) as client:
        client.sendall(a_get(head_bytes))

        assert read(client).status == status


@pytest.mark.parametrize(("head_bytes", "status"), [(HEAD_BYTES_MAX, 200), (HEAD_BYTES_MAX + 1, 431)])
def test_the_bound_on_a_later_head_in_two_parts_is_exact(port: int, head_bytes: int, status: int):
    with a_client(port) as client:
        client.sendall(GET)
        read(client)
        client.sendall(a_get(head_bytes)[:3000])
        assert is_silent(client, 0.1)
        client.sendall(a_get(head_bytes)[3000:])

        assert read(client).status == status


@pytest.mark.parametrize(("headers", "status"), [(HEADERS_MAX, 200), (HEADERS_MAX + 1, 431)])
def test_too_many_headers_get_431(port: int, headers: int, status: int):
    with a_client(port) as client:
        client.sendall(b"GET /a HTTP/1.1\r\nhost: x\r\n" + b"x: y\r\n" * (headers - 1) + b"\r\n")
        answer = read(client)

        assert answer.status == status
        if status == 431:
            assert answer.problem["detail"] == "the request has 21 headers; at most 20 are allowed"


def test_endless_trailers_get_400(port: int):
    with a_client(port) as client:
        client.sendall(CHUNKED + b"1\r\na\r\n0\r\nx: " + b"a" * 100_000)

        assert read(client).problem["status"] == 400


def test_a_flood_of_refused_heads_does_not_fill_the_log():
    refusals, refusal = RefusalLog(), head.malformed("nonsense")
    with capture_logs() as lines:
        for n in range(1_000):
            refusals.note(refusal, "192.0.2.1", now_s=100.0 + n / 1_000)
        refusals.note(refusal, "192.0.2.1", now_s=200.0)

    assert len(lines) <= 11
    assert sum(line["unlogged"] for line in lines) + len(lines) == 1_001
    assert (lines[0]["event"], lines[0]["status"], lines[0]["client"]) == ("head.refused", 400, "192.0.2.1")


def test_what_is_not_http_gets_400_as_a_problem(port: int):
    with a_client(port) as client:
        client.sendall(b"\x16\x03\x01 hello\r\n\r\n")

        assert read(client).problem["title"] == "Bad request"


def test_a_body_far_over_the_bound_of_the_head_arrives_whole(port: int):
    head = b"POST /a HTTP/1.1\r\nhost: x\r\ncontent-length: 3000000\r\n\r\n"
    with a_client(port) as client:
        client.sendall(head + b"a" * 3_000_000)

        assert read(client).body == b"/a 3000000"


@pytest.mark.parametrize(
    ("chunk", "chunks"), [(b"1\r\na\r\n", 500), (b"8\r\nabcdefgh\r\n", 20_000), (b"4\r\n\r\n\r\n\r\n", 80)]
)
def test_a_body_in_many_small_chunks_arrives_whole(port: int, chunk: bytes, chunks: int):
    with a_client(port) as client:
        client.sendall(CHUNKED + chunk * chunks + b"0\r\n\r\n")

        assert read(client).body == b"/a %d" % (int(chunk[:1]) * chunks)


@pytest.mark.parametrize(
    "body",
    [b"1\r\na\r\n" * 2_000, b"f4240\r\n" + b"\r\n" * 500_000, b"a;" + b"x" * 5_000],
    ids=["bytes", "empty lines", "extensions"],
)
def test_a_body_cut_into_more_chunks_than_it_is_worth_gets_400(port: int, body: bytes):
    """Each of these cost the parser a hundred times as much as a whole body, and nothing bounded them."""
    with a_client(port) as client:
        client.sendall(CHUNKED + body)
        answer = read(client)

        assert answer.problem["status"] == 400
        assert "4096 bytes more than the body itself" in str(answer.problem["detail"])
        assert client.recv(1) == b""


def test_an_answer_that_comes_before_the_chunks_of_its_request_ends_the_connection(port: int):
    with a_client(port) as client:
        client.sendall(CHUNKED.replace(b"/a", b"/early"))
        answer = read(client)
        client.sendall(b"not a chunk")

        assert (answer.status, answer.headers["connection"]) == (200, "close")
        assert client.recv(1) == b""


def test_a_connection_goes_on_after_a_body_in_chunks(port: int):
    with a_client(port) as client:
        client.sendall(CHUNKED + b"1\r\na\r\n0\r\n\r\n")
        first = read(client)
        client.sendall(GET)

        assert "connection" not in first.headers
        assert read(client).body == b"/a 0"


def test_a_client_that_keeps_alive_and_idles_past_the_head_deadline_is_unaffected(port: int):
    with a_client(port) as client:
        for _ in range(2):
            client.sendall(GET)

            assert read(client).body == b"/a 0"
            assert is_silent(client, HEAD_S_MAX * 1.5)


def test_a_head_in_two_parts_within_the_deadline_is_served(port: int):
    with a_client(port) as client:
        client.sendall(GET[:10])
        assert is_silent(client, HEAD_S_MAX / 5)
        client.sendall(GET[10:])

        assert read(client).body == b"/a 0"
        assert is_silent(client, HEAD_S_MAX * 1.5)


def test_pipelined_requests_are_answered_in_order(port: int):
    post = b"POST /b HTTP/1.1\r\nhost: x\r\ncontent-length: 10000\r\n\r\n" + b"a" * 10_000
    last = b"GET /c HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n"
    with a_client(port) as client:
        client.sendall((GET + post) * 20 + last)
        text = read_to_end(client)

        assert text.count(b"HTTP/1.1 200 OK") == 41
        bodies = [part.partition(b"\r\n\r\n")[2] for part in text.split(b"HTTP/1.1 200 OK")[1:]]
        assert bodies == [b"/a 0", b"/b 10000"] * 20 + [b"/c 0"]


def test_a_good_request_before_a_greedy_one_is_answered_and_then_the_greedy_one_refused(port: int):
    with a_client(port) as client:
        client.sendall(GET + b"GET /" + b"a" * 100_000)
        text = read_to_end(client)

        assert text.startswith(b"HTTP/1.1 200 OK")
        assert text.index(b"/a 0") < text.index(b"HTTP/1.1 431 ")


def test_requests_after_a_chunked_one_are_answered_wherever_the_bytes_are_cut(port: int):
    chunked = b"POST /b HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n3\r\n\r\n\r\r\n0\r\nx: y\r\n\r\n"
    last = b"GET /c HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n"
    text = GET + chunked + last
    for cut in range(len(GET), len(GET + chunked) + 1):
        with a_client(port) as client:
            client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            client.sendall(text[:cut])
            first = client.recv(65536)  # the first request's answer: so the server has taken the first part
            client.sendall(text[cut:])
            answers = first + read_to_end(client)

        assert [part.partition(b"\r\n\r\n")[2] for part in answers.split(b"HTTP/1.1 200 OK")[1:]] == [
            b"/a 0",
            b"/b 3",
            b"/c 0",
        ], cut
