"""What a page is: a path, a template, and a function that looks up what the template shows."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field

from doubledecker.model.scopes import ANY
from doubledecker.model.token import Caller

HOME = "/dashboard"


@dataclass(frozen=True)
class Visit:
    """Who asks for a page, with what in its path and its query, and the token that its forms have to bring back."""

    caller: Caller
    now_ms: int
    path: Mapping[str, str] = field(default_factory=dict)
    query: Mapping[str, str] = field(default_factory=dict)
    form_token: str = ""

    @property
    def sees_bus(self) -> bool:
        """Whether the caller may see numbers of all topics and tenants, as `/metrics` has it."""
        return not self.caller.scopes.limits_events

    def may(self, *needs: str) -> bool:
        """Whether the caller may look at what takes one of these actions (model/scopes.py)."""
        return self.caller.is_root or self.caller.scopes.allows(needs, is_read=True)


Look = Callable[[Visit], Awaitable[Mapping[str, object]]]


@dataclass(frozen=True)
class DashboardPage:
    """One page, for callers who have one of the actions that it needs; in the navigation if it has a label for that."""

    path: str
    title: str
    template: str
    look: Look
    label: str = ""
    needs: Sequence[str] = ANY
