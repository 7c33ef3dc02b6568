"""The bodies of requests about queues, checked."""

import msgspec

from doubledecker.errors import BadRequest
from doubledecker.model import event, json_body
from doubledecker.model.queue import LEASE_MS_MAX, LEASE_MS_MIN
from doubledecker.store.queues import PULL_MAX, SETTLE_MAX, Held

WAIT_MS_MAX = 30_000
DELAY_MS_MAX = 30 * 86_400_000
WHY_LENGTH_MAX = 200
# 2^53 - 1: Redis' scripts count in doubles, and beyond it two attempts would be equal.
ATTEMPT_MAX = 9_007_199_254_740_991
LIST_MAX = 1_000


class PullBody(msgspec.Struct, forbid_unknown_fields=True):
    """`POST /queues/:name/pull`."""

    max: int = 1
    wait_ms: int = 0
    lease_ms: int | None = None


class _Named(msgspec.Struct, forbid_unknown_fields=True):
    """A message as a consumer names it."""

    id: str
    attempt: int
    delay_ms: int | None = None
    # Of a nack alone: a message whose work never began was not attempted.
    attempted: bool = True


class SettleBody(msgspec.Struct, forbid_unknown_fields=True):
    """`POST /queues/:name/ack`, `/nack` and `/extend`."""

    messages: list[_Named]
    delay_ms: int = 0
    lease_ms: int | None = None
    why: str = "given back"
    # Of a nack alone: not for later, but to the dead letters at once.
    reject: bool = False

    @property
    def held(self) -> list[Held]:
        return [
            Held(
                each.id,
                each.attempt,
                self.delay_ms if each.delay_ms is None else each.delay_ms,
                is_spared=not each.attempted,
            )
            for each in self.messages
        ]


class PurgeBody(msgspec.Struct, forbid_unknown_fields=True):
    """What is to be purged of what waits: everything, or one tenant's."""

    tenant: str | int | None = None
    dry_run: bool = False

    @property
    def tenant_text(self) -> str | None:
        """Whose, if one tenant's."""
        return event.tenant_text(self.tenant)


class ChooseBody(PurgeBody, forbid_unknown_fields=True):
    """Which dead letters are to be redriven or purged: all, one tenant's, or some by id."""

    ids: list[str] | None = None


_PULL = msgspec.json.Decoder(PullBody)
_SETTLE = msgspec.json.Decoder(SettleBody)
_PURGE = msgspec.json.Decoder(PurgeBody)
_CHOOSE = msgspec.json.Decoder(ChooseBody)


def pull(body: bytes) -> PullBody:
    """A checked pull; an empty body asks for one message, now."""
    asked = json_body.decode(_PULL, body or b"{}", what="a pull")
    _check("max", asked.max, 1, PULL_MAX)
    _check("wait_ms", asked.wait_ms, 0, WAIT_MS_MAX)
    _check("lease_ms", asked.lease_ms, LEASE_MS_MIN, LEASE_MS_MAX)
    return asked


def settle(body: bytes) -> SettleBody:
    """A checked list of messages that the consumer holds."""
    asked = json_body.decode(_SETTLE, body, what="a list of messages")
    if len(asked.messages) > SETTLE_MAX:
        raise BadRequest(f"{len(asked.messages)} messages; at most {SETTLE_MAX} are settled in one request")
    _check("lease_ms", asked.lease_ms, LEASE_MS_MIN, LEASE_MS_MAX)
    _check("delay_ms", asked.delay_ms, 0, DELAY_MS_MAX)
    for message in asked.messages:
        _check("attempt", message.attempt, 0, ATTEMPT_MAX)
        _check("delay_ms", message.delay_ms, 0, DELAY_MS_MAX)
    if len(asked.why) > WHY_LENGTH_MAX:
        raise BadRequest(f"why has {len(asked.why)} characters; at most {WHY_LENGTH_MAX} are kept")
    return asked


def purge(body: bytes) -> PurgeBody:
    """What a purge of waiting messages is about; an empty body is about everything."""
    return json_body.decode(_PURGE, body or b"{}", what="a purge")


def choose(body: bytes) -> ChooseBody:
    """Which dead letters are meant, each once; an empty body means all."""
    asked = json_body.decode(_CHOOSE, body or b"{}", what="a choice of dead letters")
    if asked.ids is not None and len(asked.ids) > LIST_MAX:
        raise BadRequest(f"{len(asked.ids)} ids; at most {LIST_MAX} in one request")
    if asked.ids is not None:
        asked.ids = list(dict.fromkeys(asked.ids))
    return asked


def limit(value: str | None, *, name: str = "limit", default: int = 100) -> int:
    """How many rows a list has at most."""
    if value is None:
        return default
    # Python refuses to read thousands of digits.
    if not value.isdecimal() or len(value) > len(str(LIST_MAX)) or not 1 <= int(value) <= LIST_MAX:
        raise BadRequest(f"{name} is {value[:80]!r}; it must be from 1 to {LIST_MAX}")
    return int(value)


def _check(field: str, value: int | None, least: int, most: int) -> None:
    if value is not None and not least <= value <= most:
        raise BadRequest(f"{field} is {value}; it must be from {least} to {most}")
