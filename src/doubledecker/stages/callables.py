"""Which functions can be guarded how: found out when they are given, not when they are first called."""

import functools
import inspect
from collections.abc import Awaitable, Iterator
from types import BuiltinFunctionType, FunctionType, MethodType
from typing import get_origin

from doubledecker.stages.errors import ChainInvalid

# Nobody stacks as many decorators.
_LEVELS_MAX = 100
_AWAITABLES = ("Awaitable", "Coroutine", "Future", "Task")


def check_async(function: object) -> None:
    """Raise ChainInvalid for a function that cannot be awaited."""
    code = getattr(function, "__code__", None)
    # Asked on every `bound.call`: most functions are seen to be async at once.
    if code is not None and code.co_flags & inspect.CO_COROUTINE:
        return
    if not may_be_awaited(function):
        raise ChainInvalid(
            f"{_named(function)} is a sync function, and this guards async ones: declare it with `async def`, guard it "
            "with `@chain.in_thread` to await it while a thread runs it, or with `@chain.blocking` in a sync program"
        )


def check_sync(function: object, *, guard: str) -> None:
    """Raise ChainInvalid for an async function where a plain one is called."""
    found = function.func if isinstance(function, functools.partial) else function
    if inspect.iscoroutinefunction(found):
        raise ChainInvalid(f"{_named(function)} is async, and `{guard}` guards sync functions: guard it with `@chain`")


def may_be_awaited(function: object) -> bool:
    """Whether calling it may give something to await: it is async, says so, or cannot be known before it is called."""
    return any(map(_gives_awaitable, _levels(function)))


def _levels(function: object) -> Iterator[object]:
    """The function, and what its decorators and partials lead to; a proxy may say that it wraps one for ever."""
    for _ in range(_LEVELS_MAX):
        if function is None:
            return
        yield function
        function = function.func if isinstance(function, functools.partial) else getattr(function, "__wrapped__", None)


def _gives_awaitable(function: object) -> bool:
    if inspect.iscoroutinefunction(function):
        return True
    found = function.__func__ if isinstance(function, MethodType) else function
    if not isinstance(found, FunctionType | BuiltinFunctionType | type | functools.partial):
        found = getattr(type(found), "__call__", None)  # noqa: B004 - an object may have an async __call__
    if isinstance(found, type):
        return issubclass(found, Awaitable)
    if isinstance(found, BuiltinFunctionType | functools.partial):
        return False
    if not isinstance(found, FunctionType) or inspect.iscoroutinefunction(found):
        return True  # what is no function even then cannot be known
    return found.__name__ == "<lambda>" or _says_awaitable(found.__annotations__.get("return"))


def _says_awaitable(annotation: object) -> bool:
    if isinstance(annotation, str):
        return any(word in annotation for word in _AWAITABLES)
    kind = get_origin(annotation) or annotation
    return isinstance(kind, type) and issubclass(kind, Awaitable)


def _named(function: object) -> str:
    return str(getattr(function, "__qualname__", None) or repr(function))
