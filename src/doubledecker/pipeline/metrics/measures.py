"""The tables of measures: what each holds, by what, and how two rows about the same become one.

A row is about a span of time, a minute or an hour, that begins at `at`. There may be several rows about the same: each
round adds what was new to it. They become one by adding, column by column; only `keys`, from which distinct keys are
estimated, is merged otherwise (sketches.py). So an hour is its minutes added, and any engine can do it: there is no
average, no percentile and no ratio in these tables that would have to be taken apart again.
"""

from dataclasses import dataclass

import pyarrow as pa

from doubledecker.lake.arrow import MOMENT
from doubledecker.model.outcome import OutcomeKind
from doubledecker.pipeline.lake.tables import LakeTable

SPANS = ("minute", "hour")
OUTCOMES = tuple(kind.value for kind in OutcomeKind)
SETTLEMENTS = ("pulled", "acked", "nacked", "expired", "dead", "redriven")

_FOLDERS = ("span", "date")


@dataclass(frozen=True)
class Measure:
    """One table: the lake's table it is made from, what its rows are about, and what is added up in them."""

    name: str
    source: str
    by: tuple[str, ...]
    sums: tuple[str, ...]
    has_keys: bool = False

    @property
    def schema(self) -> pa.Schema:
        """Its columns, without those that the folders alone need."""
        by = [(name, pa.int32() if name == "bucket" else pa.string()) for name in self.by]
        keys = [("keys", pa.list_(pa.int64()))] if self.has_keys else []
        return pa.schema(
            [("span", pa.string()), ("at", MOMENT), *by, *((name, pa.int64()) for name in self.sums), *keys]
        )


MEASURES = {
    each.name: each
    for each in (
        Measure("events", "events", ("topic", "tenant"), ("events", "bytes"), has_keys=True),
        Measure("attempts", "attempts", ("subscriber",), ("attempts", *OUTCOMES, "retries", "events", "took_ms")),
        # `kind` is took (an attempt, from dialling to its end) or age (an event, from accepted to delivered).
        Measure("durations", "attempts", ("subscriber", "kind", "bucket"), ("count",)),
        Measure("settlements", "settlements", ("queue", "tenant"), (*SETTLEMENTS, "took_ms")),
    )
}


# What queue_samples.py adds: message-milliseconds that tenants waited, how long that was observed, and weight times
# that; `timed_ms` is for how long of that the queue charged tenants by time.
WAITING = Measure("waiting", "", ("queue", "tenant"), ("waited_ms", "observed_ms", "weighted_ms", "timed_ms"))
# The name in `tenant` of a row that says for how long its queue was observed, and timed; no tenant has an empty name.
OBSERVED = ""
TABLES = {**MEASURES, WAITING.name: WAITING}


def table_of(root: str, name: str) -> LakeTable:
    """Where a measure is kept."""
    schema = TABLES[name].schema.append(pa.field("date", pa.date32()))
    return LakeTable(f"{root.rstrip('/')}/measures/{name}", schema, _FOLDERS)
