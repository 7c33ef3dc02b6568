"""The pipeline's process: one Spark application that keeps all steps going, until stopped or until all is done."""

import asyncio
import contextlib
import signal
import threading
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from msgspec import structs
from pyspark.sql import SparkSession

from doubledecker import clock, log
from doubledecker.assembly.settings import Settings
from doubledecker.errors import BadRequest, BusAway, SettingInvalid
from doubledecker.lake import commits
from doubledecker.model.step import RunReport, StepReport
from doubledecker.pipeline import session, steps
from doubledecker.pipeline.flow import PipelineParts
from doubledecker.pipeline.land import journal_reader, landing
from doubledecker.pipeline.land.journal_reader import Access
from doubledecker.pipeline.search import SparkReadContext
from doubledecker.pipeline.session import SessionPlan
from doubledecker.pipeline.sources import mapping
from doubledecker.pipeline.sources.config import Sources
from doubledecker.pipeline.steps import Keeper
from doubledecker.store import pipeline, private
from doubledecker.store.partitions import Partition

BEAT_S = 2.0
# After this a round that still runs is cut short: the next start repeats it, and nothing is lost or doubled.
_ROUND_S_MAX = 3.0

_log = log.get("pipeline")


def run(
    settings: Settings,
    *,
    root: str,
    sources: Sources,
    is_once: bool,
    takes_over: bool,
    stop: threading.Event | None = None,
) -> bool:
    """Run all steps, until a signal or `stop` ends it; says whether every one did what it had to."""
    access = Access.by(settings)
    began_at = clock.now_ms()
    teller = Teller(access, RunReport("starting", began_at, began_at, settings.spark_master, root))
    stop = stop or threading.Event()
    with teller.telling():
        if not settings.lake_shared:
            _close(root)
        archive = _prepare(access, root, sources, takes_over=takes_over)
        spark = session.open_session(SessionPlan.by(settings))
        with _closing(spark, stop) as death, _stopped_by_signals(stop):
            _check(spark, sources)
            master = str(spark.sparkContext.master)
            teller.report = structs.replace(teller.report, master=master)
            teller.tell("running")
            _log.info("pipeline.started", master=master, lake=root)
            wanted = PipelineParts(
                settings, SparkReadContext(spark, access, root), archive, sources, is_once=is_once
            ).steps()
            keepers = [Keeper(step, teller.tell_step) for step in wanted]
            is_done = steps.pass_all(keepers, stop) if is_once else steps.keep_all(keepers, stop)
    if death.is_set():
        _log.error("spark.died", master=master)
    _log.info("pipeline.stopped")
    return is_done and not death.is_set()


@dataclass
class Teller:
    """Says in Redis how the process and its steps fare; a bus that is away is told the next time."""

    access: Access
    report: RunReport

    def tell(self, state: str) -> None:
        """Say how the process fares."""
        self.report = structs.replace(self.report, state=state, at=clock.now_ms())
        self._send(lambda home: pipeline.report_run(home, self.report))

    def tell_step(self, name: str, report: StepReport) -> None:
        """Say how a step fares."""
        self._send(lambda home: pipeline.report_step(home, name, report))

    @contextlib.contextmanager
    def telling(self) -> Iterator[None]:
        """Say it again and again while the block runs, and at its end that it is over."""
        over = threading.Event()
        beating = threading.Thread(target=self._beat, args=(over,), name="beat", daemon=True)
        beating.start()
        try:
            yield
        finally:
            over.set()
            beating.join()
            self.tell("stopped")

    def _beat(self, over: threading.Event) -> None:
        while not over.is_set():
            self.tell(self.report.state)
            over.wait(BEAT_S)

    def _send(self, act: Callable[[Partition], Awaitable[None]]) -> None:
        async def send() -> None:
            async with journal_reader.connected(self.access, patience_s=0) as bus:
                await act(bus.home)

        with contextlib.suppress(BusAway):
            asyncio.run(send())


def _close(root: str) -> None:
    """Keep the lake for our user alone, where it is a folder."""
    if not commits.is_local(root):
        return
    # A path that cannot be a lake is told of by the table that is not opened there.
    with contextlib.suppress(OSError):
        if not private.keep(Path(root), marks=landing.TABLES):
            _log.warning("lake.exposed", lake=root)


def _prepare(access: Access, root: str, sources: Sources, *, takes_over: bool) -> str:
    """What can go wrong goes wrong here, before Spark takes its seconds to start."""
    if sources.all and not sources.checkpoints and not commits.is_local(root):
        raise SettingInvalid(
            f"{sources.file}: there is no checkpoints; the lake {root} is no folder, so say where Spark keeps how far "
            f"each source has come: a folder or URL that it reaches"
        )
    if commits.is_local(root):
        # A path that cannot be a lake is told of by the table that is not opened there.
        with contextlib.suppress(OSError):
            commits.check_links(root)
    for name in landing.TABLES:
        landing.table_of(root, name).open()
    archive = landing.archive_of(root)
    asyncio.run(landing.register(access, archive, takes_over=takes_over))
    return archive


def _check(spark: SparkSession, sources: Sources) -> None:
    """What only Spark can say of them."""
    for source in sources.all:
        try:
            mapping.check(spark, source)
        except BadRequest as error:
            raise SettingInvalid(f"{sources.file}: source {source.name!r}: {error}") from error


@contextlib.contextmanager
def _stopped_by_signals(stop: threading.Event) -> Iterator[None]:
    """SIGTERM and SIGINT end the block's work in good order; Spark's own handler would only cancel its jobs."""
    former = {number: signal.signal(number, lambda *_: stop.set()) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for number, handler in former.items():
            signal.signal(number, handler)


@contextlib.contextmanager
def _closing(spark: SparkSession, stop: threading.Event) -> Iterator[threading.Event]:
    """Stop Spark at the end; a round that does not end soon after the wish to stop is cut short.

    When the JVM dies, or its Spark context ends, there is nothing to go on with: the event that is yielded is set, the
    process ends, and its supervisor starts it again.
    """
    finished, death = threading.Event(), threading.Event()

    def watch() -> None:
        while not stop.wait(BEAT_S):
            if not session.is_alive(spark):
                death.set()
                stop.set()
        if not finished.wait(_ROUND_S_MAX) and not death.is_set():
            # Cancelling a job leaves its Python running; this does not.
            session.close(spark)

    threading.Thread(target=watch, name="watch", daemon=True).start()
    try:
        yield death
    finally:
        finished.set()
        stop.set()
        if session.is_alive(spark):
            session.close(spark)
