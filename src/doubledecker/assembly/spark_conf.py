"""Spark's own settings, given by a file or by one of ours: a line each, as in Spark's `spark-defaults.conf`.

On one line they may be separated by semicolons: `spark.ui.enabled=true; spark.driver.memory=4g`.
"""

import re
from pathlib import Path

from doubledecker.errors import SettingInvalid

FILE = "spark.conf"
# What the pipeline depends on: its dates are in UTC, and the bus's format takes filters.
NEEDED = {"spark.sql.session.timeZone": "UTC", "spark.sql.python.filterPushdown.enabled": "true"}

_SEPARATOR = re.compile(r"\n|;\s*(?=spark\.)")
_PAIR = re.compile(r"(?P<name>spark\.[^\s=]+)(?:\s*=\s*|\s+|$)(?P<value>.*)")


def read(folder: Path, setting: str) -> str:
    """What `spark.conf` in a folder says, followed by what the setting says, which wins; the file may be missing."""
    path = folder / FILE
    try:
        text = path.read_text() if path.exists() else ""
    except (OSError, UnicodeDecodeError) as error:
        raise SettingInvalid(f"cannot read {path}: {error}") from error
    try:
        parse(text)
    except SettingInvalid as error:
        raise SettingInvalid(f"{path}: {error}") from error
    return f"{text}\n{setting}".strip()


def parse(text: str) -> dict[str, str]:
    """The settings by name, the last of a name; raises SettingInvalid for what is none, or cannot be changed."""
    found: dict[str, str] = {}
    for line in map(str.strip, _SEPARATOR.split(text)):
        if not line or line.startswith("#"):
            continue
        pair = _PAIR.fullmatch(line)
        if pair is None:
            # Not the whole line: it may hold a secret.
            seen = re.split(r"[\s=]", line, maxsplit=1)[0][:80]
            raise SettingInvalid(f"{seen!r} is no setting of Spark; write spark.<name>=<value>, a line each")
        found[pair["name"]] = pair["value"].strip()
    _check(found)
    return found


def _check(found: dict[str, str]) -> None:
    if "spark.master" in found:
        raise SettingInvalid("spark.master is not taken from here; use --master or DOUBLEDECKER_SPARK_MASTER")
    for name, value in NEEDED.items():
        if found.get(name, value).lower() != value.lower():
            raise SettingInvalid(f"{name} is {found[name]!r}; the pipeline needs {value!r}: leave it out")
