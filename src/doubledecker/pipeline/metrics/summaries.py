"""Sum: what the tables of measures say of a stretch of time, as one bounded value; without Spark, so without its start.

Parts about the same are added where they are read, so it does not matter whether they have been folded yet. Rows are
read once, some at a time, and added to all totals that want them.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime

import pyarrow as pa
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError

from doubledecker.errors import LakeUnfit
from doubledecker.lake import snapshots
from doubledecker.model import moment
from doubledecker.model.summary import FlowSummary, Moment, Receiving, Spread, Summary
from doubledecker.pipeline.lake import tables
from doubledecker.pipeline.metrics import measures, queue_service, sketches
from doubledecker.pipeline.metrics.measures import Measure
from doubledecker.pipeline.metrics.queue_service import LARGEST_MAX, QueueTotals
from doubledecker.pipeline.metrics.sketches import Least, Row, Totals


def summarize(root: str, *, span: str, since: datetime, until: datetime, complete_until: int = 0) -> Summary:
    """All measures of a stretch of time."""
    totals = _Totals()
    for name, wanted in totals.by_measure().items():
        for rows in batches(root, name, span=span, since=since, until=until):
            for some in wanted:
                some.add(rows)
    moments = _moments(totals)
    return Summary(
        span,
        moment.to_ms(since),
        moment.to_ms(until),
        complete_until,
        _total(totals, moments, moment.to_ms(since)),
        moments,
        _flows(totals.by_topic, totals.topic_keys, "topic"),
        _flows(totals.by_tenant, totals.tenant_keys, "tenant"),
        _receivings(totals),
        queue_service.servings(totals.queues, [moment.at for moment in moments]),
    )


def by_hour(root: str, *, since: datetime, until: datetime) -> dict[int, int]:
    """How many events there were in each hour, by when it begins."""
    totals = Totals(["at"], ["events"])
    for rows in batches(root, "events", span="hour", since=since, until=until):
        totals.add(rows)
    return {moment.to_ms(_datetime(row["at"])): _whole(row["events"]) for row in totals.rows()}


def reach(root: str) -> tuple[datetime, datetime] | None:
    """The times between which there are measures, by the tables' logs; None when there are none."""
    bounds = []
    for name in measures.MEASURES:
        with _readable(measures.table_of(root, name).uri) as table:
            parts = tables.parts(table) if table is not None else []
        minutes = [part for part in parts if part.values["span"] == "minute"]
        bounds += [(part.at_min, part.at_max) for part in minutes if part.at_min and part.at_max]
    return (min(least for least, _ in bounds), max(most for _, most in bounds)) if bounds else None


def batches(root: str, name: str, *, span: str, since: datetime, until: datetime) -> Iterator[pa.Table]:
    """The rows of a measure from `since` until before `until`, some at a time; none when there is no such table."""
    measure = measures.TABLES[name]
    bounds = [f"at {sign} timestamp '{_iso(moment)}'" for sign, moment in ((">=", since), ("<", until))]
    days = [f"date {sign} '{moment.astimezone(UTC):%Y-%m-%d}'" for sign, moment in ((">=", since), ("<=", until))]
    predicate = " and ".join([f"span = '{span}'", *days, *bounds])
    with _readable(measures.table_of(root, name).uri) as table:
        if table is not None:
            there = {column.name for column in table.schema().fields}
            names = [column for column in measure.schema.names if column in there]
            # By Arrow's own reader, whose errors have names: those of delta-rs' reader are bare exceptions.
            for batch in pa.RecordBatchReader.from_stream(table.scan(columns=names, predicate=predicate)):
                yield _completed(measure, pa.table(batch))


def _completed(measure: Measure, rows: pa.Table) -> pa.Table:
    """Rows with all columns of today: a sum that a table, or a row of it, does not have yet adds nothing."""
    columns = []
    for column in measure.schema:
        is_there = column.name in rows.column_names
        values = rows[column.name].cast(column.type) if is_there else pa.nulls(rows.num_rows, column.type)
        columns.append(values.fill_null(0) if column.name in measure.sums else values)
    return pa.table(columns, schema=measure.schema)


@contextmanager
def _readable(uri: str) -> Iterator[DeltaTable | None]:
    """A table, None when there is none; raises LakeUnfit when it cannot be read."""
    try:
        yield DeltaTable(uri) if DeltaTable.is_deltatable(uri) else None
    except (DeltaError, pa.ArrowException, OSError) as error:
        raise LakeUnfit(f"cannot read the measures {uri}: {snapshots.reason(error)}") from error


class _Totals:
    """All that is added up for a summary."""

    def __init__(self) -> None:
        flows = ("events", "bytes")
        self.events, self.tenants = Totals(["at"], flows), Totals(["at", "tenant"])
        self.by_topic, self.by_tenant = Totals(["topic"], flows), Totals(["tenant"], flows)
        self.keys, self.topic_keys, self.tenant_keys = Least("at"), Least("topic"), Least("tenant")
        self.attempts = Totals(["at"], ["attempts", "delivered", "retries"])
        self.by_subscriber = Totals(["subscriber"], measures.MEASURES["attempts"].sums)
        self.durations = Totals(["at", "kind", "bucket"], ["count"])
        self.subscriber_durations = Totals(["subscriber", "kind", "bucket"], ["count"])
        self.queues = QueueTotals()

    def by_measure(self) -> dict[str, Sequence[Totals | Least]]:
        """What each table's rows are added to."""
        flows: list[Totals | Least] = [self.events, self.tenants, self.by_topic, self.by_tenant]
        return {
            "events": [*flows, self.keys, self.topic_keys, self.tenant_keys],
            "attempts": [self.attempts, self.by_subscriber],
            "durations": [self.durations, self.subscriber_durations],
            **self.queues.by_measure(),
        }


def _moments(totals: _Totals) -> list[Moment]:
    rows: dict[object, Row] = {row["at"]: {} for row in totals.queues.moments_served.rows()}
    for row in (*totals.events.rows(), *totals.attempts.rows()):
        rows.setdefault(row["at"], {}).update(row)
    tenants = Counter(row["at"] for row in totals.tenants.rows())
    keys, spreads = totals.keys.counts(), _spreads(totals.durations, "at")

    def number(at: object, name: str) -> int:
        return _whole(rows[at].get(name, 0))

    return [
        Moment(
            moment.to_ms(_datetime(at)),
            number(at, "events"),
            number(at, "bytes"),
            tenants[at],
            keys.get(at, 0),
            number(at, "attempts"),
            number(at, "delivered"),
            number(at, "retries"),
            spreads.get((at, "took")),
            spreads.get((at, "age")),
        )
        for at in sorted(rows, key=_datetime)
    ]


def _total(totals: _Totals, moments: Sequence[Moment], since_ms: int) -> Moment:
    """The whole stretch as if it were one moment."""
    merged: dict[str, Counter[int]] = {"took": Counter(), "age": Counter()}
    for row in totals.durations.rows():
        merged[str(row["kind"])][_whole(row["bucket"])] += _whole(row["count"])
    return Moment(
        since_ms,
        sum(moment.events for moment in moments),
        sum(moment.bytes for moment in moments),
        len(totals.by_tenant.rows()),
        totals.tenant_keys.count(),
        sum(moment.attempts for moment in moments),
        sum(moment.delivered for moment in moments),
        sum(moment.retries for moment in moments),
        sketches.spread(merged["took"]),
        sketches.spread(merged["age"]),
    )


def _flows(sums: Totals, keys: Least, by: str) -> list[FlowSummary]:
    counts = keys.counts()
    return [
        FlowSummary(str(row[by]), _whole(row["events"]), _whole(row["bytes"]), counts.get(row[by], 0))
        for row in _largest(sums.rows(), "events", by)
    ]


def _receivings(totals: _Totals) -> list[Receiving]:
    spreads = _spreads(totals.subscriber_durations, "subscriber")
    return [
        Receiving(
            str(row["subscriber"]),
            _whole(row["attempts"]),
            {word: _whole(row[word]) for word in measures.OUTCOMES},
            _whole(row["retries"]),
            _whole(row["events"]),
            spreads.get((row["subscriber"], "took")),
            spreads.get((row["subscriber"], "age")),
        )
        for row in _largest(totals.by_subscriber.rows(), "attempts", "subscriber")
    ]


def _spreads(durations: Totals, by: str) -> dict[tuple[object, str], Spread | None]:
    """Percentiles by the values of a column and by kind."""
    counts: dict[tuple[object, str], dict[int, int]] = {}
    for row in durations.rows():
        counts.setdefault((row[by], str(row["kind"])), {})[_whole(row["bucket"])] = _whole(row["count"])
    return {key: sketches.spread(each) for key, each in counts.items()}


def _largest(rows: Iterable[Row], amount: str, name: str) -> list[Row]:
    return sorted(rows, key=lambda row: (-_whole(row[amount]), str(row[name])))[:LARGEST_MAX]


def _datetime(value: object) -> datetime:
    assert isinstance(value, datetime)
    return value


def _whole(value: object) -> int:
    assert isinstance(value, int)
    return value


def _iso(at: datetime) -> str:
    return at.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
