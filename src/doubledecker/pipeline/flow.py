"""The steps of the pipeline, in the order of the flow.

In one pass (`--once`) each phase follows the one before: what is consumed is landed, and what has landed is used.
"""

from dataclasses import dataclass
from functools import partial

from doubledecker import log
from doubledecker.assembly import build
from doubledecker.assembly.settings import Settings
from doubledecker.pipeline.bulk.delivery import Bulk
from doubledecker.pipeline.erase.eraser import Eraser
from doubledecker.pipeline.lake import tables, versions
from doubledecker.pipeline.lake.maintenance import Retention, Tender
from doubledecker.pipeline.land import landing
from doubledecker.pipeline.land.landing import Lander, Pace
from doubledecker.pipeline.metrics import latest, measures, queue_samples, rollup
from doubledecker.pipeline.replay.replayer import Replayer
from doubledecker.pipeline.search import SparkReadContext
from doubledecker.pipeline.sources import streaming
from doubledecker.pipeline.sources.config import SourceConfig, Sources
from doubledecker.pipeline.sources.incremental import BookmarkConsumer
from doubledecker.pipeline.sources.streaming import StreamingSource
from doubledecker.pipeline.steps import PipelineStep, Round

_CONSUME, _LAND, _USE = range(3)

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
            PipelineStep("tend", partial(self._tend, self._tender), settings.tend_interval_s, _USE),
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
    def _tender(self) -> Tender:
        kept = self.settings
        rules = Retention(kept.lake_retention_days, kept.topics_kept_days, kept.lake_retention_attempts_days)
        return Tender(self.ground.spark, self.ground.root, rules)

    def _lander(self, name: str) -> Lander:
        ground, kept = self.ground, self.settings
        pace = Pace(kept.land_interval_s, kept.land_bytes, build.memory_rules(kept))
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
        latest.tell(access, root)
        size = tables.total(each.size for each in done)
        rows, has_more = sum(each.rows for each in done), any(each.has_more for each in done)
        return Round(rows, has_more, 0, size.rows, size.bytes, size.files)

    def _tend(self, tender: Tender) -> Round:
        done = tender.round()
        if done.joined or done.removed or done.dropped:
            _log.info("lake.tended", joined=done.joined, removed=done.removed, dropped=done.dropped)
        return Round(0)
