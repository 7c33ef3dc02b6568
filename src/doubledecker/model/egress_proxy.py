"""The proxy that calls to receivers go through, where the operator has set one."""

import base64
from dataclasses import dataclass, field
from urllib.parse import unquote

from doubledecker.errors import BadRequest
from doubledecker.model import callback


@dataclass(frozen=True)
class EgressProxy:
    """An HTTP proxy; `credential` is the value of `Proxy-Authorization`, and empty if it asks for none."""

    host: str
    port: int
    credential: str = field(default="", repr=False)


def parse(text: str) -> EgressProxy:
    """Read `http://user:password@host:port`; raises ValueError, whose text has no password in it."""
    scheme, separator, rest = text.partition("://")
    user, _, host = rest.rpartition("@")
    try:
        url = callback.parse(f"{scheme}{separator}{host}")
    except BadRequest as error:
        raise ValueError(error.detail.replace("callback", "the proxy")) from None
    if url.is_tls or url.target != "/":
        raise ValueError("the proxy must be reached over http, and has no path")
    credential = base64.b64encode(unquote(user).encode()).decode()
    return EgressProxy(url.host, url.port, f"Basic {credential}" if user else "")
