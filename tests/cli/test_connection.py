"""What a command says when something else than a bus answers, or a bus that cannot do it now."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from cli.commands import run


@contextmanager
def a_server(status: int, body: bytes) -> Iterator[str]:
    """Answers everything so; its address."""

    class Answer(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Answer) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


@pytest.mark.parametrize(
    ("status", "body", "exit_code", "said"),
    [
        (200, b"<html>", 3, "what answers is not a bus, or another version of it"),
        (404, b"<html>", 4, "answered 404, not as a bus does"),
        (503, b'{"detail": "Redis is away"}', 3, "cannot do this now: Redis is away; try again, or look at its log\n"),
        (403, b'{"detail": "no \\u001b]0;x\\u0007"}', 4, "doubledecker: no \N{REPLACEMENT CHARACTER}]0;x"),
        (401, b"{}", 4, "does not know this key; pass the right one, or another --bus\n"),
        (401, b'{"detail": "this token expired at noon"}', 4, "this token expired at noon\n"),
    ],
)
def test_an_answer_that_is_none_is_one_line_that_says_what_to_do(status: int, body: bytes, exit_code: int, said: str):
    with a_server(status, body) as url:
        answer = run("token", "list", "--bus", url, DOUBLEDECKER_ROOT_KEY="key")

    assert (answer.returncode, answer.stdout) == (exit_code, "")
    assert said in answer.stderr
    assert len(answer.stderr.splitlines()) == 1
