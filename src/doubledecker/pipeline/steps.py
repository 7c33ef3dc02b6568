"""Steps and the rule that keeps them going: each in a thread of its own, so that none waits for another.

A step is repeated while it has more, else after its interval. One that fails is tried again after a pause that doubles
each time; it says so, and the others do not notice. Stopping lets a round end; whatever cuts one short, the next begins
from what is safe.
"""

import re
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from msgspec import structs

from doubledecker import clock, log
from doubledecker.model.step import StepReport

PAUSE_S_MIN, PAUSE_S_MAX = 1.0, 60.0
# Who runs one pass wants to know of a failure soon.
_TRIES_ONCE = 3

# An error of ours, inside the text of one of Spark's: the last is the outermost.
_OURS = re.compile(r"^doubledecker\.errors\.\w+: (.+)$", re.MULTILINE)

_log = log.get("pipeline")


@dataclass(frozen=True)
class Round:
    """What one round of a step did."""

    rows: int
    has_more: bool = False
    from_ms: int = 0
    table_rows: int = 0
    table_bytes: int = 0
    table_files: int = 0
    # Rows that were refused, of all that the step ever had.
    refused: int = 0
    # How long the rows took, where that is not how long the round took.
    took_ms: int = 0
    # What goes wrong in a part of the step while the rest of it goes on.
    trouble: str = ""


@dataclass(frozen=True)
class PipelineStep:
    """Something the pipeline does again and again; in one pass, those of a later `phase` come after the others."""

    name: str
    act: Callable[[], Round]
    interval_s: float
    phase: int = 0
    # Ends what goes on between rounds.
    close: Callable[[], None] = lambda: None


Reporter = Callable[[str, StepReport], None]


class Keeper:
    """Keeps one step going."""

    def __init__(self, step: PipelineStep, report: Reporter) -> None:
        self._step = step
        self._report = report
        self.report = StepReport("starting", at=clock.now_ms())

    @property
    def phase(self) -> int:
        """When in one pass its turn is."""
        return self._step.phase

    def keep(self, stop: threading.Event) -> None:
        """Until stopped."""
        while not stop.is_set():
            stop.wait(self._next_s(self._round(stop)))
        self._step.close()
        self._say(state="stopped", retry_at=0)

    def pass_once(self, stop: threading.Event) -> bool:
        """Until there is no more; returns whether it got there."""
        while not stop.is_set():
            done = self._round(stop)
            if done is not None and not done.has_more:
                return True
            if self.report.failures >= _TRIES_ONCE:
                return False
            stop.wait(self._next_s(done) if done is None else 0)
        return False

    def _round(self, stop: threading.Event) -> Round | None:
        """One round; None when it failed, or was cut short by stopping."""
        self._say(state="working", retry_at=0)
        began_s = time.monotonic()
        try:
            done = self._step.act()
        except Exception as error:  # noqa: BLE001 - the edge of a step: whatever it raises, it is reported and tried again
            if not stop.is_set():
                self._fail(error)
            return None
        took_ms = done.took_ms or max(1, int((time.monotonic() - began_s) * 1000))
        self._say(
            state="waiting",
            rows=self.report.rows + done.rows,
            failures=0,
            from_ms=self.report.from_ms or done.from_ms,
            error=done.trouble,
            table_rows=done.table_rows,
            table_bytes=done.table_bytes,
            table_files=done.table_files,
            refused=done.refused,
        )
        if done.rows:
            self._say(rows_last=done.rows, took_ms=took_ms)
            _log.info("step.done", step=self._step.name, rows=done.rows, took_ms=took_ms)
        return done

    def _fail(self, error: Exception) -> None:
        failures = self.report.failures + 1
        retry_at = clock.now_ms() + int(pause_s(failures) * 1000)
        text = text_of(error)
        self._say(state="failing", failures=failures, retry_at=retry_at, error=text)
        _log.error("step.failed", step=self._step.name, failures=failures, error=text)

    def _next_s(self, done: Round | None) -> float:
        if done is None:
            return pause_s(max(1, self.report.failures))
        return 0.0 if done.has_more else self._step.interval_s

    def _say(self, **changes: str | int) -> None:
        self.report = structs.replace(self.report, at=clock.now_ms(), **changes)
        self._report(self._step.name, self.report)


def text_of(error: BaseException) -> str:
    """What went wrong, in a line; a Spark error goes on for pages: the error of ours in it, or else its first lines."""
    text = str(error)
    ours = _OURS.findall(text)
    return " ".join((ours[-1] if ours else text).split())[:500] or type(error).__name__


def pause_s(failures: int) -> float:
    """How long to wait after so many failures in a row."""
    return min(PAUSE_S_MAX, PAUSE_S_MIN * float(1 << min(failures - 1, 10)))


def keep_all(keepers: Sequence[Keeper], stop: threading.Event) -> bool:
    """Keep all steps going until stopped; returns whether none was failing then."""
    with ThreadPoolExecutor(len(keepers), thread_name_prefix="step") as threads:
        for keeper in keepers:
            threads.submit(keeper.keep, stop)
    return not any(keeper.report.failures for keeper in keepers)


def pass_all(keepers: Sequence[Keeper], stop: threading.Event) -> bool:
    """Run every step until it has no more, phase by phase; returns whether all got there."""
    passing = []
    for phase in sorted({keeper.phase for keeper in keepers}):
        with ThreadPoolExecutor(len(keepers), thread_name_prefix="step") as threads:
            passing += [threads.submit(keeper.pass_once, stop) for keeper in keepers if keeper.phase == phase]
    return all(each.result() for each in passing)
