"""What the pipeline consumes, as a TOML file says it; read and checked before Spark takes its seconds to start.

[sources.orders]
format = "json"                       # files dropped in a folder, or any format that this Spark knows
path = "inbox/orders"
schema = "number long, customer string"
publisher = "shop"
fields = { topic = "'orders'", type = "'create'", key = "customer", data = "to_json(struct(*))" }
"""

import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from doubledecker.errors import SettingInvalid
from doubledecker.pipeline.spark_format.encoder import COLUMNS

# Formats whose rows lie in files of a folder.
FILES = frozenset({"json", "csv", "parquet", "orc", "text"})
# Those of them whose text may not be what the schema says; they cannot be read without one either.
PARSED = frozenset({"json", "csv"})
MODES = ("stream", "batch")

_NAME = re.compile(r"[a-z0-9][a-z0-9_-]{0,63}")
_REQUIRED = ("topic", "type")
_TOP = frozenset({"sources", "checkpoints"})


@dataclass(frozen=True)
class SourceConfig:
    """Something that events come from: how to read its rows, and what makes an event of a row."""

    name: str
    format: str
    publisher: str
    path: str = ""
    schema: str = ""
    sql: str = ""
    mode: str = "stream"
    bookmark: str = ""
    interval_s: float = 0.0
    options: Mapping[str, str] = field(default_factory=dict)
    fields: Mapping[str, str] = field(default_factory=dict)

    @property
    def is_parsed(self) -> bool:
        """Whether a row may turn out not to be readable."""
        return self.format in PARSED


@dataclass(frozen=True)
class Sources:
    """All of a file, and where Spark keeps how far each has come; empty: in the lake."""

    all: tuple[SourceConfig, ...] = ()
    checkpoints: str = ""
    file: str = ""


_KINDS: Mapping[str, type | tuple[type, ...]] = {
    **dict.fromkeys(("format", "publisher", "path", "schema", "sql", "mode", "bookmark"), str),
    "interval_s": (int, float),
    "options": dict,
    "fields": dict,
}
_WORDS = {str: "text", dict: "a table", (int, float): "a number"}


def read(path: Path) -> Sources:
    """The sources of a file; raises SettingInvalid, saying the file, the source, what was seen and what is allowed."""
    try:
        given = tomllib.loads(path.read_text())
    except OSError as error:
        raise SettingInvalid(f"cannot read the sources in {path}: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise SettingInvalid(f"{path} is not TOML: {error}") from error
    strange = given.keys() - _TOP
    if strange:
        raise SettingInvalid(f"{path}: there is {min(strange)!r}; there may be [sources.NAME] tables and checkpoints")
    tables, checkpoints = given.get("sources", {}), given.get("checkpoints", "")
    if not isinstance(checkpoints, str):
        raise SettingInvalid(f"{path}: checkpoints is {checkpoints!r}; it must be a folder or a URL that Spark reaches")
    if not isinstance(tables, dict) or not all(isinstance(table, dict) for table in tables.values()):
        raise SettingInvalid(f"{path}: sources must be tables; write each as [sources.NAME]")
    found = tuple(_source(path, name, table) for name, table in tables.items())
    return Sources(found, _beside(path, checkpoints), str(path))


def _source(path: Path, name: str, table: Mapping[str, object]) -> SourceConfig:
    where = f"{path}: source {name!r}"
    if not _NAME.fullmatch(name):
        raise SettingInvalid(f"{where}: a name is of a-z, 0-9, _ and -, 64 at most; its checkpoint's folder has it")
    strange = table.keys() - _KINDS.keys()
    if strange:
        raise SettingInvalid(f"{where}: there is {min(strange)!r}; there may be {', '.join(sorted(_KINDS))}")
    for key, value in table.items():
        if not isinstance(value, _KINDS[key]) or isinstance(value, bool):
            raise SettingInvalid(f"{where}: {key} is {value!r}; it must be {_WORDS[_KINDS[key]]}")
    plain = {key: value for key, value in table.items() if key not in {"options", "fields", "path"}}
    missing = [key for key in ("format", "publisher") if not plain.get(key)]
    if missing:
        raise SettingInvalid(f"{where}: there is no {missing[0]}; {_MEANING[missing[0]]}")
    source = SourceConfig(
        name,
        **plain,  # type: ignore[arg-type]  # their kinds were checked
        path=_beside(path, str(table.get("path", ""))),
        options=_texts(where, "options", table.get("options", {})),
        fields=_texts(where, "fields", table.get("fields", {})),
    )
    _check_reading(where, source)
    _check_mapping(where, source)
    return source


_MEANING = {
    "format": "it is json, csv, parquet, or any other that this Spark knows",
    "publisher": "it is the client whose events these are, as `doubledecker token list` shows it",
}


def _texts(where: str, key: str, table: object) -> dict[str, str]:
    """Names and texts; a number or a flag is written as Spark writes it."""
    assert isinstance(table, dict), "its kind was checked"
    for name, value in table.items():
        if not isinstance(value, str | int | float):
            raise SettingInvalid(f"{where}: {key}.{name} is {value!r}; it must be text, a number, true or false")
    return {name: str(value).lower() if isinstance(value, bool) else str(value) for name, value in table.items()}


def _check_reading(where: str, source: SourceConfig) -> None:
    if source.mode not in MODES:
        raise SettingInvalid(f"{where}: mode is {source.mode!r}; it must be one of {', '.join(MODES)}")
    if source.format in FILES and not source.path:
        raise SettingInvalid(f"{where}: there is no path; {source.format} is read from the files in a folder")
    forced = [name for name in source.options if name.lower() in {"mode", "columnnameofcorruptrecord"}]
    if source.is_parsed and forced:
        raise SettingInvalid(f"{where}: options has {forced[0]!r}; rows that cannot be read are always quarantined")
    if source.is_parsed and not source.schema:
        raise SettingInvalid(
            f'{where}: there is no schema; {source.format} needs one, like "number long, customer string"'
        )
    if source.mode == "batch" and not source.bookmark:
        raise SettingInvalid(
            f"{where}: there is no bookmark; with mode 'batch' it is the column that only grows, and what lies beyond "
            f"its highest value so far is new"
        )
    if source.mode == "batch" and source.format in FILES:
        raise SettingInvalid(f"{where}: mode is 'batch', but files are streamed; leave it out")
    if source.mode == "stream" and (source.bookmark or source.interval_s):
        raise SettingInvalid(f"{where}: bookmark and interval_s are for mode 'batch'; leave them out, or set it")
    if source.interval_s < 0:
        raise SettingInvalid(f"{where}: interval_s is {source.interval_s}; the least is 0, the pipeline's own")


def _check_mapping(where: str, source: SourceConfig) -> None:
    if bool(source.fields) == bool(source.sql):
        seen = "both fields and sql" if source.sql else "neither fields nor sql"
        raise SettingInvalid(f"{where}: there is {seen}; one of them says how a row becomes an event")
    strange = [name for name in source.fields if name not in COLUMNS]
    if strange:
        raise SettingInvalid(f"{where}: fields has {strange[0]!r}; an event has {', '.join(COLUMNS)}")
    missing = [name for name in _REQUIRED if source.fields and name not in source.fields]
    if missing:
        raise SettingInvalid(f"{where}: fields has no {missing[0]}; an event must have a topic and a type")


def _beside(path: Path, named: str) -> str:
    """What a file names is beside it, unless the name is whole."""
    return named if not named or "://" in named else str((path.parent / named).absolute())
