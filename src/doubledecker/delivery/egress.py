"""Calls through an HTTP proxy of the operator's: tunnels for https, whole URLs for http.

The proxy looks the hosts of receivers up and connects to them, so it has to refuse what is inside. The bus still
refuses callbacks that are such an address themselves. The proxy's own address may be any but those that nothing opens.
"""

import asyncio
import contextlib
import re
import socket
from collections.abc import Iterator

from doubledecker import log
from doubledecker.delivery.hosts import Hosts
from doubledecker.errors import ReceiverRefused, ReceiverUnreachable
from doubledecker.model import dial_guard
from doubledecker.model.callback import CallbackUrl
from doubledecker.model.dial_guard import DialGuard
from doubledecker.model.egress_proxy import EgressProxy
from doubledecker.model.outcome import is_own_failure

_ANYWHERE = DialGuard.parse("0.0.0.0/0,::/0", is_private_allowed=True)
# Proxies answer a CONNECT with a few lines.
_ANSWER_BYTES_MAX = 16_384
_END = b"\r\n\r\n"
_STATUS = re.compile(rb"HTTP/1\.[01] ([1-9][0-9]{2})[ \r]")

_log = log.get("delivery")


class Egress:
    """The way to all receivers: through a proxy."""

    def __init__(self, proxy: EgressProxy, guard: DialGuard) -> None:
        self.host, self.port = proxy.host, proxy.port
        self.hosts = Hosts(_ANYWHERE)
        self._guard = guard
        self._credential = f"Proxy-Authorization: {proxy.credential}\r\n".encode() if proxy.credential else b""

    @contextlib.contextmanager
    def blamed(self) -> Iterator[None]:
        """Report what fails here as the proxy's: the log has the error, which names its address."""
        try:
            yield
        except OSError as error:
            if is_own_failure(error):
                raise
            _log.warning("proxy.unreachable", proxy=f"{self.host}:{self.port}", error=str(error) or "no answer in time")
            raise ReceiverUnreachable("no connection through the egress proxy") from error

    def head(self, url: CallbackUrl, head: bytes) -> bytes:
        """The head of a request as the proxy takes it; raises ReceiverRefused for an address that may not be called."""
        if url.address is not None and (why := self._guard.why_not(url.address, host=url.host)):
            _log.warning("host.refused", host=url.host, client="", address=url.host, why=why)
            raise ReceiverRefused(dial_guard.REFUSAL)
        if url.is_tls:
            return head
        method, target, rest = head.split(b" ", 2)
        whole = f"{url.scheme}://{url.host_and_port}".encode() + target
        return b"%b %b %b%b" % (method, whole, rest, self._credential)

    async def open_tunnel(self, connected: socket.socket, url: CallbackUrl, *, within_s: float) -> None:
        """Have the proxy connect to a receiver; raises ReceiverUnreachable when it does not."""
        loop = asyncio.get_running_loop()
        place = f"[{url.host}]:{url.port}" if ":" in url.host else f"{url.host}:{url.port}"
        asked = f"CONNECT {place} HTTP/1.1\r\nHost: {place}\r\n".encode() + self._credential + b"\r\n"
        answer = b""
        async with asyncio.timeout(within_s):
            await loop.sock_sendall(connected, asked)
            while _END not in answer and len(answer) < _ANSWER_BYTES_MAX:
                if not (more := await loop.sock_recv(connected, _ANSWER_BYTES_MAX - len(answer))):
                    break
                answer += more
        found = _STATUS.match(answer)
        # Over TLS the client speaks first: what comes after the head is none of a receiver's.
        if found is None or not answer.endswith(_END):
            raise ReceiverUnreachable("the egress proxy gave no HTTP answer")
        if not found[1].startswith(b"2"):
            raise ReceiverUnreachable(f"the egress proxy answered {found[1].decode()}")
