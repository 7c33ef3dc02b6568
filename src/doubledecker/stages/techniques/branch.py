"""Techniques that choose between chains: fallback and router."""

from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field

from doubledecker.stages import limits
from doubledecker.stages.bound import Linked, link
from doubledecker.stages.chain import Chain
from doubledecker.stages.context import Event
from doubledecker.stages.errors import ChainInvalid
from doubledecker.stages.limits import MATCHES, On, OutcomeMatcher
from doubledecker.stages.stage import Stage

# Fallback: when it fails, do something else.
#
# A page without recommendations is better than no page. The other way is a chain of its own: it may have its own
# timeout, its own breaker, and its own dependency; without one it calls the same function by another road.


@dataclass
class Fallback(Stage):
    """When `on` holds for the outcome, go through `chain`, and call `function` of the event there if it is given."""

    chain: Chain = field(default_factory=Chain)
    function: Callable[[Event], Awaitable[object]] | None = None
    on: On = (Exception,)

    def __post_init__(self) -> None:
        super().__post_init__()
        limits.check(self, chain=limits.a(Chain), on=MATCHES)

    def start(self) -> None:
        ends = any(stage.is_end for stage in self.chain)
        if self.function is None and not self.chain.stages:
            raise ChainInvalid(f"{self.name} has nothing to fall back on")
        inner = self.inner if self.function is None or ends else self.function
        self._on = OutcomeMatcher(self.on)
        self._other = link(self.chain.stages, inner, self.context, prefix=f"{self.name}/")

    @property
    def branches(self) -> Mapping[str, Chain]:
        return {"else": self.chain}

    def linked_branches(self) -> Iterable[Linked]:
        return (self._other,)

    async def work(self, event: Event) -> object:
        try:
            result = await self.inner(event)
        except self._on.caught as error:
            if not self._on.holds_for_error(error):
                raise
        else:
            if not self._on.asks_results or not self._on.holds_for_result(result):
                return result
        self.notify("fell back", event)
        return await self._other.run(event)


def value(result: object) -> Callable[[Event], Awaitable[object]]:
    """A function for `Fallback` that always gives the same."""

    async def give(event: Event) -> object:  # noqa: ARG001 - the same for all
        return result

    return give


# Router: different events, different stages.
#
# A branch stands between the router and what is inside it: `{"slow": Chain() | Timeout(30)}` gives slow events more
# time on their way to the same dependency. A branch that ends in a dependency of its own goes there instead.


def by_key(event: Event) -> str:
    """The branch is named for the key."""
    return event.key or ""


@dataclass
class Router(Stage):
    """The branch that `by` names, or `otherwise`."""

    routes: Mapping[str, Chain] = field(default_factory=dict)
    by: Callable[[Event], str] = by_key
    otherwise: Chain = field(default_factory=Chain)

    def __post_init__(self) -> None:
        super().__post_init__()
        for name, chain in self.routes.items():
            limits.check_argument(self.name or "router", f"routes[{name!r}]", chain, limits.a(Chain))
        limits.check(self, otherwise=limits.a(Chain))

    def start(self) -> None:
        self._linked = {
            name: link(chain.stages, self.inner, self.context, prefix=f"{self.name}/{name}/")
            for name, chain in self.branches.items()
        }
        self._otherwise = self._linked["otherwise"]

    @property
    def branches(self) -> Mapping[str, Chain]:
        return {**self.routes, "otherwise": self.otherwise}

    def linked_branches(self) -> Iterable[Linked]:
        return self._linked.values()

    async def work(self, event: Event) -> object:
        return await self._linked.get(self.by(event), self._otherwise).run(event)
