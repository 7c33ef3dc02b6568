"""The addresses of receivers' hosts: looked up by the system, vetted by the dial guard, known for half a minute.

1. `vetted` returns what is known of a host for 30 s. After 20 s a look-up begins beside, so that a host that is called
   all the time is looked up twice a minute, and no call waits for it.
2. The system looks names up in blocking calls, which may take half a minute where a name server does not answer. Each
   has a thread of its own, which nothing waits for at the end. There is one for a host, and at most a few for a
   client and for all: what is beyond that waits, clients by turns. A client with names that hang fills its own.
3. The guard judges all addresses of a host together. One that may not be called refuses the host: a name that leads
   inside now and then would otherwise be a matter of patience.
4. A host without an address is known for as long as one that is refused, and looked up beside at each call: how soon
   an answer comes does not show which it is, and a name server that failed once costs one attempt.

The log has why a host was refused; the client that registered it learns only that it was.
"""

import asyncio
import contextlib
import errno
import ipaddress
import socket
import threading
from collections import OrderedDict, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from doubledecker import log
from doubledecker.errors import OutOfDescriptors, ReceiverRefused
from doubledecker.model import dial_guard
from doubledecker.model.dial_guard import DialGuard
from doubledecker.model.outcome import is_own_failure

# As a pooled connection is vetted again, and as a change in DNS may take to count.
KNOWN_S_MAX = 30.0
_RENEWED_AFTER_S = 20.0
_KNOWN_MAX = 10_000
# Of a client: more than healthy names need, as a look-up takes milliseconds and holds for half a minute.
CLIENT_LOOKUPS_MAX = 4
# Of a process; threads that mostly wait.
LOOKUPS_MAX = 256

LookUp = Callable[[str], Sequence[str]]

_log = log.get("delivery")


def look_up(host: str) -> Sequence[str]:
    """The addresses of a name, in the system's order of preference; blocks. Raises OSError."""
    found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(address[0]) for _, _, _, _, address in found))


@dataclass(frozen=True)
class VettedHost:
    """The addresses of a host, all of which may be called, until a time of the loop; none if one of them may not."""

    addresses: tuple[str, ...]
    renewed_at: float
    until: float


@dataclass(eq=False)
class _Flight:
    """A look-up that is under way for a client, or that waits in the lines of some; its future has what went wrong."""

    host: str
    landed: "asyncio.Future[OSError | None]"
    waits_for: set[str] = field(default_factory=set)
    client: str | None = None


class Hosts:
    """Looks up and vets hosts, for one event loop."""

    def __init__(self, guard: DialGuard, *, looked_up: LookUp = look_up) -> None:
        self._guard = guard
        self._look_up = looked_up
        self._known: dict[str, VettedHost] = {}
        self._flights: dict[str, _Flight] = {}
        self._running: dict[str, int] = {}
        # Of clients that have as many under way as they may, or that came when all were; the next client is first.
        self._lines: OrderedDict[str, deque[_Flight]] = OrderedDict()

    def known(self, host: str, *, client: str) -> VettedHost | None:
        """What is known of a host, if it is still good; it is renewed beside when it is getting old."""
        found = self._known.get(host)
        now = asyncio.get_running_loop().time()
        if found is None or found.until <= now:
            return None
        if found.renewed_at <= now and host not in self._flights:
            self._join(host, client)
        return found

    async def vetted(self, host: str, *, client: str) -> VettedHost:
        """A host's addresses; raises ReceiverRefused unless it has some and all may be called.

        It may take as long as the system does: the caller bounds it, and the look-up goes on for those who come after.
        """
        found = self.known(host, client=client)
        if found is None:
            # The look-up is everyone's who waits for it.
            error = await asyncio.shield(self._join(host, client).landed)
            if error is not None and is_own_failure(error):
                raise OutOfDescriptors(str(error)) from error
            # A look-up that failed leaves what was known before, which is too old by now.
            found = self._known.get(host) if error is None else None
        if found is None or not found.addresses:
            raise ReceiverRefused(dial_guard.REFUSAL)
        return found

    def _join(self, host: str, client: str) -> _Flight:
        """The look-up of a host; one that waits in another client's line waits in this one's too."""
        flight = self._flights.get(host)
        if flight is None:
            flight = _Flight(host, asyncio.get_running_loop().create_future())
            with contextlib.suppress(ValueError):
                ipaddress.ip_address(host)
                self._land(flight, [host])
                return flight
            self._flights[host] = flight
        if flight.client is None and client not in flight.waits_for:
            flight.waits_for.add(client)
            self._lines.setdefault(client, deque()).append(flight)
            self._start_next()
        return flight

    def _start_next(self) -> None:
        """Start the first look-up of the next client that may have one more, and so on until none may."""
        while sum(self._running.values()) < LOOKUPS_MAX:
            free = (each for each in self._lines if self._running.get(each, 0) < CLIENT_LOOKUPS_MAX)
            client = next(free, None)
            if client is None:
                return
            flight = self._lines[client].popleft()
            self._lines.move_to_end(client)
            if not self._lines[client]:
                del self._lines[client]
            if flight.client is None:
                flight.client = client
                self._running[client] = self._running.get(client, 0) + 1
                self._start(flight)

    def _start(self, flight: _Flight) -> None:
        loop = asyncio.get_running_loop()
        try:
            threading.Thread(target=self._run, args=(flight, loop), name="look-up", daemon=True).start()
        except RuntimeError as error:
            # The machine gives no more threads, which is no fault of the host.
            loop.call_soon(self._end, flight, OSError(errno.ENOMEM, str(error)))

    def _run(self, flight: _Flight, loop: asyncio.AbstractEventLoop) -> None:
        """Look up in a thread: it touches nothing but the system and the loop."""
        found: Sequence[str] | OSError
        try:
            found = self._look_up(flight.host)
        except OSError as error:
            found = error
        except UnicodeError as error:
            found = OSError(str(error))
        # The loop may have been closed while the system waited for a name server.
        with contextlib.suppress(RuntimeError):
            loop.call_soon_threadsafe(self._end, flight, found)

    def _end(self, flight: _Flight, found: Sequence[str] | OSError) -> None:
        del self._flights[flight.host]
        client = flight.client or ""
        self._running[client] -= 1
        if not self._running[client]:
            del self._running[client]
        if isinstance(found, OSError):
            _log.info("host.unknown", host=flight.host, client=client, error=str(found))
            self._note_unknown(flight.host, found)
            flight.landed.set_result(found)
        else:
            self._land(flight, found)
        self._start_next()

    def _land(self, flight: _Flight, found: Sequence[str]) -> None:
        addresses = tuple(found)
        for address in addresses:
            if why := self._guard.why_not(ipaddress.ip_address(address), host=flight.host):
                _log.warning("host.refused", host=flight.host, client=flight.client, address=address, why=why)
                addresses = ()
                break
        self._keep(flight.host, addresses, renewed_after_s=_RENEWED_AFTER_S)
        flight.landed.set_result(None)

    def _note_unknown(self, host: str, error: OSError) -> None:
        """What was known before stays until it is too old; of a failure of our own nothing is learnt."""
        found = self._known.get(host)
        if not is_own_failure(error) and (found is None or found.until <= asyncio.get_running_loop().time()):
            self._keep(host, (), renewed_after_s=0)

    def _keep(self, host: str, addresses: tuple[str, ...], *, renewed_after_s: float) -> None:
        now = asyncio.get_running_loop().time()
        if len(self._known) >= _KNOWN_MAX:
            good = {host: each for host, each in self._known.items() if each.renewed_at > now}
            self._known = good if len(good) < _KNOWN_MAX else {}
        self._known[host] = VettedHost(addresses, now + renewed_after_s, now + KNOWN_S_MAX)
