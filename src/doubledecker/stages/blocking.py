"""Guarded calls for sync programs: the same stages, on a loop in a thread of its own, each call waited for.

There is one implementation of the stages. The caller's thread waits; the loop's thread leads the event through the
stages; each attempt runs the function in a thread of its own, which a timeout leaves running, because a thread cannot
be interrupted. These threads are daemons: a call that hangs does not keep the program from ending. The function sees
the caller's context variables, and not its thread-locals.
"""

import asyncio
import atexit
import functools
import os
import threading
from collections.abc import Callable, Coroutine, Mapping
from concurrent.futures import CancelledError
from contextvars import copy_context
from typing import Any, Concatenate, ParamSpec, Protocol, Self, TypeVar, cast, overload

from doubledecker.stages.bound import Bound
from doubledecker.stages.context import NO_ATTRIBUTES, check_sync
from doubledecker.stages.statistics import Snapshot

P = ParamSpec("P")
Q = ParamSpec("Q")
R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)


class Blocking(Protocol[P, R_co]):
    """A sync function inside a chain, which is bound once in each process."""

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R_co: ...

    @overload
    def __get__(self, instance: None, owner: type, /) -> "Blocking[P, R_co]": ...

    @overload
    def __get__(
        self: "Blocking[Concatenate[Any, Q], R_co]", instance: object, owner: type | None = None, /
    ) -> "Blocking[Q, R_co]": ...

    def bound(self) -> "BlockingBound":
        """The chain: its stages and their snapshots."""
        ...


class BlockingBound:
    """A bound chain for sync programs; any thread may use it. As a context manager it is closed at the end."""

    def __init__(self, bind: Callable[[], Bound]) -> None:
        self._loop = _loop()
        self._bound = _wait_for(_called(bind), self._loop)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def call(self, function: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        """Call the function through the stages."""
        return self.options().call(function, *args, **kwargs)

    def options(
        self,
        *,
        key: str | None = None,
        priority: int = 0,
        deadline_s: float | None = None,
        attributes: Mapping[str, object] = NO_ATTRIBUTES,
    ) -> "BlockingCall":
        """How the next call is sent: `bound.options(priority=1, deadline_s=2.0).call(function, …)`."""
        call = functools.partial(
            self._bound.options, key=key, priority=priority, deadline_s=deadline_s, attributes=attributes
        )
        return BlockingCall(call, self._loop)

    def do(self, action: Callable[[Bound], R]) -> R:
        """Look at the stages or change them, where they run: `bound.do(lambda b: b["bulkhead"].resize(8))`."""
        return _wait_for(_called(functools.partial(action, self._bound)), self._loop)

    def snapshots(self) -> tuple[Snapshot, ...]:
        """Every stage, outermost first."""
        return self.do(Bound.snapshots)

    def close(self) -> None:
        """End the work that goes on in the background."""
        _wait_for(self._bound.close(), self._loop)

    @property
    def is_usable(self) -> bool:
        """Not after a fork: its thread stayed with the parent."""
        return self._loop is _loop()


class BlockingCall:
    """A call with its options."""

    def __init__(self, options: Callable[[], Any], loop: asyncio.AbstractEventLoop) -> None:
        self._options = options
        self._loop = loop

    def call(self, function: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        """Call the function through the stages."""
        check_sync(function, guard="blocking")
        attempts = _Attempts(functools.partial(function, *args, **kwargs))
        try:
            return cast("R", _wait_for(_asked(self._options, attempts.run), self._loop))
        except CancelledError:
            if attempts.interruption is None:
                raise
            raise attempts.interruption from None


async def _asked(options: Callable[[], Any], run: Callable[[], Coroutine[Any, Any, object]]) -> object:
    return await options().call(run)


class _Attempts:
    """Runs the function once for each attempt, in the context of the caller."""

    def __init__(self, function: Callable[[], object]) -> None:
        self._function = function
        self._context = copy_context()
        # SystemExit and the like: no failure of the dependency, and nothing that may end the loop's thread.
        self.interruption: BaseException | None = None

    async def run(self) -> object:
        loop = asyncio.get_running_loop()
        done: asyncio.Future[object] = loop.create_future()

        def work() -> None:
            outcome = _Outcome()
            with outcome:
                # A context may be entered once at a time, and an abandoned attempt may still be in it.
                outcome.result = self._context.copy().run(self._function)
            loop.call_soon_threadsafe(self._settle, done, outcome)

        threading.Thread(target=work, name="doubledecker-stages-call", daemon=True).start()
        return await done

    def _settle(self, done: "asyncio.Future[object]", outcome: "_Outcome") -> None:
        error = outcome.error
        if done.done():
            return
        if error is None:
            done.set_result(outcome.result)
        elif isinstance(error, StopIteration):
            done.set_exception(RuntimeError("the function raised StopIteration, which no future can hold"))
        elif isinstance(error, Exception):
            done.set_exception(error)
        else:
            self.interruption = error
            done.cancel()


class _Outcome:
    """What a block brought: its result, or whatever it raised, which ends here."""

    def __init__(self) -> None:
        self.result: object = None
        self.error: BaseException | None = None

    def __enter__(self) -> None:
        """Nothing yet."""

    def __exit__(self, _kind: object, error: BaseException | None, _traceback: object) -> bool:
        self.error = error
        return True


def blocking(
    bind: Callable[[], Bound], function: Callable[P, R], *, key: Callable[..., str] | None = None
) -> Blocking[P, R]:
    """The sync function inside a chain."""
    check_sync(function, guard="blocking")
    bindings = _Bindings(bind)

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        named = None if key is None else key(*args, **kwargs)
        return bindings.here().options(key=named).call(function, *args, **kwargs)

    call.bound = bindings.here  # type: ignore[attr-defined]  # a function may have attributes
    return cast("Blocking[P, R]", call)


class _Bindings:
    """The chain of one function, bound at its first call, and again after a fork."""

    def __init__(self, bind: Callable[[], Bound]) -> None:
        self._bind = bind
        self._lock = threading.Lock()
        self._bound: BlockingBound | None = None

    def here(self) -> BlockingBound:
        bound = self._bound
        if bound is None or not bound.is_usable:
            with self._lock:
                bound = self._bound
                if bound is None or not bound.is_usable:
                    bound = self._bound = BlockingBound(self._bind)
        return bound


async def _called(action: Callable[[], R]) -> R:
    """On the loop: what a stage keeps is touched by no other thread."""
    return action()


def _wait_for(work: Coroutine[Any, Any, R], loop: asyncio.AbstractEventLoop) -> R:
    outcome = asyncio.run_coroutine_threadsafe(work, loop)
    try:
        return outcome.result()
    finally:
        # After Ctrl-C nobody wants the outcome any more; one that is there cannot be cancelled.
        outcome.cancel()


class _Home:
    """The loop of this process for all blocking chains; a daemon's, started by the first."""

    def __init__(self) -> None:
        self.process = os.getpid()
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self.loop.run_forever, name="doubledecker-stages", daemon=True)
        self._thread.start()
        atexit.register(self._end)

    def _end(self) -> None:
        """Stop the loop before Python takes away what it stands on."""
        if self.process == os.getpid():
            self.loop.call_soon_threadsafe(self.loop.stop)
            self._thread.join(timeout=1.0)


_home: _Home | None = None
_home_lock = threading.Lock()


def _forget_home() -> None:
    """In a child of a fork: the parent's thread is not here, and its lock may be held for ever."""
    global _home, _home_lock
    _home, _home_lock = None, threading.Lock()


os.register_at_fork(after_in_child=_forget_home)


def _loop() -> asyncio.AbstractEventLoop:
    global _home  # noqa: PLW0603 - the same
    with _home_lock:
        if _home is None:
            _home = _Home()
        return _home.loop
