"""Where requests come from: addresses, networks of them, and what trusted proxies say."""

import ipaddress
from collections.abc import Sequence

from starlette.types import Scope

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
Network = ipaddress.IPv4Network | ipaddress.IPv6Network

# A provider gives each of its customers a network of at least this size, so its addresses count as one.
_IPV6_PREFIX = 64


def whence(scope: Scope, proxies: Sequence[Network]) -> tuple[str, str]:
    """The address that a request comes from, and of the trusted proxy that says so, if there is one.

    Every proxy appends the address that asked it. So the last address that is no trusted proxy's is the caller's, and
    what stands before it may be forged.
    """
    peer = connected(scope)
    if not is_in(peer, proxies):
        return peer, ""
    named = b",".join(value for name, value in scope["headers"] if name == b"x-forwarded-for").decode("latin-1")
    for hop in reversed([each.strip() for each in named.split(",")]):
        if parsed(hop) is None:
            break
        if not is_in(hop, proxies):
            return hop, peer
    return peer, ""


def connected(scope: Scope) -> str:
    """The address at the other end of a request's connection; empty for a unix socket."""
    client: tuple[str, int] | None = scope.get("client")
    return client[0] if client else ""


def is_in(host: str, networks: Sequence[Network]) -> bool:
    """Whether an address is in one of these networks."""
    address = parsed(host)
    return address is not None and any(address in each for each in networks if each.version == address.version)


def network_of(host: str) -> str:
    """What an address counts for: itself, or of IPv6 its customer's network; empty when it is no address."""
    address = parsed(host)
    if address is None:
        return ""
    if address.version == 6:  # noqa: PLR2004 - the name of the protocol
        return str(ipaddress.ip_network((address, _IPV6_PREFIX), strict=False))
    return str(address)


def parsed(host: str) -> Address | None:
    """An address from its text, without its zone; an IPv4 address that is mapped to IPv6 is itself."""
    try:
        address = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return None
    return getattr(address, "ipv4_mapped", None) or address
