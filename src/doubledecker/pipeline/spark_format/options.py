"""The options of the Spark format, checked: each error says what was seen and what is allowed."""

import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from uuid import uuid4

from doubledecker.assembly import settings as reading_settings
from doubledecker.errors import BadRequest
from doubledecker.model.position import START, Position
from doubledecker.pipeline.land.journal_reader import Access
from doubledecker.store.journal import Extent

READ = ("journal", "topic", "tenant", "from", "to", "rowsPerBatch", "slices", "failOnDataLoss")
WRITE = ("publisher", "refusedTable", "source", "writeId", "writeVersion")
ACCESS = ("redisUrl", "namespace", "partitions")
# What Spark itself passes on.
_SPARKS = frozenset({"path", "checkpointlocation", "queryname", "triggertype", "outputmode"})
_COUNT = re.compile(r"[0-9]{1,9}")


@dataclass(frozen=True)
class ReadOptions:
    """What to read."""

    access: Access
    journal: str
    topics: frozenset[str]
    tenants: frozenset[str]
    start: str
    end: str
    rows_per_batch: int
    slices: int
    fails_on_loss: bool


def parse_read(given: Mapping[str, str]) -> ReadOptions:
    """The options of a reader; raises BadRequest."""
    options = _known(given, (*READ, *ACCESS))
    return ReadOptions(
        access=parse_access(options),
        journal=options.get("journal", "events"),
        topics=_names(options.get("topic", "")),
        tenants=_names(options.get("tenant", "")),
        start=options.get("from", "earliest"),
        end=options.get("to", "latest"),
        rows_per_batch=_count("rowsPerBatch", options.get("rowsperbatch", "0")),
        slices=_count("slices", options.get("slices", "0")),
        fails_on_loss=_flag("failOnDataLoss", options.get("failondataloss", "true")),
    )


def parse_access(options: Mapping[str, str]) -> Access:
    """Where the bus is: from the options, else from the settings of the driver's environment."""
    settings = reading_settings.read(os.environ)
    return Access(
        url=options.get("redisurl", settings.redis_url),
        namespace=options.get("namespace", settings.namespace),
        partitions=_count("partitions", options.get("partitions", str(settings.partitions))) or 1,
    )


def position(text: str, extents: Mapping[int, Extent], *, is_end: bool) -> dict[int, Position]:
    """The id in each partition after which to begin, or up to which to read (`is_end`).

    A start includes the id or the time it names; an end includes the id, and excludes the time.
    """
    if text == "earliest":
        return {index: Position.parse(extent.cut) for index, extent in extents.items()}
    if text == "latest":
        return {index: Position.parse(extent.last) for index, extent in extents.items()}
    if text.startswith("{"):
        return _by_partition(text, extents, is_end=is_end)
    named, is_time = _id_or_time(text)
    place = named if is_end and not is_time else named.before
    return dict.fromkeys(extents, place)


@dataclass(frozen=True)
class WriteOptions:
    """Who writes, under which name a repeated write is known, and where refused rows go."""

    access: Access
    publisher: str
    write_id: str
    write_version: int
    refused_table: str
    source: str


def parse_write(given: Mapping[str, str]) -> WriteOptions:
    """The options of a writer; raises BadRequest."""
    options = _known(given, (*WRITE, *ACCESS))
    if "publisher" not in options:
        raise BadRequest(
            "say who publishes: the option publisher is a client's id, as `doubledecker token list` shows it"
        )
    if "writeversion" in options and "writeid" not in options:
        raise BadRequest("writeVersion numbers the writes of a writeId; give that too")
    return WriteOptions(
        access=parse_access(options),
        publisher=options["publisher"],
        write_id=options.get("writeid", "") or str(uuid4()),
        write_version=_count("writeVersion", options.get("writeversion", "0")),
        refused_table=options.get("refusedtable", ""),
        source=options.get("source", ""),
    )


def _by_partition(text: str, extents: Mapping[int, Extent], *, is_end: bool) -> dict[int, Position]:
    try:
        named = {int(index): Position.parse(id_) for index, id_ in json.loads(text).items()}
    except (ValueError, AttributeError, TypeError) as error:
        raise BadRequest(
            f'{text[:80]!r} is no position by partition; write it like {{"0": "1794740919538-0"}}'
        ) from error
    strange = named.keys() - extents.keys()
    if strange:
        raise BadRequest(f"there is no partition {min(strange)}; this bus has {len(extents)}")
    missing = position("latest" if is_end else "earliest", extents, is_end=is_end)
    return missing | {index: id_ if is_end else id_.before for index, id_ in named.items()}


def _id_or_time(text: str) -> tuple[Position, bool]:
    """An entry's id, or the first id of a moment."""
    if text.replace("-", "", 1).isdigit() and len(text) > len("20261115"):
        return Position.parse(text), False
    try:
        moment = datetime.fromisoformat(text)
    except ValueError as error:
        raise BadRequest(
            f"the position is {text[:80]!r}; it must be earliest, latest, an entry id like 1794740919538-0, "
            f"or a time like 2026-11-15T11:00:00Z"
        ) from error
    aware = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
    return max(START, Position(int(aware.timestamp() * 1000), 0)), True


def _known(given: Mapping[str, str], allowed: tuple[str, ...]) -> dict[str, str]:
    options = {name.lower(): value for name, value in given.items()}
    strange = options.keys() - {name.lower() for name in allowed} - _SPARKS
    if strange:
        raise BadRequest(f"there is no option {min(strange)!r}; there are {', '.join(sorted(allowed))}")
    return options


def _names(text: str) -> frozenset[str]:
    return frozenset(part.strip() for part in text.split(",") if part.strip())


def _count(name: str, text: str) -> int:
    if not _COUNT.fullmatch(text):
        raise BadRequest(f"{name} is {text[:80]!r}; it must be a whole number of at most 9 digits")
    return int(text)


def _flag(name: str, text: str) -> bool:
    if text.lower() not in {"true", "false"}:
        raise BadRequest(f"{name} is {text[:80]!r}; it must be true or false")
    return text.lower() == "true"
