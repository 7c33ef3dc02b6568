"""From plain tables, as TOML has them, to stages, traffic and dependencies.

What may be written is read from the classes themselves: a table's keys are their settings, and `kind` (for a stage,
`stage`) chooses the class where there are several. So every technique can be declared, and a new setting needs nothing
here. What cannot be is refused with the place, what was seen, and what is allowed.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import fields
from difflib import get_close_matches
from types import NoneType, UnionType
from typing import TypeVar, cast, get_args, get_type_hints

from doubledecker.stages import errors
from doubledecker.stages.chain import Chain
from doubledecker.stages.distributions import Constant, Distribution, Exponential, LogNormal, Normal, Observed, Ticks
from doubledecker.stages.errors import ScenarioInvalid, StagesError
from doubledecker.stages.limits import On, in_words
from doubledecker.stages.pool import CoDel, Fifo, Lifo, Priority, Queue, WorkerPool
from doubledecker.stages.simulation.traffic import Bursty, Even, NormalKeys, Poisson, Ramp, UniformKeys
from doubledecker.stages.stage import Stage
from doubledecker.stages.techniques.batch import Batch
from doubledecker.stages.techniques.branch import Fallback, Router, value
from doubledecker.stages.techniques.breaker import Breaker, Count, Time
from doubledecker.stages.techniques.cache import AsideCache, Cache, SingleFlight
from doubledecker.stages.techniques.load import Adaptive, Bulkhead, RateLimit, Shed
from doubledecker.stages.techniques.retry import Backoff, Budget, Hedge, Retry
from doubledecker.stages.techniques.simulated import Fault, Outage, Saturation, Simulated
from doubledecker.stages.techniques.timeout import Deadline, Timeout

# The words of a declared rehearsal, and the classes that they stand for.

Kinds = Mapping[str, type]


def _by_name(*kinds: type) -> Kinds:
    return {in_words(kind): kind for kind in kinds}


STAGES = _by_name(
    *(Adaptive, AsideCache, Batch, Breaker, Bulkhead, Cache, Deadline, Fallback, Fault, Hedge, RateLimit, Retry),
    *(Router, Shed, Simulated, SingleFlight, Stage, Timeout),
)
DISTRIBUTIONS = _by_name(Constant, Exponential, LogNormal, Normal, Observed, Ticks)
QUEUES = {**_by_name(Fifo, Lifo, Priority), "codel": CoDel}
WINDOWS = _by_name(Count, Time)
TRAFFIC = _by_name(Bursty, Even, Poisson, Ramp)
KEYS = {"uniform": UniformKeys, "normal": NormalKeys}
# What a stage or a dependency may raise; the rest of the tree is about chains and virtual time.
EXCEPTIONS: Mapping[str, type[Exception]] = {
    "Exception": Exception,
    "TimeoutError": TimeoutError,
    **{
        kind.__name__: kind
        for kind in (
            *(errors.Rejected, errors.QueueFull, errors.Overdue, errors.CircuitOpen, errors.RateExceeded, errors.Shed),
            *(errors.DeadlinePassed, errors.NotCached, errors.TimedOut, errors.DeadlineReached),
            *(errors.FaultInjected, errors.DependencyFailed),
        )
    },
}


T = TypeVar("T")
Reader = Callable[[object, str], object]


def chain(given: object, where: str) -> Chain:
    """A list of tables, each a stage, outermost first."""
    stages = [_stage(one, f"{where}[{i}]") for i, one in enumerate(_list(given, where), start=1)]
    return Chain(tuple(stages))


def dependency(given: object, where: str) -> Simulated:
    """A table with the settings of the simulated dependency."""
    return _made(Simulated, _table(given, where), where)


def one_of(kinds: Kinds, given: object, where: str, *, word: str = "kind") -> object:
    """A table whose `kind` says which class it describes."""
    table = dict(_table(given, where))
    name = table.pop(word, None)
    if name is None:
        raise ScenarioInvalid(f"{where} needs a {word}: one of {', '.join(sorted(kinds))}")
    if not isinstance(name, str) or name not in kinds:
        raise ScenarioInvalid(f"{where}: {unknown(word, str(name), kinds)}")
    return _made(kinds[name], table, f"{where} ({name})")


def unknown(word: str, seen: str, known: Collection[str]) -> str:
    """The error for a name that is none of those known."""
    close = get_close_matches(seen, list(known), n=1)
    hint = f" (did you mean {close[0]!r}?)" if close else ""
    return f"no {word} is called {seen!r}{hint}; there are {', '.join(sorted(known))}"


def _stage(given: object, where: str) -> Stage:
    return cast("Stage", one_of(STAGES, given, where, word="stage"))


def _made(kind: type[T], table: Mapping[str, object], where: str) -> T:
    hints = get_type_hints(kind)
    known = [field.name for field in fields(kind) if field.init]  # type: ignore[arg-type]  # all are dataclasses
    settings = {}
    for name, given in table.items():
        if name not in known:
            raise ScenarioInvalid(f"{where}: {unknown('setting', name, known)}")
        settings[name] = _reader(name, hints[name], where)(given, f"{where}.{name}")
    try:
        return kind(**settings)
    except (StagesError, TypeError) as error:
        # A setting out of its limits, or one without a default that is missing.
        words = str(error).replace(f"{kind.__name__}.__init__()", "").strip()
        raise ScenarioInvalid(f"{where}: {words}") from error


def _reader(name: str, hint: object, where: str) -> Reader:
    """How a setting is read, by its type; functions have a form of their own, or none."""
    if name in _FUNCTIONS:
        return _FUNCTIONS[name]
    # A setting that may be missing is read as if it could not: TOML has no word for nothing, one leaves it out.
    kinds = [kind for kind in get_args(hint) if kind is not NoneType] if isinstance(hint, UnionType) else [hint]
    read = _READERS.get(frozenset(kinds))
    if read is None:
        raise ScenarioInvalid(f"{where}.{name} cannot be written in TOML; describe this chain in a .py file")
    return read


def _number(given: object, where: str) -> object:
    return _plain(given, where, (int, float), "a number")


def _whole(given: object, where: str) -> object:
    return _plain(given, where, (int,), "a whole number")


def _text(given: object, where: str) -> object:
    return _plain(given, where, (str,), "a text")


def _truth(given: object, where: str) -> object:
    if not isinstance(given, bool):
        raise ScenarioInvalid(f"{where} is {given!r}; it must be true or false")
    return given


def _plain(given: object, where: str, kinds: tuple[type, ...], words: str) -> object:
    if not isinstance(given, kinds) or isinstance(given, bool):
        raise ScenarioInvalid(f"{where} is {given!r}; it must be {words}")
    return given


def _list(given: object, where: str) -> list[object]:
    if not isinstance(given, list):
        raise ScenarioInvalid(f"{where} is {given!r}; it must be a list")
    return given


def _table(given: object, where: str) -> dict[str, object]:
    if not isinstance(given, dict):
        raise ScenarioInvalid(f"{where} is {given!r}; it must be a table")
    return given


def _exceptions(given: object, where: str) -> tuple[type[Exception], ...]:
    return tuple(_exception(one, where) for one in _list(given, where))


def _exception(given: object, where: str) -> type[Exception]:
    if given not in EXCEPTIONS:
        raise ScenarioInvalid(f"{where}: {unknown('exception', str(given), EXCEPTIONS)}")
    return EXCEPTIONS[str(given)]


def _outages(given: object, where: str) -> list[Outage]:
    named = [(one, f"{where}[{i}]") for i, one in enumerate(_list(given, where), start=1)]
    return [_made(Outage, _table(one, here), here) for one, here in named]


def _numbers(given: object, where: str) -> list[object]:
    return [_number(one, where) for one in _list(given, where)]


def _routes(given: object, where: str) -> dict[str, Chain]:
    return {name: chain(one, f"{where}.{name}") for name, one in _table(given, where).items()}


def _saturation(given: object, where: str) -> Saturation:
    """Pairs of how many are at work, and the factor."""
    pairs = [_list(one, where) for one in _list(given, where)]
    if any(len(pair) != 2 for pair in pairs):  # noqa: PLR2004 - a pair
        raise ScenarioInvalid(f"{where} must be a list of pairs, such as [[10, 1.0], [50, 4.0]]")
    try:
        return Saturation([cast("tuple[float, float]", tuple(pair)) for pair in pairs])
    except StagesError as error:
        raise ScenarioInvalid(f"{where}: {error}") from error


def _answer(given: object, where: str) -> object:
    """What a fallback gives: `function = { value = … }`."""
    table = _table(given, where)
    if set(table) != {"value"}:
        raise ScenarioInvalid(f"{where} must be a table with a value: {{ value = 'what is given instead' }}")
    return value(table["value"])


def _of(kinds: Kinds) -> Reader:
    return lambda given, where: one_of(kinds, given, where)


def _a(kind: type) -> Reader:
    return lambda given, where: _made(kind, _table(given, where), where)


_FUNCTIONS: Mapping[str, Reader] = {"saturation": _saturation, "function": _answer, "error": _exception}
_READERS: Mapping[frozenset[object], Reader] = {
    frozenset({float}): _number,
    frozenset({int}): _whole,
    frozenset({bool}): _truth,
    frozenset({str}): _text,
    frozenset({Queue}): _of(QUEUES),
    frozenset({Distribution}): _of(DISTRIBUTIONS),
    frozenset({Count, Time}): _of(WINDOWS),
    frozenset({Backoff}): _a(Backoff),
    frozenset({Budget}): _a(Budget),
    frozenset({Chain}): chain,
    frozenset({Mapping[str, Chain]}): _routes,
    frozenset({Sequence[Outage]}): _outages,
    frozenset({Sequence[float]}): _numbers,
    frozenset(get_args(On)): _exceptions,
    frozenset({int, WorkerPool}): _whole,
}
