"""The bodies of requests about queues, checked."""

from typing import Annotated

import msgspec
from msgspec import Meta

from doubledecker.errors import BadRequest
from doubledecker.model import event, schema
from doubledecker.model.queue import LEASE_MS_MAX, LEASE_MS_MIN
from doubledecker.model.schema import DryRun, between, up_to
from doubledecker.store.queues import PULL_MAX, SETTLE_MAX, LeasedMessage

WAIT_MS_MAX = 30_000
DELAY_MS_MAX = 30 * 86_400_000
WHY_LENGTH_MAX = 200
# 2^53 - 1: Redis' scripts count in doubles, and beyond it two attempts would be equal.
ATTEMPT_MAX = 9_007_199_254_740_991

_DELAY = between(0, DELAY_MS_MAX, "For nack: how long until the next attempt")


class PullBody(msgspec.Struct, forbid_unknown_fields=True):
    """What a consumer asks for."""

    max: Annotated[int, between(1, PULL_MAX)] = 1
    wait_ms: Annotated[int, between(0, WAIT_MS_MAX, "How long to wait for the first")] = 0
    lease_ms: Annotated[int, between(LEASE_MS_MIN, LEASE_MS_MAX, "Instead of the queue's own")] | None = None


class HeldMessage(msgspec.Struct, forbid_unknown_fields=True):
    """A message as a consumer names it."""

    id: str
    attempt: Annotated[int, between(0, ATTEMPT_MAX)]
    delay_ms: Annotated[int, _DELAY] | None = None
    attempted: Annotated[
        bool, Meta(description="For nack: false when its work never began; then the attempt does not count")
    ] = True


class HeldBody(msgspec.Struct, forbid_unknown_fields=True):
    """Messages that a consumer holds, and how they are settled."""

    messages: Annotated[list[HeldMessage], up_to(SETTLE_MAX)]
    delay_ms: Annotated[int, _DELAY] = 0
    lease_ms: Annotated[int, between(LEASE_MS_MIN, LEASE_MS_MAX, "For extend: from now")] | None = None
    why: Annotated[str, Meta(description="For nack", extra_json_schema={"maxLength": WHY_LENGTH_MAX})] = "given back"
    reject: Annotated[bool, Meta(description="For nack: to the dead letters at once, whatever attempts are left")] = (
        False
    )

    @property
    def held(self) -> list[LeasedMessage]:
        return [
            LeasedMessage(
                each.id,
                each.attempt,
                self.delay_ms if each.delay_ms is None else each.delay_ms,
                is_spared=not each.attempted,
            )
            for each in self.messages
        ]


class PurgeBody(msgspec.Struct, forbid_unknown_fields=True):
    """Everything, or one tenant's."""

    tenant: str | int | None = None
    dry_run: DryRun = False

    @property
    def tenant_text(self) -> str | None:
        """Whose, if one tenant's."""
        return event.tenant_text(self.tenant)


_PULL = msgspec.json.Decoder(PullBody)
_HELD = msgspec.json.Decoder(HeldBody)
_PURGE = msgspec.json.Decoder(PurgeBody)


def pull(body: bytes) -> PullBody:
    """A checked pull; an empty body asks for one message, now."""
    asked = schema.decode(_PULL, body or b"{}", what="a pull")
    schema.check(asked)
    return asked


def settle(body: bytes) -> HeldBody:
    """A checked list of messages that the consumer holds."""
    asked = schema.decode(_HELD, body, what="a list of messages")
    if len(asked.messages) > SETTLE_MAX:
        raise BadRequest(f"{len(asked.messages)} messages; at most {SETTLE_MAX} are settled in one request")
    schema.check(asked)
    schema.check_each(asked.messages)
    if len(asked.why) > WHY_LENGTH_MAX:
        raise BadRequest(f"why has {len(asked.why)} characters; at most {WHY_LENGTH_MAX} are kept")
    return asked


def purge(body: bytes) -> PurgeBody:
    """What a purge of waiting messages is about; an empty body is about everything."""
    return schema.decode(_PURGE, body or b"{}", what="a purge")
