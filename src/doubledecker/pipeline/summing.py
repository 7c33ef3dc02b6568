"""Sum: what the tables of measures say of a stretch of time, as one bounded value; without Spark, so without its start.

Parts about the same are added where they are read, so it does not matter whether they have been folded yet.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from itertools import groupby
from operator import itemgetter

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError

from doubledecker.errors import LakeUnfit
from doubledecker.model.summary import Flow, Moment, Receiving, Serving, Spread, Summary
from doubledecker.pipeline import measures, sketches

# Of topics, tenants, subscribers, queues and a queue's tenants: more would not be looked at, and have to be kept.
LARGEST_MAX = 20

Row = dict[str, object]
Counts = dict[int, int]


def read(root: str, name: str, *, span: str, since: datetime, until: datetime) -> pa.Table:
    """The rows of a measure from `since` until before `until`; one without rows when there is no such table."""
    measure = measures.MEASURES[name]
    uri = measures.table_of(root, name).uri
    try:
        if not DeltaTable.is_deltatable(uri):
            return measure.schema.empty_table()
        bounds = [f"at {sign} timestamp '{_iso(moment)}'" for sign, moment in ((">=", since), ("<", until))]
        days = [f"date {sign} '{moment.astimezone(UTC):%Y-%m-%d}'" for sign, moment in ((">=", since), ("<=", until))]
        predicate = " and ".join([f"span = '{span}'", *days, *bounds])
        found = pa.table(DeltaTable(uri).scan(columns=measure.schema.names, predicate=predicate))
    except (DeltaError, OSError) as error:
        raise LakeUnfit(f"cannot read the measures {uri}: {error}") from error
    return found.cast(measure.schema).combine_chunks()


def summarize(root: str, *, span: str, since: datetime, until: datetime, complete_until: int = 0) -> Summary:
    """All measures of a stretch of time."""
    found = {name: read(root, name, span=span, since=since, until=until) for name in measures.MEASURES}
    moments = _moments(found)
    ats = [moment.at for moment in moments]
    return Summary(
        span,
        _ms(since),
        _ms(until),
        complete_until,
        _total(found, _ms(since)),
        moments,
        _flows(found["events"], "topic"),
        _flows(found["events"], "tenant"),
        _receivings(found["attempts"], found["durations"]),
        _servings(found["settlements"], ats),
    )


def by_hour(root: str, *, since: datetime, until: datetime) -> dict[int, int]:
    """How many events there were in each hour, by when it begins."""
    events = read(root, "events", span="hour", since=since, until=until)
    return {_ms(_datetime(row["at"])): _whole(row["events"]) for row in _sums(events, ["at"], ["events"])}


def reach(root: str) -> tuple[datetime, datetime] | None:
    """From when to when there are measures at all, by the tables' logs; None when there are none."""
    bounds = []
    for name in measures.MEASURES:
        uri = measures.table_of(root, name).uri
        if DeltaTable.is_deltatable(uri):
            adds = pa.table(DeltaTable(uri).get_add_actions(flatten=True)).to_pylist()
            bounds += [(add["min.at"], add["max.at"]) for add in adds if add["partition.span"] == "minute"]
    return (min(least for least, _ in bounds), max(most for _, most in bounds)) if bounds else None


def _moments(found: Mapping[str, pa.Table]) -> list[Moment]:
    events = {row["at"]: row for row in _sums(found["events"], ["at"], ["events", "bytes"])}
    attempts = {row["at"]: row for row in _sums(found["attempts"], ["at"], ["attempts", "delivered", "retries"])}
    tenants, keys = _tenants(found["events"], "at"), _keys(found["events"], "at")
    spreads = _spreads(found["durations"], "at")
    settled = {row["at"] for row in _sums(found["settlements"], ["at"], ["pulled"])}
    ats = sorted(datetimes(events.keys() | attempts.keys() | settled))
    return [
        _moment(
            at,
            {**events.get(at, {}), **attempts.get(at, {})},
            tenants=tenants.get(at, 0),
            keys=keys.get(at, 0),
            took=spreads.get((at, "took")),
            age=spreads.get((at, "age")),
        )
        for at in ats
    ]


def _total(found: Mapping[str, pa.Table], since_ms: int) -> Moment:
    """The whole stretch as if it were one moment."""
    as_one = {name: _with(table, "all", pa.array([""] * table.num_rows)) for name, table in found.items()}
    sums = [*_sums(as_one["events"], ["all"], ["events", "bytes"])]
    sums += _sums(as_one["attempts"], ["all"], ["attempts", "delivered", "retries"])
    spreads = _spreads(as_one["durations"], "all")
    return _moment(
        datetime.fromtimestamp(since_ms / 1000, UTC),
        {name: value for row in sums for name, value in row.items()},
        tenants=_tenants(as_one["events"], "all").get("", 0),
        keys=_keys(as_one["events"], "all").get("", 0),
        took=spreads.get(("", "took")),
        age=spreads.get(("", "age")),
    )


def _moment(
    at: datetime, row: Mapping[str, object], *, tenants: int, keys: int, took: Spread | None, age: Spread | None
) -> Moment:
    names = ("events", "bytes", "attempts", "delivered", "retries")
    events, size, attempts, delivered, retries = (_whole(row.get(name, 0)) for name in names)
    return Moment(_ms(at), events, size, tenants, keys, attempts, delivered, retries, took, age)


def _flows(events: pa.Table, by: str) -> list[Flow]:
    keys = _keys(events, by)
    rows = _sums(events, [by], ["events", "bytes"])
    largest = sorted(rows, key=lambda row: (-_whole(row["events"]), str(row[by])))[:LARGEST_MAX]
    return [Flow(str(row[by]), _whole(row["events"]), _whole(row["bytes"]), keys.get(row[by], 0)) for row in largest]


def _receivings(attempts: pa.Table, durations: pa.Table) -> list[Receiving]:
    spreads = _spreads(durations, "subscriber")
    rows = _sums(attempts, ["subscriber"], measures.MEASURES["attempts"].sums)
    largest = sorted(rows, key=lambda row: (-_whole(row["attempts"]), str(row["subscriber"])))[:LARGEST_MAX]
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
        for row in largest
    ]


def _servings(settlements: pa.Table, ats: Sequence[int]) -> list[Serving]:
    whole = _grouped(_sums(settlements, ["queue"], measures.SETTLEMENTS), "queue")
    tenants = _grouped(_sums(settlements, ["queue", "tenant"], ["pulled"]), "queue")
    moments = _grouped(_sums(settlements, ["queue", "at", "tenant"], ["pulled"]), "queue")
    largest = sorted(whole, key=lambda name: (-_whole(whole[name][0]["pulled"]), name))[:LARGEST_MAX]
    return [_serving(name, whole[name][0], tenants[name], moments[name], ats) for name in largest]


def _serving(
    name: str, whole: Row, tenants: Sequence[Row], moments: Iterable[Row], ats: Sequence[int]
) -> Serving:  # fmt: skip
    served = _whole(whole["pulled"])
    by_moment: dict[int, list[int]] = {}
    for row in moments:
        by_moment.setdefault(_ms(_datetime(row["at"])), []).append(_whole(row["pulled"]))
    largest = sorted(tenants, key=lambda row: (-_whole(row["pulled"]), str(row["tenant"])))[:LARGEST_MAX]
    return Serving(
        name,
        {word: _whole(whole[word]) for word in measures.SETTLEMENTS},
        len(tenants),
        {str(row["tenant"]): _whole(row["pulled"]) / served for row in largest} if served else {},
        sketches.jain([_whole(row["pulled"]) for row in tenants]),
        [sketches.jain(by_moment.get(at, [])) for at in ats],
    )


def _sums(table: pa.Table, by: Sequence[str], names: Sequence[str]) -> list[Row]:
    """The sums of columns, a row for each value of others."""
    found = table.group_by(list(by)).aggregate([(name, "sum") for name in names])
    rows: list[Row] = found.rename_columns([*by, *names]).to_pylist()
    return rows


def _tenants(events: pa.Table, by: str) -> dict[object, int]:
    found = events.group_by([by]).aggregate([("tenant", "count_distinct")])
    return dict(zip(found[by].to_pylist(), found["tenant_count_distinct"].to_pylist(), strict=True))


def _keys(events: pa.Table, by: str) -> dict[object, int]:
    """Distinct keys by the values of a column."""
    lists = events["keys"].combine_chunks() if events.num_rows else pa.array([], pa.list_(pa.int64()))
    pairs = pa.table({by: events[by].take(pc.list_parent_indices(lists)), "hash": pc.list_flatten(lists)})
    apart = pairs.group_by([by, "hash"]).aggregate([]).sort_by([(by, "ascending"), ("hash", "ascending")])
    rows = zip(apart[by].to_pylist(), apart["hash"].to_pylist(), strict=True)
    return {
        value: sketches.distinct([number for _, number in same][: sketches.LEAST_MAX])
        for value, same in groupby(rows, key=itemgetter(0))
    }


def _spreads(durations: pa.Table, by: str) -> dict[tuple[object, str], Spread | None]:
    """Percentiles by the values of a column and by kind."""
    counts: dict[tuple[object, str], Counts] = {}
    for row in _sums(durations, [by, "kind", "bucket"], ["count"]):
        counts.setdefault((row[by], str(row["kind"])), {})[_whole(row["bucket"])] = _whole(row["count"])
    return {key: sketches.spread(each) for key, each in counts.items()}


def _grouped(rows: Iterable[Row], by: str) -> dict[str, list[Row]]:
    found: dict[str, list[Row]] = {}
    for row in rows:
        found.setdefault(str(row[by]), []).append(row)
    return found


def _with(table: pa.Table, name: str, column: pa.Array) -> pa.Table:
    return table.append_column(name, column.cast(pa.string()))


def datetimes(values: Iterable[object]) -> Iterator[datetime]:
    for value in values:
        yield _datetime(value)


def _datetime(value: object) -> datetime:
    assert isinstance(value, datetime)
    return value


def _whole(value: object) -> int:
    assert isinstance(value, int)
    return value


def _ms(moment: datetime) -> int:
    return round(moment.timestamp() * 1000)


def _iso(moment: datetime) -> str:
    return moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
