"""Fallback: when it fails, do something else.

A page without recommendations is better than no page. The other way is a chain of its own: it may have its own
timeout, its own breaker, and its own dependency; without one it calls the same function by another road.
"""

from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field

from doubledecker.stages import limits
from doubledecker.stages.chain import Chain
from doubledecker.stages.errors import ChainInvalid
from doubledecker.stages.event import Event
from doubledecker.stages.linking import Linked, link
from doubledecker.stages.matching import MATCHES, On, OutcomeMatcher
from doubledecker.stages.stage import Stage


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
