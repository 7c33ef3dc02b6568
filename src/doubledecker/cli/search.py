"""`doubledecker events`: search what passed over the bus, in the lake and in the journal together.

What touches few files is read here, without Java. Spark is started only for more than that.
"""

import asyncio
import importlib.util
import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click

from doubledecker.assembly.settings import Settings
from doubledecker.cli import folder, words
from doubledecker.errors import BadRequest, BusAway, LakeUnfit, ReadTooLarge
from doubledecker.model import condition as searching
from doubledecker.model.condition import SearchRequest
from doubledecker.model.event import EVENT_ID, ID_LENGTH_MAX

if TYPE_CHECKING:
    from doubledecker.lake.event_history import EventHistory
    from doubledecker.lake.reads import Reader

_SHOWN = ("at", "topic", "type", "tenant", "key", "id", "data")
_ATTEMPT = ("at", "subscriber", "attempt", "outcome", "status", "took_ms", "batch")
_WAITING = ("kind", "name", "id", "attempts", "why")
_REPLAY = ("id", "state", "target", "name", "sent")
# A terminal's line has room for so much of `data`.
_CELL_MAX = 60

Found = list[dict[str, object]]


def search(
    *, id_: str | None, limit: int, data: Path | None, lake: str | None, as_json: bool, wanted: Mapping[str, str]
) -> None:
    """Print the events that fit, or one event's life."""
    # All words are checked before anything is opened or started.
    asked = searching.parse(**wanted, limit=limit)
    if id_ and not EVENT_ID.fullmatch(id_):
        raise BadRequest(f"the id is {id_[:80]!r}; ids are 1 to {ID_LENGTH_MAX} printable ASCII characters")
    found = _look(data, lake, id_=id_, wanted=asked)
    if as_json:
        shown = found if isinstance(found, list) else asdict(found)
        click.echo(words.printable_json(json.dumps(shown, default=_as_text, ensure_ascii=False)))
    elif isinstance(found, list):
        _show_events(found, limit)
    else:
        _show_life(found)


def _show_events(found: Found, limit: int) -> None:
    _show(_SHOWN, found)
    if not found:
        click.echo("No event fits", err=True)
    elif len(found) == limit:
        click.echo(f"These are the first {limit}; there may be more: --limit", err=True)


def _show_life(life: "EventHistory") -> None:
    _show(_SHOWN, life.events)
    for title, names, rows in (
        ("attempts", _ATTEMPT, life.attempts),
        ("waiting", _WAITING, life.waiting),
        ("replays", _REPLAY, life.replays),
    ):
        if rows:
            click.echo(f"\n{title}")
            _show(names, rows)
    if not life.events:
        click.echo("No event fits", err=True)
    elif life.attempts_until:
        until = life.attempts_until
        click.echo(f"Attempts in the lake were looked at until {until}; --from {until} goes on from there", err=True)


def _look(data: Path | None, lake: str | None, *, id_: str | None, wanted: SearchRequest) -> "Found | EventHistory":
    """Without Spark if that is not too much, else with it."""
    for needed in ("deltalake", "duckdb"):
        if importlib.util.find_spec(needed) is None:
            raise LakeUnfit(f"{needed} is not installed; get it with: pip install 'doubledecker[lake]'")
    settings, root = folder.locate(data, lake)
    if not folder.has_lake(root):
        click.echo(f"There is no lake at {root}; only the journal is searched", err=True)
    try:
        return asyncio.run(_read(settings, root, id_=id_, wanted=wanted))
    except ReadTooLarge as error:
        if importlib.util.find_spec("pyspark") is None:
            less = "" if id_ else "narrow it with --from, --to or --topic, or "
            how = f"{less}get Spark with: pip install 'doubledecker[spark]'"
            raise ReadTooLarge(f"this is too much to read without Spark: {error}; {how}") from error
        less = "" if id_ else "; --from, --to and --topic make it less"
        click.echo(f"Spark is started, because {error}{less}", err=True)
        return _look_with_spark(settings, root, id_=id_, wanted=wanted)


def _look_with_spark(
    settings: Settings, root: str, *, id_: str | None, wanted: SearchRequest
) -> "Found | EventHistory":
    from doubledecker.pipeline import search as spark_search  # noqa: PLC0415 - slow to import, and may not be there
    from doubledecker.pipeline import session  # noqa: PLC0415 - the same

    spark = session.open_session(session.SessionPlan.by(settings))
    try:
        return asyncio.run(_read(settings, root, id_=id_, wanted=wanted, reader=spark_search.reader(spark)))
    finally:
        session.close(spark)


async def _read(
    settings: Settings, root: str, *, id_: str | None, wanted: SearchRequest, reader: "Reader | None" = None
) -> "Found | EventHistory":
    from doubledecker.lake import event_history, queries, reads  # noqa: PLC0415 - slow to import, and may not be there
    from doubledecker.store.partitions import Partitions  # noqa: PLC0415 - the same

    try:
        # Redis alone is needed, and not what else a bus is made of, which takes longer to import than all this.
        bus = await Partitions.connect(settings.redis_url, namespace=settings.namespace, count=settings.partitions)
    except BusAway as error:
        raise folder.away(error) from error
    try:
        ground = reads.ReadContext(root, bus)
        if id_:
            return await event_history.look(ground, id_, since=wanted.since, reader=reader)
        return await reads.find(ground, queries.search(wanted), reader=reader)
    finally:
        await bus.close()


def _show(names: tuple[str, ...], found: Found) -> None:
    words.show(names, [[_cell(row[name]) for name in names] for row in found])


def _cell(value: object) -> str:
    text = "" if value is None else _as_text(value)
    return text if len(text) <= _CELL_MAX else f"{text[: _CELL_MAX - 1]}…"


def _as_text(value: object) -> str:
    return str(value)
