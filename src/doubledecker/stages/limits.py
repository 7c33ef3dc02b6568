"""Limits of settings, and what `on=` takes. A stage is checked when it is made, so no wrong number meets an event."""

import math
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from doubledecker.stages.errors import SettingInvalid


def in_words(kind: type) -> str:
    """The name of a class in small letters: SingleFlight is `single_flight`."""
    return re.sub(r"(?<=[a-z])(?=[A-Z])", "_", kind.__name__).lower()


@dataclass(frozen=True)
class Limit:
    """What a setting must be, in words and as a test."""

    words: str
    holds: Callable[[object], bool]


def check(owner: object, **limits: Limit) -> None:
    """Raise SettingInvalid for the first setting of the owner that is not within its limit."""
    for setting, limit in limits.items():
        seen = getattr(owner, setting)
        if not limit.holds(seen):
            raise SettingInvalid(_owner_name(owner), setting, seen, limit.words)


def check_order(owner: object, *settings: str) -> None:
    """Raise SettingInvalid unless each setting is at most the next; those that are None are left out."""
    given = [setting for setting in settings if getattr(owner, setting) is not None]
    for low, high in pairwise(given):
        if getattr(owner, low) > getattr(owner, high):
            words = f"at most {high}, which is {getattr(owner, high)!r}"
            raise SettingInvalid(_owner_name(owner), low, getattr(owner, low), words)


def check_argument(function: str, setting: str, seen: object, limit: Limit) -> None:
    """The same for an argument of a function."""
    if not limit.holds(seen):
        raise SettingInvalid(function, setting, seen, limit.words)


def or_none(limit: Limit) -> Limit:
    """The same, or nothing at all."""
    return Limit(f"{limit.words}, or none", lambda seen: seen is None or limit.holds(seen))


def a(*kinds: type) -> Limit:
    """A value of one of these classes."""
    return Limit(f"a {' or a '.join(kind.__name__ for kind in kinds)}", lambda seen: isinstance(seen, kinds))


def with_method(name: str, words: str) -> Limit:
    """Anything that has this method: what a protocol asks for."""
    return Limit(words, lambda seen: callable(getattr(seen, name, None)))


def _is_number(seen: object) -> bool:
    return isinstance(seen, int | float) and not isinstance(seen, bool) and not math.isnan(seen)


def _number(words: str, holds: Callable[[float], bool]) -> Limit:
    return Limit(words, lambda seen: _is_number(seen) and holds(seen))  # type: ignore[arg-type]  # it is a number


def _whole(words: str, least: int) -> Limit:
    return Limit(words, lambda seen: isinstance(seen, int) and not isinstance(seen, bool) and seen >= least)


def _are_durations(seen: object) -> bool:
    return isinstance(seen, Sequence) and len(seen) > 0 and all(_is_number(one) and one >= 0 for one in seen)


ABOVE_ZERO = _number("a number above 0", lambda seen: seen > 0)
FINITE_ABOVE_ZERO = _number("a finite number above 0", lambda seen: 0 < seen < math.inf)
ZERO_OR_MORE = _number("a number, 0 or more", lambda seen: seen >= 0)
FINITE_ZERO_OR_MORE = _number("a finite number, 0 or more", lambda seen: 0 <= seen < math.inf)
SHARE = _number("a number from 0 to 1", lambda seen: 0 <= seen <= 1)
SHARE_ABOVE_ZERO = _number("a number above 0, at most 1", lambda seen: 0 < seen <= 1)
ONE_OR_MORE = _whole("a whole number, 1 or more", 1)
WHOLE_ZERO_OR_MORE = _whole("a whole number, 0 or more", 0)
DURATIONS = Limit("a list of at least one duration, none below 0", _are_durations)
DISTRIBUTION = with_method("draw", "a distribution, such as LogNormal(0.05)")


def _owner_name(owner: object) -> str:
    return getattr(owner, "name", "") or in_words(type(owner))


@dataclass(frozen=True)
class Result:
    """A result that the predicate holds for counts as a failure; it is still what the caller gets."""

    predicate: Callable[[Any], bool]


Match = type[Exception] | Callable[[Any], bool] | Result
On = Match | Iterable[Match]


class OutcomeMatcher:
    """`on=` taken apart, for stages that ask it about every outcome.

    What `on=` takes: exception classes, predicates on exceptions, and predicates on results.

        on=ConnectionError
        on=(ConnectionError, lambda error: getattr(error, "status", 0) >= 500)
        on=(TimedOut, Result(lambda response: response.status >= 500))

    A class stands for itself and what derives from it. A plain predicate is asked about exceptions alone, so that it
    need not know what a result looks like; `Result` marks one that is asked about results alone.
    """

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
