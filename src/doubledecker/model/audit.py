"""The audit trail: who changed what, when and from where; as a record is kept, and which records are asked for."""

from dataclasses import dataclass
from typing import Literal

import msgspec
from msgspec import structs

from doubledecker.model.attempt import AttemptPlace
from doubledecker.model.token import Caller

AuditOutcome = Literal["done", "denied", "unknown"]
# `unknown`: the process died on the way, or Redis did; it may have been done.
OUTCOMES: tuple[AuditOutcome, ...] = ("done", "denied", "unknown")
# A record is small, whatever a request names.
_TARGET_MAX, _DETAIL_MAX = 200, 300


class AuditRecord(msgspec.Struct, frozen=True, omit_defaults=True):
    """One action. `request` is the same in both records of one that was recorded as unknown and then ended."""

    request: str
    at: int
    actor: str
    actor_name: str
    action: str
    # The client whose share of the trail it takes; empty for root.
    client: str = ""
    target: str = ""
    outcome: AuditOutcome = "unknown"
    status: int | None = None
    count: int | None = None
    # The names of the fields that the request's body had.
    fields: tuple[str, ...] = ()
    detail: str = ""
    # The caller's, and the trusted proxy's through which it came.
    address: str = ""
    proxy: str = ""
    request_id: str = ""
    traceparent: str = ""


def begun(request: str, at: int, action: str, caller: Caller, target: str = "") -> AuditRecord:
    """The record of an action that is about to begin."""
    client = "" if caller.is_root else caller.id
    return AuditRecord(request, at, caller.id or caller.name, caller.name, action, client, target[:_TARGET_MAX])


def ended(
    record: AuditRecord,
    outcome: AuditOutcome,
    *,
    status: int | None,
    target: str,
    detail: str,
    count: int | None = None,
    fields: tuple[str, ...] = (),
) -> AuditRecord:
    """The record of an action that is over."""
    return structs.replace(
        record,
        # What did not exist before was made.
        action=record.action.replace(".changed", ".created") if status == 201 else record.action,  # noqa: PLR2004 - Created
        outcome=outcome,
        status=status,
        target=target[:_TARGET_MAX],
        detail=detail[:_DETAIL_MAX],
        count=count,
        fields=fields,
    )


def given(asked: msgspec.Struct) -> str:
    """What a request gave, in a line."""
    fields = {name: value for name, value in msgspec.to_builtins(asked).items() if value not in {None, False}}
    return " ".join(f"{name}={value}" for name, value in fields.items())


@dataclass(frozen=True)
class AuditFilter:
    """Which records are wanted: with all that is given, before a place. An actor is given by its id or its name.

    `own` is the id of the one client whose records may be seen; None is for root.
    """

    own: str | None = None
    actor: str = ""
    action: str = ""
    target: str = ""
    from_ms: int = 0
    to_ms: int | None = None
    before: AttemptPlace | None = None

    def fits(self, record: AuditRecord) -> bool:
        """Whether it is wanted, but for when it was written."""
        return (
            self.own in {None, record.client}
            and self.actor in {"", record.actor, record.actor_name}
            and self.action in {"", record.action}
            and self.target in {"", record.target}
        )


@dataclass(frozen=True)
class ListedRecord:
    """A record, and its place among all."""

    place: AttemptPlace
    record: AuditRecord
