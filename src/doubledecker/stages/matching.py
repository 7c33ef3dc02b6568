"""What `on=` takes: exception classes, predicates on exceptions, and predicates on results.

    on=ConnectionError
    on=(ConnectionError, lambda error: getattr(error, "status", 0) >= 500)
    on=(TimedOut, Result(lambda response: response.status >= 500))

A class stands for itself and what derives from it. A plain predicate is asked about exceptions alone, so that it need
not know what a result looks like; `Result` marks one that is asked about results alone.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from doubledecker.stages.limits import Limit


@dataclass(frozen=True)
class Result:
    """A result that the predicate holds for counts as a failure; it is still what the caller gets."""

    predicate: Callable[[Any], bool]


Match = type[Exception] | Callable[[Any], bool] | Result
On = Match | Iterable[Match]


class OutcomeMatcher:
    """`on=` taken apart, for stages that ask it about every outcome."""

    __slots__ = ("_kinds", "_predicates", "_results", "asks_results", "caught")

    def __init__(self, on: On) -> None:
        given = _listed(on)
        self._kinds = tuple(each for each in given if isinstance(each, type))
        self._results = tuple(each.predicate for each in given if isinstance(each, Result))
        self._predicates = tuple(each for each in given if not isinstance(each, type | Result))
        # What is to be caught, and then asked about.
        self.caught: tuple[type[Exception], ...] = (Exception,) if self._predicates else self._kinds
        # Most stages have no predicate on results, and need not look at them.
        self.asks_results = bool(self._results)

    def holds_for_error(self, error: Exception) -> bool:
        return isinstance(error, self._kinds) or any(predicate(error) for predicate in self._predicates)

    def holds_for_result(self, result: object) -> bool:
        return any(predicate(result) for predicate in self._results)


def _listed(on: On) -> tuple[Match, ...]:
    return (on,) if isinstance(on, Result) or callable(on) else tuple(on)


def _is_match(seen: object) -> bool:
    if isinstance(seen, type):
        return issubclass(seen, Exception)
    return isinstance(seen, Result) or callable(seen)


def _are_matches(seen: object) -> bool:
    return _is_match(seen) or (isinstance(seen, Iterable) and not isinstance(seen, type) and all(map(_is_match, seen)))


MATCHES = Limit("exception classes, predicates on exceptions, or Result(predicate)", _are_matches)
