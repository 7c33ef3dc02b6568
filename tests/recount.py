"""Measures counted once more, straight from the lake's rows and by another engine (DuckDB), to compare with."""

from collections.abc import Iterable
from datetime import UTC, datetime

import duckdb
import pyarrow as pa
from deltalake import DeltaTable

from doubledecker.pipeline.metrics import measures, sketches

Rows = dict[tuple[object, ...], tuple[object, ...]]

_SQL = {
    "events": "select {at}, topic, tenant, count(*), sum(bytes), "
    "count(distinct (tenant, key)) filter (key is not null) from source group by all",
    "attempts": "select {at}, subscriber, count(*), count(*) filter (outcome = 'delivered'), "
    "count(*) filter (outcome = 'refused'), count(*) filter (outcome = 'timed_out'), "
    "count(*) filter (outcome = 'unreachable'), count(*) filter (outcome = 'broken'), "
    "count(*) filter (attempt > 1), sum(len(events)), sum(took_ms) from source group by all",
    "settlements": "select {at}, queue, tenant, count(*) filter (kind = 'pulled'), count(*) filter (kind = 'acked'), "
    "count(*) filter (kind = 'nacked'), count(*) filter (kind = 'expired'), count(*) filter (kind = 'dead'), "
    "count(*) filter (kind = 'redriven'), sum(took_ms) from source group by all",
}
_DURATIONS = """
select {at}, subscriber, 'took' as kind, took_ms as ms, count(*) from source group by all
union all
select moment, subscriber, 'age', greatest(0, ended - ('0x' || left(id, 8) || substr(id, 10, 4))::bigint), count(*)
from (
  select {at} as moment, subscriber, epoch_ms(attempted_at) + took_ms as ended, unnest(events) as id
  from source where outcome = 'delivered'
) where regexp_full_match(id, '[0-9a-f]{{8}}-[0-9a-f]{{4}}-7[0-9a-f]{{3}}-[89ab][0-9a-f]{{3}}-[0-9a-f]{{12}}')
group by all
"""


def recount(root: str, name: str, *, span: str) -> Rows:
    """What a measure should hold: sums by what they are about; of `events` the last is the exact number of keys."""
    found = _ask(root, measures.MEASURES[name].source, _SQL[name], span)
    by = 1 + len(measures.MEASURES[name].by)
    return {(_aware(row[0]), *row[1:by]): tuple(map(int, row[by:])) for row in found}


def durations(root: str, *, span: str) -> dict[tuple[object, ...], dict[int, int]]:
    """Every duration with how often it was, by moment, subscriber and kind."""
    found: dict[tuple[object, ...], dict[int, int]] = {}
    for at, subscriber, kind, ms, count in _ask(root, "attempts", _DURATIONS, span):
        found.setdefault((_aware(at), subscriber, kind), {})[int(ms)] = int(count)
    return found


def measured(root: str, name: str, *, span: str) -> Rows:
    """What a measure does hold, its parts added up by DuckDB as well; keys as the estimate of their number."""
    measure = measures.MEASURES[name]
    table = pa.table(DeltaTable(measures.table_of(root, name).uri).scan())
    by = ", ".join(measure.by)
    sums = ", ".join(f"sum({column})" for column in measure.sums)
    keys = ", list(keys)" if measure.has_keys else ""
    with duckdb.connect() as engine:
        engine.execute("set timezone = 'UTC'")
        engine.register("parts", table)
        sql = f'select "at", {by}, {sums}{keys} from parts where span = $span group by all'
        rows = engine.execute(sql, {"span": span}).fetchall()
    first = 1 + len(measure.by)
    return {(_aware(row[0]), *row[1:first]): tuple(map(_number, row[first:])) for row in rows}


def _ask(root: str, source: str, sql: str, span: str) -> list[tuple]:
    with duckdb.connect() as engine:
        engine.execute("set timezone = 'UTC'")
        engine.register("source", pa.table(DeltaTable(f"{root}/{source}").scan()))
        return engine.execute(sql.format(at=f"date_trunc('{span}', \"at\")")).fetchall()


def _number(value: object) -> int:
    return sketches.distinct(sketches.merge(value)) if isinstance(value, Iterable) else int(str(value))


def _aware(moment: datetime) -> datetime:
    return moment.astimezone(UTC)
