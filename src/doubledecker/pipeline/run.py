"""The pipeline's process: one Spark application that keeps all steps going, until stopped or until all is done."""

import asyncio
import contextlib
import signal
import threading
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from msgspec import structs
from pyspark.sql import SparkSession

from doubledecker import clock, log
from doubledecker.assembly import build
from doubledecker.assembly.settings import Settings
from doubledecker.errors import BadRequest, BusAway, SettingInvalid
from doubledecker.lake import commits
from doubledecker.model.step import RunReport, StepReport
from doubledecker.pipeline import session, steps
from doubledecker.pipeline.bulk.delivery import Bulk
from doubledecker.pipeline.erase.eraser import Eraser
from doubledecker.pipeline.lake import tables, versions
from doubledecker.pipeline.lake.maintenance import Maintainer, Retention
from doubledecker.pipeline.land import journal_reader, landing
from doubledecker.pipeline.land.journal_reader import Access
from doubledecker.pipeline.land.landing import Lander, Pace
from doubledecker.pipeline.metrics import latest, measures, queue_samples, rollup
from doubledecker.pipeline.replay.replayer import Replayer
from doubledecker.pipeline.search import SparkReadContext
from doubledecker.pipeline.session import SessionPlan
from doubledecker.pipeline.sources import mapping, streaming
from doubledecker.pipeline.sources.config import SourceConfig, Sources
from doubledecker.pipeline.sources.incremental import BookmarkConsumer
from doubledecker.pipeline.sources.streaming import StreamingSource
from doubledecker.pipeline.steps import Keeper, PipelineStep, Round
from doubledecker.store import machine, pipeline
from doubledecker.store.partitions import Partition

# The steps of the pipeline, in the order of the flow.
#
# In one pass (`--once`) each phase follows the one before: what is consumed is landed, and what has landed is used.

_CONSUME, _LAND, _USE = range(3)
# Some thousand events make a Parquet file that is worth its metadata: so many need not wait for `land_interval_s`.
LAND_BYTES = 1_048_576
# Landing writes a file every ten seconds at the most; sixty of them are joined while they are still cheap to read.
_TEND_INTERVAL_S = 600.0

_log = log.get("pipeline")


@dataclass(frozen=True)
class PipelineParts:
    """What a pipeline works on, and by which rules."""

    settings: Settings
    ground: SparkReadContext
    archive: str
    sources: Sources
    is_once: bool

    def steps(self) -> list[PipelineStep]:
        """All that it does again and again."""
        settings, ground = self.settings, self.ground
        often_s = settings.pipeline_interval_s
        in_bulk = Bulk(ground.spark, settings, ground.root)
        return [
            *map(self._source, self.sources.all),
            *(PipelineStep(name, partial(self._land, self._lander(name)), often_s, _LAND) for name in landing.TABLES),
            PipelineStep("measure", self._measure, settings.measure_interval_s, _USE),
            PipelineStep("tend", partial(self._tend, self._tender), _TEND_INTERVAL_S, _USE),
            PipelineStep("bulk", in_bulk.act, often_s, _USE, in_bulk.close),
            PipelineStep("replay", Replayer(ground, settings).round, often_s, _USE),
            PipelineStep("erase", Eraser(ground).round, often_s, _USE),
        ]

    def _source(self, source: SourceConfig) -> PipelineStep:
        spark = self.ground.spark
        name, interval_s = f"source:{source.name}", source.interval_s or self.settings.pipeline_interval_s
        outlet = streaming.outlet_of(self.ground.access, self.ground.root, self.sources, source)
        if source.mode == "batch":
            return PipelineStep(name, BookmarkConsumer(spark, source, outlet).consume, interval_s, _CONSUME)
        consumer = StreamingSource(spark, source, outlet, interval_s=interval_s)
        return PipelineStep(name, partial(consumer.consume, is_once=self.is_once), interval_s, _CONSUME, consumer.close)

    @property
    def _tender(self) -> Maintainer:
        kept = self.settings
        rules = Retention(kept.lake_retention_days, kept.topics_kept_days, kept.lake_retention_attempts_days)
        return Maintainer(self.ground.spark, self.ground.root, rules)

    def _lander(self, name: str) -> Lander:
        ground, kept = self.ground, self.settings
        pace = Pace(kept.land_interval_s, LAND_BYTES, build.memory_rules(kept))
        return Lander(ground.spark, ground.access, ground.root, name, self.archive, None if self.is_once else pace)

    def _land(self, lander: Lander) -> Round:
        done = lander.round()
        return Round(done.rows, done.has_more, done.from_ms, done.size.rows, done.size.bytes, done.size.files)

    def _measure(self) -> Round:
        spark, access, root = self.ground.spark, self.ground.access, self.ground.root
        by_name = {name: rollup.measure(spark, root, name, partitions=access.partitions) for name in measures.MEASURES}
        done = by_name.values()
        interval_ms, is_active = int(self.settings.measure_interval_s * 1000), by_name["settlements"].rows > 0
        queue_samples.sample(access, root, interval_ms=interval_ms, is_active=is_active)
        waiting = measures.table_of(root, measures.WAITING.name)
        rollup.fold(spark, waiting, versions.of(waiting), measures.WAITING)
        latest.report(access, root)
        size = tables.total(each.size for each in done)
        rows, has_more = sum(each.rows for each in done), any(each.has_more for each in done)
        return Round(rows, has_more, 0, size.rows, size.bytes, size.files)

    def _tend(self, tender: Maintainer) -> Round:
        done = tender.round()
        if done.joined or done.removed or done.dropped:
            _log.info("lake.tended", joined=done.joined, removed=done.removed, dropped=done.dropped)
        return Round(0)


BEAT_S = 2.0
# After this a round that still runs is cut short: the next start repeats it, and nothing is lost or doubled.
_ROUND_S_MAX = 3.0


def run(
    settings: Settings,
    *,
    root: str,
    sources: Sources,
    is_once: bool,
    takes_over: bool,
    stop: threading.Event | None = None,
) -> bool:
    """Run all steps, until a signal or `stop` ends it; returns whether every one did what it had to."""
    access = Access.by(settings)
    began_at = clock.now_ms()
    reporter = StatusReporter(access, RunReport("starting", began_at, began_at, settings.spark_master, root))
    stop = stop or threading.Event()
    with reporter.reporting():
        if not settings.lake_shared:
            _close(root)
        archive = _prepare(access, root, sources, takes_over=takes_over)
        spark = session.open_session(SessionPlan.by(settings))
        with _closing(spark, stop) as death, _stopped_by_signals(stop):
            _check(spark, sources)
            master = str(spark.sparkContext.master)
            reporter.report = structs.replace(reporter.report, master=master)
            reporter.report_run("running")
            _log.info("pipeline.started", master=master, lake=root)
            wanted = PipelineParts(
                settings, SparkReadContext(spark, access, root), archive, sources, is_once=is_once
            ).steps()
            keepers = [Keeper(step, reporter.report_step) for step in wanted]
            is_done = steps.pass_all(keepers, stop) if is_once else steps.keep_all(keepers, stop)
    if death.is_set():
        _log.error("spark.died", master=master)
    _log.info("pipeline.stopped")
    return is_done and not death.is_set()


@dataclass
class StatusReporter:
    """Writes to Redis how the process and its steps are; to a bus that is away, the next time."""

    access: Access
    report: RunReport

    def report_run(self, state: str) -> None:
        """Report how the process is."""
        self.report = structs.replace(self.report, state=state, at=clock.now_ms())
        self._send(lambda home: pipeline.report_run(home, self.report))

    def report_step(self, name: str, report: StepReport) -> None:
        """Report how a step is."""
        self._send(lambda home: pipeline.report_step(home, name, report))

    @contextlib.contextmanager
    def reporting(self) -> Iterator[None]:
        """Report again and again while the block runs, and at its end that the run is over."""
        over = threading.Event()
        beating = threading.Thread(target=self._beat, args=(over,), name="beat", daemon=True)
        beating.start()
        try:
            yield
        finally:
            over.set()
            beating.join()
            self.report_run("stopped")

    def _beat(self, over: threading.Event) -> None:
        while not over.is_set():
            self.report_run(self.report.state)
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
    # A path that cannot be a lake is reported by the table that is not opened there.
    with contextlib.suppress(OSError):
        if not machine.keep_private(Path(root), marks=landing.TABLES):
            _log.warning("lake.exposed", lake=root)


def _prepare(access: Access, root: str, sources: Sources, *, takes_over: bool) -> str:
    """What can go wrong goes wrong here, before Spark takes its seconds to start."""
    if sources.all and not sources.checkpoints and not commits.is_local(root):
        raise SettingInvalid(
            f"{sources.file}: there is no checkpoints; the lake {root} is no folder, so configure where Spark keeps "
            f"how far each source has come: a folder or URL that it reaches"
        )
    if commits.is_local(root):
        # A path that cannot be a lake is reported by the table that is not opened there.
        with contextlib.suppress(OSError):
            commits.check_links(root)
    for name in landing.TABLES:
        landing.table_of(root, name).open()
    archive = landing.archive_of(root)
    asyncio.run(landing.register(access, root, archive, takes_over=takes_over))
    return archive


def _check(spark: SparkSession, sources: Sources) -> None:
    """What only Spark knows of them."""
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
