"""Router: different events, different stages.

A branch stands between the router and what is inside it: `{"slow": Chain() | Timeout(30)}` gives slow events more
time on their way to the same dependency. A branch that ends in a dependency of its own goes there instead.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from doubledecker.stages import limits
from doubledecker.stages.chain import Chain
from doubledecker.stages.event import Event
from doubledecker.stages.linking import Linked, link
from doubledecker.stages.stage import Stage


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
