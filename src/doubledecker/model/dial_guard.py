"""The dial guard: which addresses the bus may call for its clients, and why not others. Pure.

Clients name the hosts that the bus connects to, from a place in the network where they are not themselves. So only
public addresses may be called. Python's `is_global` is no such rule: it passes multicast, 6to4, NAT64 and others that
lead inside. Here each range is listed, with what may open it:

- `private_callbacks` opens loopback and private networks, for a bus whose clients are all trusted.
- `callback_allow` opens single networks, or all addresses of a host, which the operator names.
- Nothing opens link-local addresses, where clouds answer with the credentials of a machine, the other addresses of
  such services, or addresses that no receiver can have.

An address that has another one inside, as those of tunnels and translators have, may be called only if the inner one
may be called too.
"""

import ipaddress
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Self

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
Network = ipaddress.IPv4Network | ipaddress.IPv6Network

# What the owner of a receiver learns of a refusal: neither which address it was, nor whether the name has one.
REFUSAL = "refused by the bus: address not allowed, or none found"

_NEVER = {
    "0.0.0.0/8": "this host",
    "169.254.0.0/16": "link-local, metadata of clouds",
    "100.100.100.200/32": "metadata of Alibaba Cloud",
    "168.63.129.16/32": "metadata of Azure, which is a public address",
    "192.0.0.192/32": "metadata of Oracle Cloud",
    "224.0.0.0/4": "multicast",
    "255.255.255.255/32": "broadcast",
    "::/128": "this host",
    "fd00:ec2::/32": "metadata of Amazon",
    "fd20:ce::/32": "metadata of Google",
    "fd00:c1::/32": "metadata of Oracle Cloud",
    "fd00:42::42/128": "metadata of Scaleway",
    "fe80::/10": "link-local",
    "ff00::/8": "multicast",
}
_PRIVATE = {
    "10.0.0.0/8": "private",
    "100.64.0.0/10": "shared by a carrier's customers",
    "127.0.0.0/8": "loopback",
    "172.16.0.0/12": "private",
    "192.168.0.0/16": "private",
    "::1/128": "loopback",
    "fc00::/7": "unique local",
}
_SPECIAL = {
    "192.0.0.0/24": "protocol assignments",
    "192.0.2.0/24": "documentation",
    "192.31.196.0/24": "AS112",
    "192.52.193.0/24": "multicast tunnels",
    "192.88.99.0/24": "6to4 relays",
    "192.175.48.0/24": "AS112",
    "198.18.0.0/15": "benchmarking",
    "198.51.100.0/24": "documentation",
    "203.0.113.0/24": "documentation",
    "240.0.0.0/4": "reserved",
    "::/96": "IPv4-compatible",
    "::ffff:0:0/96": "IPv4-mapped",
    "::ffff:0:0:0/96": "IPv4-translated",
    "64:ff9b::/96": "NAT64",
    "64:ff9b:1::/48": "NAT64 of a local network",
    "100::/64": "discard",
    "100:0:0:1::/64": "dummy",
    "2001::/32": "Teredo",
    "2001:2::/48": "benchmarking",
    "2001:10::/28": "ORCHID",
    "2001:20::/28": "ORCHID",
    "2001::/23": "protocol assignments",
    "2001:db8::/32": "documentation",
    "2002::/16": "6to4",
    "3fff::/20": "documentation",
    "5f00::/16": "segment routing",
    "fec0::/10": "site-local",
}


@dataclass(frozen=True)
class _Range:
    network: Network
    name: str
    is_private: bool = False


def _ranges(listed: dict[str, str], *, is_private: bool = False) -> tuple[_Range, ...]:
    return tuple(_Range(ipaddress.ip_network(each), name, is_private) for each, name in listed.items())


_CLOSED = _ranges(_NEVER)
_NOT_PUBLIC = _ranges(_PRIVATE, is_private=True) + _ranges(_SPECIAL)
# A host, as opposed to an address or a network: some label has a letter.
_NAME = re.compile(r"(?=.*[A-Za-z])[A-Za-z0-9_.-]+")
# All of IPv6 that is given out for use in the Internet; the rest is reserved.
_UNICAST = ipaddress.IPv6Network("2000::/3")
_RESERVED = _Range(ipaddress.IPv6Network("::/0"), "reserved")


@dataclass(frozen=True)
class DialGuard:
    """What the operator's settings allow beyond public addresses; `hosts` are in their one spelling."""

    is_private_allowed: bool = False
    networks: tuple[Network, ...] = ()
    hosts: frozenset[str] = frozenset()

    @classmethod
    def parse(cls, allowed: str, *, is_private_allowed: bool) -> Self:
        """Read networks, addresses and hosts, separated by commas; raises ValueError for what is never opened."""
        networks, hosts = [], []
        for each in filter(None, (part.strip() for part in allowed.split(","))):
            if _NAME.fullmatch(each):
                hosts.append(each.lower().rstrip("."))
                continue
            if "%" in each:
                raise ValueError(f"{each} has a zone id")
            network = ipaddress.ip_network(each)
            for closed in _CLOSED:
                if network.version == closed.network.version and closed.network.supernet_of(network):  # type: ignore[arg-type]
                    raise ValueError(f"{each} is {closed.name}, and never called")
            networks.append(network)
        return cls(is_private_allowed, tuple(networks), frozenset(hosts))

    def why_not(self, address: Address, *, host: str = "") -> str:
        """Why an address, found for a host, may not be called: a few words for the operator; empty if it may."""
        for closed in _CLOSED:
            if address in closed.network:
                return closed.name
        for inner in _inside(address):
            if why := self.why_not(inner, host=host):
                return f"{inner} inside: {why}"
        found = next((each for each in _NOT_PUBLIC if address in each.network), None)
        if found is None and (isinstance(address, ipaddress.IPv4Address) or address in _UNICAST):
            return ""
        if host in self.hosts or any(address in network for network in self.networks):
            return ""
        found = found or _RESERVED
        return "" if found.is_private and self.is_private_allowed else found.name


# How an address of version 4 stands inside one of version 6: within which network, and how far from the right.
_LOW = tuple(ipaddress.IPv6Network(each) for each in ("::/96", "::ffff:0:0/96", "::ffff:0:0:0/96", "64:ff9b::/96"))
_6TO4 = ipaddress.IPv6Network("2002::/16")
_TEREDO = ipaddress.IPv6Network("2001::/32")
_LOCAL_NAT64 = ipaddress.IPv6Network("64:ff9b:1::/48")
_ISATAP = (0x0000_5EFE, 0x0200_5EFE)
_32_BITS = 0xFFFF_FFFF


def _inside(address: Address) -> Iterator[ipaddress.IPv4Address]:
    """The addresses of version 4 that one of version 6 may lead to."""
    if isinstance(address, ipaddress.IPv4Address) or int(address) <= 1:
        return
    bits = int(address)
    low = bits & _32_BITS
    if any(address in network for network in _LOW) or (bits >> 32) & _32_BITS in _ISATAP:
        yield ipaddress.IPv4Address(low)
    elif address in _6TO4:
        yield ipaddress.IPv4Address(bits >> 80 & _32_BITS)
    elif address in _TEREDO:
        yield ipaddress.IPv4Address(bits >> 64 & _32_BITS)
        yield ipaddress.IPv4Address(low ^ _32_BITS)
    elif address in _LOCAL_NAT64:
        # Where it stands is the network's choice, of RFC 6052; bits 64 to 71 are left out. Where nothing stands is
        # none: it would be an address in 0.0.0.0/8.
        without = bits >> 64 << 56 | bits & (1 << 56) - 1
        for shift in (40, 32, 24):
            if without >> shift & 0xFF00_0000:
                yield ipaddress.IPv4Address(without >> shift & _32_BITS)
        if low & 0xFF00_0000:
            yield ipaddress.IPv4Address(low)
