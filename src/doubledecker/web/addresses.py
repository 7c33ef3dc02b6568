"""Whose connections are open: how many an address may have, and which idle ones make room for one that has a request.

So one machine cannot take all that a web process serves. A connection that is kept alive costs its client nothing.
When more are open than are served, those of the address that has most idle ones are closed, the longest idle first.
To look at all takes a millisecond: so a few more are closed than have to be, and where too few are idle nobody looks
for a while.
"""

import ipaddress
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from doubledecker.web.origins import Network, is_in, network_of

# Behind a proxy on this machine every client has its address, so nothing is counted there.
LOOPBACK: tuple[Network, ...] = (ipaddress.ip_network("127.0.0.0/8"), ipaddress.ip_network("::1/128"))
_MORE_SHARE = 0.02
_LOOK_S = 0.1


class Addresses:
    """Counts open connections by address; those of loopback and of trusted proxies are not counted."""

    def __init__(self, most: int, trusted: Sequence[Network] = ()) -> None:
        self.most = most
        self._uncounted = (*LOOPBACK, *trusted)
        self._open: Counter[str] = Counter()

    def enter(self, host: str) -> str:
        """Count a connection; returns what it counts for, to be passed to `leave`; empty when it is not counted."""
        counted = self._counted(host)
        if counted:
            self._open[counted] += 1
        return counted

    def leave(self, counted: str) -> None:
        """End a connection that was counted."""
        self._open[counted] -= 1
        if self._open[counted] <= 0:
            del self._open[counted]

    def open(self, counted: str) -> int:
        """How many connections there are."""
        return self._open[counted] if counted else 0

    @property
    def most_open(self) -> int:
        """How many connections the address with the most has."""
        return max(self._open.values(), default=0)

    def _counted(self, host: str) -> str:
        # A unix socket has no address.
        return "" if is_in(host, self._uncounted) else network_of(host)


@dataclass(frozen=True, slots=True)
class IdleConnection:
    """A connection without a request that is being answered."""

    host: str
    since_s: float
    close: Callable[[], None]


class Vacancies:
    """Closes idle connections."""

    def __init__(self) -> None:
        self._looks_from_s = 0.0

    def make(self, idle: Iterable[IdleConnection], *, beyond: int, most: int, now_s: float) -> None:
        """Close as many as are open beyond the most that are served, and a few more, as far as they are idle."""
        if now_s < self._looks_from_s:
            return
        found = list(idle)
        if len(found) < beyond:
            self._looks_from_s = now_s + _LOOK_S
        by_host = Counter(each.host for each in found)
        found.sort(key=lambda each: (-by_host[each.host], each.since_s))
        for each in found[: beyond + int(most * _MORE_SHARE)]:
            each.close()
