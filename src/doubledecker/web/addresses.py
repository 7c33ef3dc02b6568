"""How many connections each address has open, so that one machine cannot take all that a web process serves."""

import ipaddress
from collections import Counter
from collections.abc import Sequence

Network = ipaddress.IPv4Network | ipaddress.IPv6Network

# Behind a proxy on this machine every client has its address, so nothing is counted there.
LOOPBACK: tuple[Network, ...] = (ipaddress.ip_network("127.0.0.0/8"), ipaddress.ip_network("::1/128"))
# A provider gives each of its customers a network of at least this size, so its addresses count as one.
_IPV6_PREFIX = 64


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
        try:
            address = ipaddress.ip_address(host.partition("%")[0])
        except ValueError:
            return ""  # a unix socket has none
        if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped:
            address = address.ipv4_mapped
        if any(address in network for network in self._uncounted if network.version == address.version):
            return ""
        if address.version == 6:  # noqa: PLR2004 - the name of the protocol
            return str(ipaddress.ip_network((address, _IPV6_PREFIX), strict=False))
        return str(address)
