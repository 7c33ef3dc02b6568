"""Scopes: what a token may do, on which topics and for which tenants. Pure.

A limit on topics or tenants holds for what its client publishes and for what it gets, whatever way the events take. One
that is absent is no limit.
"""

import re
from collections.abc import Sequence
from functools import lru_cache
from typing import Annotated

import msgspec
from msgspec import UNSET, UnsetType

from doubledecker.errors import BadRequest, Forbidden
from doubledecker.model.event import Tenant, check_tenant
from doubledecker.model.event_filter import Leaf
from doubledecker.model.glob import Glob, is_glob
from doubledecker.model.schema import matching, one_of, up_to

PUBLISH, SUBSCRIBE, CONSUME, STREAM = "publish", "subscribe", "consume", "stream"
SEARCH, REPLAY, MANAGE, ADMIN, READ_ONLY = "search", "replay", "manage", "admin", "read-only"
ACTIONS = (PUBLISH, SUBSCRIBE, CONSUME, STREAM, SEARCH, REPLAY, MANAGE, ADMIN, READ_ONLY)
# What a portal token may do (model/portal.py); it is given to no other.
PORTAL = "portal"
# What any client does that may do something.
ANY = (PUBLISH, SUBSCRIBE, CONSUME, STREAM, SEARCH, REPLAY, MANAGE)
# Of which one is needed for a subscriber, for what was attempted and given up, and for queues: in the API and on pages.
SUBSCRIBING, LOOKING, SEEING_QUEUES = (SUBSCRIBE, MANAGE), (SEARCH, MANAGE), (CONSUME, MANAGE)
# Each is looked at when a kind of events is first routed, and shown in errors.
LISTED_MAX = 100
_SHOWN_MAX = 20


class Scopes(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a token may do; None is no limit. Without a limit on actions it may do what any client may: not `admin`."""

    actions: tuple[str, ...] | None = None
    topics: tuple[str, ...] | None = None
    tenants: tuple[str, ...] | None = None

    @property
    def is_admin(self) -> bool:
        """Whether it may do what root may, but for a few things."""
        return self.actions is not None and ADMIN in self.actions

    @property
    def limits(self) -> tuple[tuple[str, ...] | None, tuple[str, ...] | None]:
        """Its topics and tenants."""
        return self.topics, self.tenants

    @property
    def limits_events(self) -> bool:
        """Whether there are events that it may not publish or get."""
        return self.topics is not None or self.tenants is not None

    def allows(self, needs: Sequence[str], *, is_read: bool) -> bool:
        """Whether a route is open that needs one of some actions; `is_read` of one that changes nothing."""
        if self.is_admin:
            return True
        if tuple(needs) == (ADMIN,):
            return False
        if self.actions is None or (is_read and READ_ONLY in self.actions):
            return True
        return not set(needs).isdisjoint(self.actions)

    def has_topic(self, name: str) -> bool:
        """Whether events on this topic are within the limits."""
        return self.topics is None or any(glob.matches(name) for glob in _globs(self.topics))

    def has_tenant(self, name: str) -> bool:
        """Whether events of this tenant are within the limits."""
        return self.tenants is None or name in self.tenants

    def has_events(self, topic: str, tenant: str) -> bool:
        """Whether events of this topic and tenant are within the limits."""
        return self.has_topic(topic) and self.has_tenant(tenant)

    def of_tenant(self, name: str) -> "Scopes":
        """The same for one tenant alone, no events where that is beyond the limits; as they are without a name."""
        return self if not name else msgspec.structs.replace(self, tenants=(name,) if self.has_tenant(name) else ())

    @property
    def fields(self) -> list[tuple[str, Leaf]]:
        """The limits as fields of a filter."""
        found = []
        if self.tenants is not None:
            found.append(("tenant", Leaf(self.tenants, frozenset(self.tenants), (), steps=0)))
        if self.topics is not None:
            names = frozenset(name for name in self.topics if not is_glob(name))
            tests = tuple(glob.matches for glob in _globs(self.topics) if is_glob(glob.text))
            found.append(("topic", Leaf(self.topics, names, tests, steps=0)))  # type: ignore[arg-type]  # of strings
        return found

    def check_topics(self, names: Sequence[str], *, to: str) -> None:
        """Raise Forbidden for the first topic that is beyond the limits, with those that are within."""
        for name in names if self.topics is not None else ():
            if not self.has_topic(name):
                raise Forbidden(f"this token may not {to} topic {name[:80]!r}; its topics are {_listed(self.topics)}")

    def check_tenants(self, names: Sequence[str], *, to: str) -> None:
        """Raise Forbidden for the first tenant that is beyond the limits, with those that are within."""
        for name in names if self.tenants is not None else ():
            if not self.has_tenant(name):
                raise Forbidden(
                    f"this token may not {to} tenant {name[:80]!r}; its tenants are {_listed(self.tenants)}"
                )


UNLIMITED = Scopes()
NOTHING = Scopes(actions=())


@lru_cache(4_096)
def _globs(patterns: tuple[str, ...]) -> tuple[Glob, ...]:
    return tuple(map(Glob, patterns))


def _listed(names: Sequence[str] | None) -> str:
    shown = list(names or ())[:_SHOWN_MAX]
    return ", ".join(shown) + (", …" if len(names or ()) > _SHOWN_MAX else "") if shown else "none"


def why_not(scopes: Scopes, needs: Sequence[str], *, is_read: bool) -> str:
    """What is missing for a route that is not open."""
    if tuple(needs) == (ADMIN,):
        return f"this needs the root key, or a token with the action {ADMIN}"
    if scopes.actions == (PORTAL,):
        return (
            "this needs the token of a client; a portal token opens the subscriptions of its tenant, and nothing else"
        )
    wanted = " or ".join((*(each for each in needs if each != PORTAL), *((READ_ONLY,) if is_read else ())))
    return f"this needs the action {wanted}; the actions of this token are {_listed(scopes.actions)}"


ActionName = Annotated[str, one_of(ACTIONS)]
_TOPICS = re.compile(r"[A-Za-z0-9_.*?-]{1,64}")
TopicNames = Annotated[str, matching(_TOPICS, "A topic, or a glob: `*` is any text, `?` one character")]


class ScopesWanted(msgspec.Struct, forbid_unknown_fields=True):
    """What a token may do; null is no limit.

    What is absent is no limit either, but for actions where the setting `tokens_default` is `none`.
    """

    actions: Annotated[list[ActionName], up_to(len(ACTIONS))] | UnsetType | None = UNSET
    topics: Annotated[list[TopicNames], up_to(LISTED_MAX)] | None = None
    tenants: Annotated[list[Tenant], up_to(LISTED_MAX)] | None = None


def checked(asked: ScopesWanted, *, default: Scopes) -> Scopes:
    """Scopes as they were asked for; raises BadRequest with what is allowed. `default` has the actions if absent."""
    actions = default.actions if asked.actions is UNSET else _tuple("actions", asked.actions, most=len(ACTIONS))
    for name in actions or ():
        if name not in ACTIONS:
            raise BadRequest(f"actions has {name[:80]!r}; it may have {', '.join(ACTIONS)}")
    topics, tenants = (_tuple(name, getattr(asked, name), most=LISTED_MAX) for name in ("topics", "tenants"))
    for name in topics or ():
        if not _TOPICS.fullmatch(name):
            raise BadRequest(f"topics has {name[:80]!r}; a name or a glob must match {_TOPICS.pattern}")
    for name in tenants or ():
        check_tenant(name)
    scopes = Scopes(actions, topics, tenants)
    if scopes.is_admin and scopes.limits_events:
        raise BadRequest(f"actions has {ADMIN}, which is for the whole bus; leave out topics and tenants, or {ADMIN}")
    return scopes


def _tuple(field: str, asked: Sequence[str] | None, *, most: int) -> tuple[str, ...] | None:
    if asked is None:
        return None
    if len(asked) > most:
        raise BadRequest(f"{field} has {len(asked)} names; at most {most} are allowed")
    return tuple(dict.fromkeys(asked))
