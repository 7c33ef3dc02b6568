"""The URL of a receiver: parsed once, into the form that is stored, shown and dialled.

Two programs may read the same URL differently, and then what was checked is not what is called. So a callback has one
form, and whatever could be read in two ways is refused.

- The same in any reading, and therefore rewritten: letters of the host to lower case, no dot after the host, an address
  of version 6 in its shortest form, no port that is the scheme's own, a path that is at least `/`, and percent-encoding
  only where it is needed.
- Refused: an address of version 4 that is not four decimal numbers, one inside an address of version 6, zone ids, hosts
  with other characters than ASCII, percent-encoding in the host, control characters, blanks and backslashes.
"""

import ipaddress
import re
from dataclasses import dataclass

from yarl import URL

from doubledecker.errors import BadRequest
from doubledecker.model.dial_guard import Address, DialGuard

LENGTH_MAX = 2048
_PARTS = re.compile(r"(?P<scheme>https?)://(?P<authority>[^/?#]*)(?P<target>(?:[/?][^#]*)?)(?P<fragment>(?:#.*)?)")
_AUTHORITY = re.compile(r"(?P<host>\[[^\[\]]*\]|[^:\[\]]*)(?::(?P<port>[0-9]*))?")
_PRINTABLE = re.compile(r"[\x21-\x7e]*")
_LABEL = re.compile(r"[a-z0-9_](?:[a-z0-9_-]{0,61}[a-z0-9_])?")
# What some read as a number in the place of an address: `127.1`, `0x7f000001`, `2130706433`.
_NUMBER = re.compile(r"[0-9]+|0x[0-9a-f]*")
_HOST_LENGTH_MAX = 253
_PORTS = {"http": 80, "https": 443}
_PORT_MAX = 65_535


@dataclass(frozen=True)
class CallbackUrl:
    """A callback in its one form; `host` is a name, or an address without brackets."""

    scheme: str
    host: str
    port: int
    target: str

    @property
    def is_tls(self) -> bool:
        return self.scheme == "https"

    @property
    def address(self) -> Address | None:
        """The host if it is an address."""
        return _address(self.host)

    @property
    def host_and_port(self) -> str:
        """As a header `Host` has it: without the scheme's own port."""
        shown = f"[{self.host}]" if ":" in self.host else self.host
        return shown if self.port == _PORTS[self.scheme] else f"{shown}:{self.port}"

    def __str__(self) -> str:
        return f"{self.scheme}://{self.host_and_port}{self.target}"


def parse(text: str) -> CallbackUrl:
    """A callback without a user name; raises BadRequest with what was seen and what is allowed."""
    if len(text) > LENGTH_MAX or not _PRINTABLE.fullmatch(text) or "\\" in text:
        raise BadRequest(
            f"callback must be at most {LENGTH_MAX} printable ASCII characters without spaces or backslashes; "
            "write a host with other letters as it is in DNS, like xn--bcher-kva.example"
        )
    parts = _PARTS.fullmatch(text)
    authority = _AUTHORITY.fullmatch(parts["authority"]) if parts else None
    if parts is None or authority is None or not authority["host"]:
        raise BadRequest(f"callback is {text[:80]!r}; it must be a URL with https or http, like https://host/path")
    if parts["fragment"]:
        raise BadRequest("callback must not carry a fragment")
    scheme = parts["scheme"]
    port = int(authority["port"] or _PORTS[scheme]) if len(authority["port"] or "") <= len("65535") else 0
    if not 0 < port <= _PORT_MAX:
        raise BadRequest(f"callback has the port {authority['port'][:20]}; it must be from 1 to {_PORT_MAX}")
    host = _host(authority["host"])
    found = CallbackUrl(scheme, host, port, URL(f"http://h{parts['target']}").raw_path_qs)
    if len(str(found)) > LENGTH_MAX:
        raise BadRequest(
            f"callback has {len(str(found))} characters when it is percent-encoded; {LENGTH_MAX} are allowed"
        )
    return found


def why_not(stored: str, guard: DialGuard) -> str:
    """Why a callback that was registered before would not be called; empty if it may be, as far as its text shows."""
    try:
        url = parse(stored)
    except BadRequest as error:
        return error.detail
    return guard.why_not(url.address, host=url.host) if url.address is not None else ""


def _host(seen: str) -> str:
    """A host in its one spelling."""
    if seen.startswith("["):
        return _version_6(seen)
    host = seen.lower().removesuffix(".")
    labels = host.split(".")
    if _NUMBER.fullmatch(labels[-1]):
        if _address(seen) is None:
            raise BadRequest(
                f"callback has the host {seen[:80]!r}, a spelling of an address that not everyone reads in the same "
                "way; write four decimal numbers, like 192.0.2.7"
            )
        return seen
    if len(host) > _HOST_LENGTH_MAX or not all(_LABEL.fullmatch(label) for label in labels):
        raise BadRequest(
            f"callback has the host {seen[:80]!r}; it must be a name of letters, digits, `-` and `_` between dots, "
            "or an address"
        )
    return host


def _version_6(seen: str) -> str:
    address = None if "%" in seen else _address(seen[1:-1])
    if not isinstance(address, ipaddress.IPv6Address):
        raise BadRequest(f"callback has the host {seen[:80]!r}; it must be an address of version 6 without a zone id")
    if address.ipv4_mapped is not None:
        raise BadRequest(f"callback has the host {seen[:80]!r}; write the address of version 4 that is in it instead")
    return str(address)


def _address(host: str) -> Address | None:
    try:
        return ipaddress.ip_address(host)
    except ValueError:
        return None
