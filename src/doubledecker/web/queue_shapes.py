"""How queues and what they hold look in answers."""

from collections.abc import Sequence

import msgspec
from msgspec import Raw
from starlette.responses import Response

from doubledecker.model.queue import Queue, Rule
from doubledecker.model.token import ROOT_NAME, Caller
from doubledecker.queues.gather import Pull
from doubledecker.queues.view import Facet, QueueView
from doubledecker.store.letters import Letter

_COUNTED = ("pulled", "acked", "nacked", "expired", "dead", "dropped", "skipped", "purged", "redriven")

_OTHERS = Caller(id="", name="")


class _Pulled(msgspec.Struct):
    """A message as a consumer gets it; its event's bytes are passed on unread."""

    id: str
    attempt: int
    tenant: str
    event: Raw
    lease_until: int


def json(value: object, status: int = 200) -> Response:
    return Response(msgspec.json.encode(value), status_code=status, media_type="application/json")


def definition(queue: Queue, caller: Caller) -> dict[str, object]:
    """A queue as it was registered; its uuid is shown to its owner alone."""
    shown: dict[str, object] = {
        "name": queue.name,
        "owner": queue.owner or "root",
        "pattern": list(queue.patterns),
        "lease_ms": queue.lease_ms,
        "attempts_max": queue.attempts_max,
        "charge": queue.charge,
        "max_length": queue.max_length,
        "facet_max_length": queue.facet_max_length,
        "overflow": queue.overflow,
        "refuse_clients": list(queue.refuse_clients or ()),
    }
    if queue.callback:
        shown |= {
            "callback": queue.callback,
            "uuid_set": queue.receiver.has_secret_uuid,
            "timeout": queue.timeout_ms,
            "max": queue.max_events,
            "max_bytes": queue.max_bytes,
            "concurrency": queue.concurrency,
        }
        if (queue.owner or ROOT_NAME) == caller.id:
            shown["uuid"] = queue.receiver.uuid
    return shown


def numbers(seen: QueueView, caller: Caller) -> dict[str, object]:
    """A queue with what it holds."""
    return {
        **definition(seen.queue, caller),
        "waiting": seen.waiting,
        "in_flight": seen.in_flight,
        "delayed": seen.delayed,
        "dead": seen.dead,
        "counters": {name: seen.counters.get(name, 0) for name in _COUNTED},
    }


class EncodedQueue(msgspec.Struct, frozen=True, gc=False):
    """A queue with what it holds in JSON, as its owner sees it and as root does. A struct, because many are kept."""

    name: str
    owner: str
    for_owner: bytes
    for_others: bytes

    def of(self, caller: Caller) -> bytes:
        """What a caller sees; that it may see the queue is another's to check."""
        return self.for_owner if (self.owner or ROOT_NAME) == caller.id else self.for_others


def encoded(seen: QueueView) -> EncodedQueue:
    """A queue encoded once for all who may ask."""
    queue, owner = seen.queue, seen.queue.owner or ROOT_NAME
    for_others = msgspec.json.encode(numbers(seen, _OTHERS))
    # Only a queue with a callback has what its owner alone may see.
    for_owner = msgspec.json.encode(numbers(seen, Caller(owner, owner))) if queue.callback else for_others
    return EncodedQueue(queue.name, queue.owner, for_owner, for_others)


def facet(seen: Facet, now_ms: int) -> dict[str, object]:
    """One tenant's line; `oldest` is an age by the event's own time."""
    return {
        "tenant": seen.tenant,
        "waiting": seen.waiting,
        "in_flight": seen.in_flight,
        "oldest": 0 if seen.oldest_at is None else max(0, now_ms - seen.oldest_at),
        "share": seen.share,
        **rule(seen.rule),
    }


def rule(seen: Rule) -> dict[str, object]:
    """What holds for a facet; null is no bound."""
    return {
        "weight": seen.weight,
        "concurrency": seen.concurrency or None,
        "rate_per_s": seen.rate_per_s or None,
        "paused": seen.paused,
    }


def pulled(pull: Pull) -> dict[str, object]:
    """What a pull answers."""
    rows = [_Pulled(m.id, m.attempt, m.tenant, Raw(m.event), m.lease_until) for m in pull.messages]
    return {"messages": rows, "wait_ms": pull.wait_ms}


def settled(asked: Sequence[str], kept: Sequence[str]) -> dict[str, object]:
    """Which messages were still the caller's, and which were not."""
    mine = set(kept)
    return {"ids": list(kept), "lost": [id_ for id_ in dict.fromkeys(asked) if id_ not in mine]}


def letter(seen: Letter) -> dict[str, object]:
    """A dead letter."""
    return {
        "id": seen.id,
        "tenant": seen.tenant,
        "attempts": seen.attempts,
        "why": seen.why,
        "died_at": seen.died_at,
        "event": Raw(seen.event),
    }
