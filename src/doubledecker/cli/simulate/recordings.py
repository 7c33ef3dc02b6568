"""Delivery attempts that were recorded: from the bus's own journal, or from a file of it.

A file has a row an attempt with the journal's fields: `at` (milliseconds since 1970, when it began), `took_ms` and
`outcome`, and where they are known `batch`, `subscriber`, `attempt` and `accepted_at` (when the first event of its
batch was accepted). In the lake's table `attempted_at` is when it began, and `at` when it was written down.
"""

import asyncio
import importlib
import os
from collections.abc import Iterator
from dataclasses import replace
from datetime import datetime
from pathlib import Path

import msgspec

from doubledecker.assembly import settings as reading
from doubledecker.cli import folder
from doubledecker.errors import BusAway, SettingInvalid
from doubledecker.model.attempt import DROPPED
from doubledecker.model.outcome import OutcomeKind
from doubledecker.stages.simulation.record import Record, RecordedTry
from doubledecker.store import journal
from doubledecker.store import partitions as store
from doubledecker.store.partitions import Partition

_SCHEMES = ("redis://", "rediss://", "unix://")
_KINDS = [kind.value for kind in OutcomeKind]
_PAGE = 1_000
_MS = 1_000


class _Row(msgspec.Struct, frozen=True):
    """An attempt as the journal has it; what else a row holds is not looked at."""

    at: int | datetime
    took_ms: float
    outcome: str
    batch: str | None = None
    subscriber: str | None = None
    attempt: int = 1
    attempted_at: datetime | None = None
    accepted_at: int | datetime = 0


_ROW = msgspec.json.Decoder(_Row)


def read(where: str | None, *, subscriber: str | None) -> Record:
    """The attempts of a journal or a file; of one subscriber, if it is named."""
    if where is None or where.startswith(_SCHEMES):
        source, rows = where or "the journal", asyncio.run(_from_journal(where))
    else:
        source, rows = where, _from_file(Path(where))
    kept = [_attempt(row) for row in rows if subscriber in (None, row.subscriber) and row.outcome != DROPPED]
    if not kept:
        of = f" of {subscriber}" if subscriber else ""
        known = ", ".join(sorted({row.subscriber for row in rows if row.subscriber})[:10])
        hint = f"; there are attempts of {known}" if known else ""
        raise SettingInvalid(f"{source} has no attempts{of}{hint}")
    return Record(kept)


def _attempt(row: _Row) -> RecordedTry:
    if row.outcome not in _KINDS:
        raise SettingInvalid(f"an attempt has the outcome {row.outcome!r}; known are {', '.join(_KINDS)}")
    if row.took_ms < 0:
        raise SettingInvalid(f"an attempt took {row.took_ms} ms; it cannot be less than 0")
    return RecordedTry(
        at_s=_seconds(row.attempted_at or row.at),
        took_s=row.took_ms / _MS,
        is_success=row.outcome == OutcomeKind.DELIVERED.value,
        event=row.batch,
        number=row.attempt,
        key=row.subscriber,
        is_cut=row.outcome == OutcomeKind.TIMED_OUT.value,
        arrived_s=_seconds(row.accepted_at) if row.accepted_at else None,
    )


def _seconds(at: int | datetime) -> float:
    return at.timestamp() if isinstance(at, datetime) else at / _MS


async def _from_journal(url: str | None) -> list[_Row]:
    settings = reading.read(os.environ)
    if url is not None:
        settings = replace(settings, redis_url=url)
    else:
        settings = folder.find(settings, None, is_url_set=settings.redis_url != reading.Settings.redis_url)
    try:
        partitions = await store.wait_for(
            settings.redis_url, namespace=settings.namespace, count=settings.partitions, patience_s=0
        )
    except BusAway as error:
        raise BusAway(f"{error}; say where the journal is with --journal") from error
    try:
        return [row for partition in partitions.all for row in await _rows(partition)]
    finally:
        await partitions.close()


async def _rows(partition: Partition) -> list[_Row]:
    rows: list[_Row] = []
    after = "0-0"
    while entries := await journal.read(partition, "attempts", after=after, count=_PAGE):
        after = entries[-1].id
        rows.extend(_ROW.decode(value) for entry in entries for name, value in entry.fields if name == "attempt")
    return rows


def _from_file(path: Path) -> list[_Row]:
    try:
        return list(_from_parquet(path) if path.suffix == ".parquet" or path.is_dir() else _from_lines(path))
    except OSError as error:
        raise SettingInvalid(
            f"cannot read {path}: {error.strerror or error}; it takes a redis:// URL, or a .jsonl or .parquet file"
        ) from error


def _from_lines(path: Path) -> Iterator[_Row]:
    with path.open("rb") as file:
        for number, line in enumerate(file, start=1):
            if not line.strip():
                continue
            try:
                yield _ROW.decode(line)
            except (msgspec.MsgspecError, UnicodeDecodeError) as error:
                raise SettingInvalid(f"{path}, line {number} is no attempt: {error}; it needs {_NEEDED}") from error


_NEEDED = "at, took_ms and outcome, and may have batch, subscriber, attempt and accepted_at"


def _from_parquet(path: Path) -> Iterator[_Row]:
    """A Parquet file, a folder of them, or a Delta table, of which only the files that count are read."""
    is_delta = (path / "_delta_log").is_dir()
    try:
        arrow, datasets = importlib.import_module("pyarrow"), importlib.import_module("pyarrow.dataset")
        delta = importlib.import_module("deltalake") if is_delta else None
    except ImportError as error:
        raise SettingInvalid(f"{path} needs a package that is not here: pip install 'doubledecker[spark]'") from error
    try:
        if delta is not None:
            dataset = delta.DeltaTable(str(path)).to_pyarrow_dataset()
        else:
            dataset = datasets.dataset(str(path), format="parquet")
        known = [name for name in _Row.__struct_fields__ if name in dataset.schema.names]
        for row in dataset.to_table(columns=known).to_pylist():
            yield msgspec.convert({name: value for name, value in row.items() if value is not None}, _Row)
    except (arrow.ArrowException, msgspec.MsgspecError) as error:
        raise SettingInvalid(f"{path} holds no attempts: {error}; it needs the columns {_NEEDED}") from error
