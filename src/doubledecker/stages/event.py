"""An event: what is asked of a dependency, on its way through the stages.

Equal keys ask for the same data; that is what caches, single-flight and per-key breakers go by. An event carries the
function it will call, so that one chain can guard many functions.
"""

from collections.abc import Awaitable, Callable, Mapping
from types import MappingProxyType

import msgspec

NO_ATTRIBUTES: Mapping[str, object] = MappingProxyType({})


async def _nothing() -> None:
    """What an event calls that carries no function: only the way through the stages counts."""


class Event(msgspec.Struct, eq=False):
    """A key, a deadline on the binding's clock, a priority (higher goes first), and attributes for whom it concerns.

    Events are equal only to themselves: two with the same key are still two. (A struct, because one is made for every
    call, and a class in Python takes twice as long to make one.)
    """

    key: str | None = None
    deadline: float | None = None
    priority: int = 0
    attributes: Mapping[str, object] = NO_ATTRIBUTES
    function: Callable[..., Awaitable[object]] = _nothing
    args: tuple[object, ...] = ()
    kwargs: Mapping[str, object] | None = None

    def __repr__(self) -> str:
        return f"Event(key={self.key!r}, deadline={self.deadline!r}, priority={self.priority})"

    def call(self) -> Awaitable[object]:
        """Ask the dependency."""
        if self.kwargs:
            return self.function(*self.args, **self.kwargs)
        return self.function(*self.args)

    def again(self) -> "Event":
        """A new event that asks the same; for stages that ask more than once at a time."""
        return Event(self.key, self.deadline, self.priority, self.attributes, self.function, self.args, self.kwargs)
