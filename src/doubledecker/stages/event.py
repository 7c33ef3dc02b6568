"""An event: what is asked of a dependency, on its way through the stages.

Equal keys ask for the same data; that is what caches, single-flight and per-key breakers go by. An event carries the
function it will call, so that one chain can guard many functions.
"""

from collections.abc import Awaitable, Callable, Mapping
from types import MappingProxyType

NO_ATTRIBUTES: Mapping[str, object] = MappingProxyType({})


async def _nothing() -> None:
    """What an event calls that carries no function: only the way through the stages counts."""


class Event:
    """A key, a deadline on the binding's clock, a priority (higher goes first), and attributes for whom it concerns.

    Events are equal only to themselves: two with the same key are still two.
    """

    __slots__ = ("args", "attributes", "deadline", "function", "key", "kwargs", "priority")

    def __init__(
        self,
        key: str | None = None,
        deadline: float | None = None,
        priority: int = 0,
        attributes: Mapping[str, object] = NO_ATTRIBUTES,
        function: Callable[..., Awaitable[object]] = _nothing,
        args: tuple[object, ...] = (),
        kwargs: Mapping[str, object] | None = None,
    ) -> None:
        self.key = key
        self.deadline = deadline
        self.priority = priority
        self.attributes = attributes
        self.function = function
        self.args = args
        self.kwargs = kwargs

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
