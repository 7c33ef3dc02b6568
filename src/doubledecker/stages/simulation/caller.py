"""A caller: the task of one simulated event, with what a simulation needs of a task and no more.

asyncio's own tasks have names, are kept in a list of all tasks, begin and end in a turn of the loop of their own, and
can be waited for. That is most of what they cost, and nobody asks for it here. What is inside a chain sees no
difference: while a caller runs it is the current task, it has a context of its own, and it is cancelled as any other.
(asyncio lets others make tasks; "Extending" in its documentation says how.)
"""

import asyncio
import inspect
from asyncio.tasks import _enter_task, _leave_task
from collections.abc import Callable, Coroutine
from contextvars import copy_context

from doubledecker.stages.simulation.loop import VirtualLoop

Work = Coroutine["asyncio.Future[object] | None", None, object]


class SimulatedCaller:
    """Leads a coroutine to its end, and tells which: `succeeded`, `cancelled`, or the class of what it raised."""

    __slots__ = ("_context", "_loop", "_must_cancel", "_requests", "_tell", "_waits_for", "_work", "begun_at")

    def __init__(self, work: Work, tell: "Callable[[SimulatedCaller, str], None]", loop: VirtualLoop) -> None:
        self._work = work
        self._tell = tell
        self._loop = loop
        self._context = copy_context()
        self._requests = 0
        self._must_cancel = False
        self._waits_for: asyncio.Future[object] | None = None
        self.begun_at = loop.now

    def begin(self) -> None:
        """Run until the first wait, or to the end if there is none."""
        self._context.run(self._step)

    def cancel(self, msg: object = None) -> bool:  # noqa: ARG002 - as asyncio's own
        """Ask it to end: it gets a CancelledError where it waits."""
        self._requests += 1
        if self._waits_for is None or not self._waits_for.cancel():
            self._must_cancel = True
        return True

    def done(self) -> bool:
        """Asked by groups of tasks, of the one they belong to."""
        return inspect.getcoroutinestate(self._work) == inspect.CORO_CLOSED

    def cancelling(self) -> int:
        """How often it was asked to end."""
        return self._requests

    def uncancel(self) -> int:
        """Take one such request back."""
        self._requests = max(0, self._requests - 1)
        return self._requests

    def _step(self, _: object = None) -> None:
        self._waits_for = None
        loop = self._loop
        _enter_task(loop, self)  # type: ignore[arg-type]  # a task of our own make
        try:
            if self._must_cancel:
                self._must_cancel = False
                waits_for = self._work.throw(asyncio.CancelledError())
            else:
                waits_for = self._work.send(None)
        except StopIteration:
            how = "succeeded"
        except asyncio.CancelledError:
            how = "cancelled"
        except Exception as error:  # noqa: BLE001 - however an event ends, the simulation goes on
            how = type(error).__name__
        else:
            if waits_for is None:  # a bare yield: let others run
                loop.call_soon(self._step, context=self._context)
                return
            waits_for._asyncio_future_blocking = False  # noqa: SLF001 - how a task tells a future that it was heard
            waits_for.add_done_callback(self._step, context=self._context)
            self._waits_for = waits_for
            if self._must_cancel and waits_for.cancel():
                self._must_cancel = False
            return
        finally:
            _leave_task(loop, self)  # type: ignore[arg-type]
        self._tell(self, how)
