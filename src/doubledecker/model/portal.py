"""Portal tokens: what a client gives a customer of its own, for the subscriptions of one tenant. Pure.

Such a token is signed and kept nowhere, so making one writes nothing that every process would have to read. What it
says is looked at against the registry at each request: it ends with the secret of its client that it was made by, and
when its client may not manage that tenant any more.
"""

import base64
import binascii
import hmac
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Annotated

import msgspec

from doubledecker.errors import BadRequest
from doubledecker.model import schema
from doubledecker.model.event import Tenant, TopicName, check_tenant, check_topic
from doubledecker.model.schema import between, up_to
from doubledecker.model.scopes import MANAGE, PORTAL, Scopes

# A session of a person; who is there for longer gets another.
LIFETIME_S, LIFETIME_S_MAX = 3_600, 86_400
# They are in the token, which is sent with each request.
TOPICS_MAX = 20
# The dot is in no secret of a client.
PREFIX = b"ddp."
_VERSION = 1
_MAC_BYTES = 32
_LENGTH_MAX = 2_048


class Portal(msgspec.Struct, frozen=True, array_like=True):
    """What a portal token is for; `topics` narrow those of its client, None does not."""

    client: str
    tenant: str
    # In milliseconds since 1970.
    expires_at: int
    topics: tuple[str, ...] | None = None

    def within(self, scopes: Scopes) -> Scopes:
        """What the portal may do, of what its client may."""
        topics = scopes.topics
        if self.topics is not None:
            topics = tuple(name for name in self.topics if scopes.has_topic(name))
        return Scopes((PORTAL,), topics, (self.tenant,))


class PortalWanted(msgspec.Struct, forbid_unknown_fields=True):
    """A portal token to make."""

    tenant: Tenant
    expires_in_s: Annotated[int, between(1, LIFETIME_S_MAX, "Seconds until it ends")] = LIFETIME_S
    topics: Annotated[list[TopicName], up_to(TOPICS_MAX, "Only these of the client's topics; null for all")] | None = (
        None
    )


@dataclass(frozen=True)
class SignedPortal:
    """A portal token as it was sent: nothing of it is true before it is seen to be signed."""

    portal: Portal
    payload: bytes
    mac: bytes

    def is_signed(self, key: bytes, secret_hashes: Iterable[str]) -> bool:
        """Whether one of these secrets of its client has made it."""
        return any(hmac.compare_digest(self.mac, _mac(self.payload, key, each)) for each in secret_hashes)


_WANTED = msgspec.json.Decoder(PortalWanted)
_PAYLOAD = msgspec.msgpack.Decoder(Portal)


def parse(body: bytes) -> PortalWanted:
    """A checked body of `POST /portal_tokens`."""
    asked = schema.decode(_WANTED, body, what='a portal token, like {"tenant": "acme"}')
    check_tenant(asked.tenant)
    for name in asked.topics or ():
        check_topic(name)
    if len(asked.topics or ()) > TOPICS_MAX:
        raise BadRequest(f"topics has {len(asked.topics or ())} names; at most {TOPICS_MAX} are allowed")
    schema.check(asked)
    return asked


def key_from(root_key: str) -> bytes:
    """The key that signs; empty without a root key, as the processes share no other."""
    return hmac.digest(root_key.encode(), b"portal tokens", "sha256") if root_key else b""


def sign(portal: Portal, key: bytes, *, secret_hash: str) -> str:
    """The token, made by the secret with this hash."""
    payload = bytes([_VERSION]) + msgspec.msgpack.encode(portal)
    signed = base64.urlsafe_b64encode(_mac(payload, key, secret_hash) + payload)
    return (PREFIX + signed.rstrip(b"=")).decode()


def read(token: bytes) -> SignedPortal | None:
    """What a token says; None if it is no portal token of a version that is known here."""
    if not token.startswith(PREFIX) or len(token) > _LENGTH_MAX:
        return None
    try:
        text = token[len(PREFIX) :]
        signed = base64.b64decode(text + b"=" * (-len(text) % 4), altchars=b"-_", validate=True)
        mac, payload = signed[:_MAC_BYTES], signed[_MAC_BYTES:]
        if payload[:1] != bytes([_VERSION]):
            return None
        return SignedPortal(_PAYLOAD.decode(payload[1:]), payload, mac)
    except (binascii.Error, msgspec.DecodeError, UnicodeDecodeError):
        return None


def may_manage(scopes: Scopes, tenant: str) -> bool:
    """Whether a client with these scopes may have portals of a tenant."""
    return scopes.allows((MANAGE,), is_read=False) and scopes.has_tenant(tenant)


def _mac(payload: bytes, key: bytes, secret_hash: str) -> bytes:
    return hmac.digest(key, payload + b"\n" + secret_hash.encode(), "sha256")
