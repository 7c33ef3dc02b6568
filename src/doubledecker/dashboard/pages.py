"""What a page is: a path, a template, and a function that looks up what the template shows."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote

from doubledecker.model.scopes import ANY
from doubledecker.model.token import Caller

HOME = "/dashboard"
_DIGITS_MAX = 13
# What pages say was done.
DONE = {
    "paused": "It is paused: nothing is sent, and all that waits is kept.",
    "resumed": "It is resumed: what waited is sent.",
    "enabled": "It is enabled, and is sent to again.",
    "ended": "The subscription has ended.",
    "purged": "{count} waiting messages are destroyed.",
    "deleted": "The queue is deleted.",
    "ruled": "The rule is in force from the next message on.",
    "revoked": "The client is revoked.",
    "saved": "It is saved.",
}


def part(name: str) -> str:
    """A name as a part of an address: an id may have a slash."""
    return quote(name, safe="@")


def api_of(receiver: str) -> str:
    """Where the API has a receiver: a subscriber by its id, a queue by `@` and its name."""
    return f"/queues/{part(receiver[1:])}" if receiver.startswith("@") else f"/subscribers/{part(receiver)}"


@dataclass(frozen=True)
class ApiCall:
    """What a page asks of the API in its caller's name, and what the answer is read as; its path has quoted names."""

    method: str
    path: str
    query: Mapping[str, str] = field(default_factory=dict)
    body: Mapping[str, object] | None = None
    type: Any = Any


# Answers with what the API answers, read from JSON; raises what its route raises.
Ask = Callable[[ApiCall], Awaitable[Any]]


async def _ask_nobody(call: ApiCall) -> None:
    raise AssertionError(f"nobody answers {call.method} {call.path}")


@dataclass(frozen=True)
class Visit:
    """Who asks for a page, with what in its path and its query, and the token that its forms have to bring back."""

    caller: Caller
    now_ms: int
    path: Mapping[str, str] = field(default_factory=dict)
    query: Mapping[str, str] = field(default_factory=dict)
    form_token: str = ""
    # The rows that were ticked.
    ids: Sequence[str] = ()
    ask: Ask = _ask_nobody
    # Why what its form asked for was refused.
    wrong: str = ""

    @property
    def sees_bus(self) -> bool:
        """Whether the caller may see numbers of all topics and tenants, as `/metrics` has it."""
        return not self.caller.scopes.limits_events

    def may(self, *needs: str) -> bool:
        """Whether the caller may look at what takes one of these actions (model/scopes.py)."""
        return self.caller.is_root or self.caller.scopes.allows(needs, is_read=True)

    def can(self, *needs: str) -> bool:
        """Whether the caller may change what takes one of these actions: so are buttons shown; the API checks again."""
        may = self.caller.is_root or self.caller.scopes.allows(needs, is_read=False)
        return may and not self.caller.only_looks

    @property
    def said(self) -> str:
        """What was done just now, as the address tells by a name: so no link puts words on a page."""
        text, number = DONE.get(self.query.get("done", ""), ""), self.query.get("count", "")
        is_number = number.isascii() and number.isdigit() and len(number) < _DIGITS_MAX
        return text.replace("{count}", f"{int(number):,}" if is_number else "some")

    def given(self, *names: str) -> dict[str, str]:
        """What the query has under these names."""
        return {name: value for name in names if (value := self.query.get(name, "").strip())}

    async def get(self, path: str, query: Mapping[str, str] | None = None, *, type_: Any = Any) -> Any:
        """What the API shows this caller; of a type that skips what is not shown where that may be large."""
        return await self.ask(ApiCall("GET", path, query or {}, type=type_))

    async def send(
        self,
        method: str,
        path: str,
        body: Mapping[str, object] | None = None,
        *,
        query: Mapping[str, str] | None = None,
    ) -> Any:
        """Have the API do something in this caller's name."""
        return await self.ask(ApiCall(method, path, query or {}, body))


@dataclass(frozen=True)
class AnswerPage:
    """A page that is the answer to a form: what it shows is shown this once."""

    template: str
    title: str
    values: Mapping[str, object]


class Elsewhere(Exception):
    """What was asked for is on another page."""

    def __init__(self, path: str) -> None:
        super().__init__(path)
        self.path = path


Look = Callable[[Visit], Awaitable[Mapping[str, object]]]
# Does what a form asks for; returns the address of the page that follows, or a page, or None for the form again.
Act = Callable[[Visit, Mapping[str, str]], Awaitable[str | AnswerPage | None]]


@dataclass(frozen=True)
class DashboardPage:
    """One page, for callers who have one of the actions that it needs; in the navigation if it has a label for that."""

    path: str
    title: str
    template: str
    look: Look
    label: str = ""
    needs: Sequence[str] = ANY
    act: Act | None = None
    is_live: bool = True
    # Whether its form is shown again, with what was written, when that is refused.
    keeps_form: bool = False


@dataclass(frozen=True)
class Field:
    """What a form asks for; `text`, `area`, `select`, `check` or `hidden`."""

    name: str
    label: str = ""
    value: str = ""
    kind: str = "text"
    hint: str = ""
    choices: Sequence[str] = ()
    is_required: bool = False


@dataclass(frozen=True)
class Question:
    """What is asked before something is done, and where whoever leaves it goes."""

    text: str
    button: str
    back: str
    warning: str = ""
    fields: Sequence[Field] = ()

    @property
    def is_bad(self) -> bool:
        """Whether something is destroyed."""
        return bool(self.warning)
