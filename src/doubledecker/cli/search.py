"""`doubledecker events`: search what passed over the bus, in the lake and in the journal together."""

import json
from collections.abc import Mapping
from pathlib import Path

import click

from doubledecker.assembly.settings import Settings
from doubledecker.cli import pipeline, table

_SHOWN = ("at", "topic", "type", "tenant", "key", "id", "data")
_ATTEMPT = ("at", "subscriber", "attempt", "outcome", "status", "took_ms", "batch")
_WAITING = ("kind", "name", "id", "attempts", "why")
_REPLAY = ("id", "state", "target", "name")
# A terminal's line has room for so much of `data`.
_CELL_MAX = 60

Found = list[dict[str, object]]


def search(
    *, id_: str | None, limit: int, data: Path | None, lake: str | None, as_json: bool, wanted: Mapping[str, str]
) -> None:
    """Print the events that fit, or one event's life."""
    settings, where = pipeline.find(data, lake)
    found = _look(settings, where, id_=id_, limit=limit, wanted=wanted)
    if as_json:
        click.echo(json.dumps(found if id_ else found["events"], default=_as_text, ensure_ascii=False))
        return
    _show(_SHOWN, found["events"])
    if id_ and found["events"]:
        for names, part in ((_ATTEMPT, "attempts"), (_WAITING, "waiting"), (_REPLAY, "replays")):
            if found[part]:
                click.echo(f"\n{part}")
                _show(names, found[part])
    if not found["events"]:
        click.echo("No event fits", err=True)
    elif not id_ and len(found["events"]) == limit:
        click.echo(f"These are the first {limit}; there may be more: --limit", err=True)


def _look(
    settings: Settings, where: str, *, id_: str | None, limit: int, wanted: Mapping[str, str]
) -> dict[str, Found]:
    from doubledecker.pipeline import life, session  # noqa: PLC0415 - Spark is slow to import, and may not be there
    from doubledecker.pipeline import search as searching  # noqa: PLC0415 - the same
    from doubledecker.pipeline.reading import Access  # noqa: PLC0415 - the same

    spark = session.open_session(session.SessionPlan(master=settings.spark_master))
    try:
        access = Access.by(settings)
        ground = searching.Ground(spark, access, where)
        if id_:
            return life.look(ground, id_)
        return {"events": searching.events(ground, searching.Wanted(**wanted, limit=limit))}
    finally:
        spark.stop()


def _show(names: tuple[str, ...], found: Found) -> None:
    table.show(names, [[_cell(row[name]) for name in names] for row in found])


def _cell(value: object) -> str:
    text = "" if value is None else _as_text(value)
    return text if len(text) <= _CELL_MAX else f"{text[: _CELL_MAX - 1]}…"


def _as_text(value: object) -> str:
    return str(value)
