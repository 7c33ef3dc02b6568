"""Erasures: whose past events are removed from the lake for good."""

import msgspec

from doubledecker.errors import BadRequest
from doubledecker.model import event as events
from doubledecker.model import schema
from doubledecker.model.event import GivenTenant, Name, TopicName
from doubledecker.model.schema import DryRun


class Erasure(msgspec.Struct, frozen=True, omit_defaults=True):
    """All events of a tenant, or of a key, on one topic or on any, that were accepted before `before_ms`."""

    before_ms: int
    tenant: str = ""
    key: str = ""
    topic: str = ""
    dry_run: bool = False

    def means(self, topic: str, tenant: str, key: str, *, at_ms: int) -> bool:
        """Whether an event that was accepted then is erased."""
        is_named = self.tenant == tenant if self.tenant else self.key == key
        return at_ms < self.before_ms and self.topic in {"", topic} and is_named


class ErasureAsked(msgspec.Struct, forbid_unknown_fields=True):
    """All events of a tenant, or of a key (on one topic or on any), that are accepted until now."""

    tenant: GivenTenant = None
    key: Name | None = None
    topic: TopicName | None = None
    dry_run: DryRun = False


_ASKED = msgspec.json.Decoder(ErasureAsked)


def parse(body: bytes) -> ErasureAsked:
    """A checked request; raises BadRequest with what was seen and what is allowed."""
    return schema.decode(_ASKED, body, what="an erasure")


def plan(asked: ErasureAsked, *, now_ms: int) -> Erasure:
    """The erasure that is asked for, of all that was accepted until now."""
    if (asked.tenant is None) == (asked.key is None):
        seen = "both" if asked.tenant is not None else "neither"
        raise BadRequest(f"an erasure is of a tenant or of a key; there is {seen}")
    if asked.tenant is not None and asked.topic is not None:
        raise BadRequest("an erasure of a tenant is on all topics; leave the topic out")
    tenant = events.tenant_text(asked.tenant)
    if tenant is not None:
        events.check_tenant(tenant)
    if asked.key is not None:
        events.check_key(asked.key)
    if asked.topic is not None:
        events.check_topic(asked.topic)
    return Erasure(now_ms, tenant or "", asked.key or "", asked.topic or "", dry_run=asked.dry_run)
