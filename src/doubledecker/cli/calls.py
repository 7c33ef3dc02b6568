"""HTTP calls from a command to a running bus: one answer, or an error that is one line and says what to do next."""

import base64
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from http.client import HTTPConnection, HTTPException, HTTPResponse, HTTPSConnection
from urllib.parse import quote, urlsplit

import click
import msgspec

from doubledecker.errors import BusAway, Refused

BUS_URL = "http://127.0.0.1:17890"
_ANSWER_S_MAX = 10.0
_BAD, _UNAUTHENTICATED, _FAILED = 400, 401, 500


class _Problem(msgspec.Struct):
    """What is read of an error's body."""

    title: str = "no reason given"
    detail: str = ""


@dataclass(frozen=True)
class Remote:
    """A bus at an address, and the secret that says who asks."""

    url: str
    secret: str

    def get(self, path: str) -> bytes:
        return self._ask("GET", path)

    def post(self, path: str, value: object, *, wait_ms: int = 0) -> bytes:
        """The answer; one that the bus was asked to wait with may take so much longer."""
        return self._ask("POST", path, msgspec.json.encode(value), answer_s_max=_ANSWER_S_MAX + wait_ms / 1000)

    def put(self, path: str, value: object) -> bytes:
        return self._ask("PUT", path, msgspec.json.encode(value))

    def patch(self, path: str, value: object) -> bytes:
        return self._ask("PATCH", path, msgspec.json.encode(value))

    def delete(self, path: str, name: str, query: str = "") -> None:
        self._ask("DELETE", f"{path}/{quote(name, safe='')}{query}")

    def lines(self, path: str, headers: Mapping[str, str], *, silence_s: float) -> Iterator[bytes]:
        """The lines of an answer without end; raises BusAway when it breaks off, or is silent for too long."""
        connection, prefix = _connection(self.url, silence_s)
        try:
            response = self._send(connection, "GET", prefix + path, None, headers)
            if response.status >= _BAD:
                raise self._failure(response.status, response.read())
            yield from response
        except (OSError, HTTPException) as error:
            raise self._away(error) from error
        finally:
            connection.close()

    def _ask(self, method: str, path: str, body: bytes | None = None, *, answer_s_max: float = _ANSWER_S_MAX) -> bytes:
        connection, prefix = _connection(self.url, answer_s_max)
        try:
            response = self._send(connection, method, prefix + path, body, {"Content-Type": "application/json"})
            answer = response.read()
        except (OSError, HTTPException) as error:
            raise self._away(error) from error
        finally:
            connection.close()
        if response.status >= _BAD:
            raise self._failure(response.status, answer)
        return answer

    def _send(
        self, connection: HTTPConnection, method: str, path: str, body: bytes | None, headers: Mapping[str, str]
    ) -> HTTPResponse:
        basic = base64.b64encode(f"{self.secret}:".encode()).decode()
        connection.request(method, path, body=body, headers={"Authorization": f"Basic {basic}", **headers})
        return connection.getresponse()

    def _away(self, error: OSError | HTTPException) -> BusAway:
        why = getattr(error, "strerror", None) or str(error) or type(error).__name__
        return BusAway(f"no bus answers at {self.url} ({why}); start one with `doubledecker up`, or pass --bus")

    def _failure(self, status: int, answer: bytes) -> BusAway | Refused:
        try:
            problem = msgspec.json.decode(answer, type=_Problem)
        except msgspec.DecodeError:
            problem = _Problem(detail=f"{self.url} answered {status}, not as a bus does; check --bus")
        why = problem.detail or problem.title
        if status >= _FAILED:
            return BusAway(f"the bus at {self.url} cannot do this now: {why}; try again, or look at its log")
        if status == _UNAUTHENTICATED:
            return Refused(f"the bus at {self.url} does not know this key; pass the right one, or another --bus")
        return Refused(why)


def _connection(url: str, timeout_s: float) -> tuple[HTTPConnection, str]:
    """A connection, not yet open, and what goes before every path."""
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
    except ValueError:
        host, port = None, None
    if not host or parts.scheme not in {"http", "https"}:
        raise click.UsageError(f"--bus is {url!r}; it must be a URL like {BUS_URL}")
    kind = HTTPSConnection if parts.scheme == "https" else HTTPConnection
    return kind(host, port, timeout=timeout_s), parts.path.rstrip("/")
