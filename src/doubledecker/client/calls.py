"""HTTP calls to the bus: an answer, or an error of the client's own tree."""

import asyncio
import contextlib
import math
import os
import socket
import ssl
from collections.abc import AsyncGenerator, Iterator, Mapping, Sequence
from typing import Any, TypeVar
from urllib.parse import quote, urlsplit

import aiohttp
import msgspec

from doubledecker.client.backoff import Pauses
from doubledecker.client.errors import (
    AddressInvalid,
    BusAway,
    ClientError,
    Conflict,
    EventsRefused,
    Forbidden,
    NotABus,
    NotFound,
    Refusal,
    Refused,
    Unauthenticated,
)

# Beyond what the bus itself may take; a call that waits on purpose has that much more.
_ANSWER_S_MAX = 10.0
_BAD, _FAILED = 400, 500
_SPACE, _DELETE = 0x20, 0x7F
_KINDS: Mapping[int, type[Refused]] = {401: Unauthenticated, 403: Forbidden, 404: NotFound, 409: Conflict}

T = TypeVar("T")


class _Problem(msgspec.Struct):
    """What is read of an error's body."""

    title: str = "no reason given"
    detail: str = ""
    refused: tuple[Refusal, ...] = ()


class Calls:
    """A bus at an address, and the token that says who asks. Connections are kept until `close`."""

    def __init__(self, url: str, token: str, *, patience_s: float) -> None:
        if not _is_url(url):
            raise AddressInvalid(f"the bus is {url!r}; it must be a URL like http://127.0.0.1:17890")
        if any(ord(sign) < _SPACE or ord(sign) == _DELETE for sign in token):
            raise ClientError("the token has a control character, and no token has; was it read with its end of line?")
        self.url = url.rstrip("/")
        self.token = token
        self._patience_s = patience_s
        self._session: aiohttp.ClientSession | None = None

    @property
    def are_repeated(self) -> bool:
        """Whether what got no answer is asked again."""
        return self._patience_s > 0

    async def close(self) -> None:
        session, self._session = self._session, None
        if session is not None:
            await session.close()

    async def ask(
        self,
        method: str,
        path: str,
        body: object = None,
        *,
        kind: type[T],
        headers: Mapping[str, str] | None = None,
    ) -> T:
        """Ask until the bus answers, for as long as the patience lasts; for what may safely be asked twice."""
        loop = asyncio.get_running_loop()
        deadline_s = loop.time() + self._patience_s
        pauses = Pauses()
        while True:
            try:
                return decode(await self.once(method, path, body, headers=headers), kind)
            except BusAway:
                pause_s = pauses.next_s()
                if loop.time() + pause_s > deadline_s:
                    raise
                await asyncio.sleep(pause_s)

    async def once(
        self,
        method: str,
        path: str,
        body: object = None,
        *,
        wait_s: float = 0.0,
        headers: Mapping[str, str] | None = None,
    ) -> bytes:
        """Ask once; raises BusAway when no answer comes, Refused when the answer is no."""
        content = None if body is None else _encoded(body)
        limit = aiohttp.ClientTimeout(total=_ANSWER_S_MAX + wait_s)
        with self._translated():
            async with self._opened().request(
                method, self.url + path, data=content, headers=headers, timeout=limit
            ) as response:
                answer = await response.read()
        if response.status >= _BAD:
            raise _failure(self.url, response.status, answer)
        return answer

    async def chunks(self, path: str, *, silence_s: float) -> AsyncGenerator[bytes, None]:
        """An answer without end as it comes; raises BusAway when it breaks off, or is silent for too long."""
        limit = aiohttp.ClientTimeout(total=None, connect=_ANSWER_S_MAX, sock_read=silence_s)
        with self._translated():
            async with self._opened().get(self.url + path, timeout=limit) as response:
                if response.status >= _BAD:
                    raise _failure(self.url, response.status, await response.read())
                async for chunk in response.content.iter_any():
                    yield chunk

    def _opened(self) -> aiohttp.ClientSession:
        if self._session is None:
            self._session = aiohttp.ClientSession(
                headers={"Authorization": f"Bearer {self.token}", "Content-Type": "application/json"}
            )
        return self._session

    @contextlib.contextmanager
    def _translated(self) -> Iterator[None]:
        """Raise what aiohttp raises as errors of ours."""
        try:
            yield
        except aiohttp.ClientResponseError as error:
            raise NotABus(f"what answers at {self.url} does not speak HTTP as a bus does: {error.message}") from error
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise BusAway(f"no bus answers at {self.url} ({_reason(error)})") from error


def path(*words: str, **query: object) -> str:
    """A path of these words, and what of the query is given."""
    asked = "&".join(f"{name}={quote(str(value), safe='')}" for name, value in query.items() if value is not None)
    return "/" + "/".join(quote(word, safe="") for word in words) + (f"?{asked}" if asked else "")


def of_receiver(receiver: str | None, *words: str, **query: object) -> str:
    """A path about a receiver: the client's default subscription, one by its id or name, or `@` and a queue."""
    if receiver is None:
        return path("subscriber", *words, **query)
    if receiver.startswith("@"):
        return path("queues", receiver.removeprefix("@"), *words, **query)
    return path("subscribers", receiver, *words, **query)


def decode(answer: bytes, kind: type[T]) -> T:
    """The answer as a value; empty ones are for those who expect none. Raises NotABus when no bus wrote it."""
    try:
        return msgspec.json.decode(answer or b"null", type=kind)
    except msgspec.DecodeError as error:
        raise NotABus(f"what answers is not a bus, or another version of it: {error}") from error


def _encoded(body: object) -> bytes:
    """A body as JSON; raises ClientError for a number that JSON does not have."""
    content = msgspec.json.encode(body)
    # What is no number would be written as null, without a word.
    if b"null" in content and _has_no_number(msgspec.to_builtins(body, builtin_types=(msgspec.Raw,))):
        raise ClientError("a number is NaN or infinite; JSON has neither: send null, or a text, in its place")
    return content


def _is_url(url: str) -> bool:
    try:
        parts = urlsplit(url)
        # Asking for the port checks it.
        return parts.scheme in {"http", "https"} and bool(parts.hostname) and parts.port != 0
    except ValueError:
        return False


def _reason(error: Exception) -> str:
    """Why there was no answer, as the system says it: asyncio's words for it name sockets."""
    cause: object = getattr(error, "os_error", error)
    if not isinstance(cause, OSError):
        return str(error) or type(error).__name__
    if cause.errno and not isinstance(cause, ssl.SSLError | socket.gaierror):
        return os.strerror(cause.errno)
    return cause.strerror or str(error) or "timed out"


def _has_no_number(value: object) -> bool:
    """Whether NaN or an infinity is anywhere in it."""
    if isinstance(value, float):
        return not math.isfinite(value)
    if isinstance(value, dict):
        return any(_has_no_number(each) for each in value.values())
    return isinstance(value, list | tuple | set | frozenset) and any(_has_no_number(each) for each in value)


def given(fields: Mapping[str, Any]) -> dict[str, Any]:
    """What of the fields was given at all."""
    return {name: value for name, value in fields.items() if value is not None}


def listed(some: Sequence[str]) -> Sequence[str]:
    """Any sequence as a list; a single string stays one, so that the bus can refuse it or take it as one name."""
    return some if isinstance(some, str) else list(some)


def _failure(url: str, status: int, answer: bytes) -> BusAway | Refused:
    try:
        problem = msgspec.json.decode(answer, type=_Problem)
    except msgspec.DecodeError:
        problem = _Problem(detail=f"{url} answered {status}, not as a bus does; check the address")
    why = problem.detail or problem.title
    if status >= _FAILED:
        return BusAway(f"the bus at {url} cannot do this now: {why}", status=status)
    if problem.refused:
        return EventsRefused(why, status=status, refused=problem.refused)
    return _KINDS.get(status, Refused)(why, status=status)
