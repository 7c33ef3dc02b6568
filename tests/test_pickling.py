"""Every error of the package is the same after pickling: processes and Spark's tasks hand them on."""

import copy
import enum
import importlib
import inspect
import pickle
import pkgutil
import types
import typing
from collections.abc import Iterator

import pytest

import doubledecker
from doubledecker.pickling import Portable

# Parts that import what not everybody has installed, or that act when they are imported.
_UNTOUCHED = ("doubledecker.__main__",)


def _kinds() -> Iterator[type[BaseException]]:
    for found in pkgutil.walk_packages(doubledecker.__path__, "doubledecker."):
        if found.name in _UNTOUCHED:
            continue
        module = importlib.import_module(found.name)
        for value in vars(module).values():
            if inspect.isclass(value) and issubclass(value, BaseException) and value.__module__ == found.name:
                yield value


@pytest.fixture(scope="module")
def kinds() -> list[type[BaseException]]:
    """All errors of the package. A fixture, as it imports everything, Spark too."""
    return sorted(set(_kinds()), key=lambda kind: f"{kind.__module__}.{kind.__qualname__}")


def _made(kind: type[BaseException]) -> BaseException:
    """One with something in every field."""
    if kind.__init__ in {Exception.__init__, BaseException.__init__, OSError.__init__}:
        return kind("words")
    hints = typing.get_type_hints(kind.__init__)
    values = {}
    for name, parameter in list(inspect.signature(kind.__init__).parameters.items())[1:]:
        assert parameter.kind != parameter.VAR_KEYWORD, kind
        if parameter.kind != parameter.VAR_POSITIONAL:
            values[name] = _value(hints.get(name, str))
    positional = [
        values.pop(name)
        for name, parameter in inspect.signature(kind.__init__).parameters.items()
        if name in values and parameter.kind != parameter.KEYWORD_ONLY
    ]
    return kind(*positional, **values)


def _value(hint: object) -> object:
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin in {types.UnionType, typing.Union}:
        return _value(arguments[0])
    if inspect.isclass(origin or hint):
        kind = origin or hint
        for given in ("words", 7, 7.5, True, (), [], {}, frozenset()):
            if type(given) is kind or (not isinstance(given, str | int | float) and issubclass(type(given), kind)):
                return given
    if hint in {object, typing.Any}:
        return "words"
    if inspect.isclass(hint) and issubclass(hint, enum.Enum):
        return next(iter(hint))
    if inspect.isclass(hint):
        fields = [_value(each) for each in typing.get_type_hints(hint).values()]
        return hint(*fields)
    raise AssertionError(f"no value for {hint}")


def test_errors_survive_pickling_and_copying(kinds: list[type[BaseException]], subtests: pytest.Subtests):
    for kind in kinds:
        with subtests.test(kind=kind):
            error = _made(kind)
            for again in (pickle.loads(pickle.dumps(error)), copy.copy(error), copy.deepcopy(error)):
                assert type(again) is kind
                assert (str(again), again.args, vars(again)) == (str(error), error.args, vars(error))


def test_there_are_errors_of_every_part(kinds: list[type[BaseException]]):
    parts = {kind.__module__.split(".")[1] for kind in kinds if issubclass(kind, Portable)}

    assert {"client", "errors", "stages"} <= parts
    assert len(kinds) > 50
