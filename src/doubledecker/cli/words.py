"""Numbers in words: how ages, rates, sizes, health and names are written, the same in every command."""

import re
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from math import isinf

import click

from doubledecker.model import subscriber, token

_MS, _MINUTE_S, _HOUR_S = 1000, 60, 3600
_KIB = 1024
_FEW = 10
# Tabs and line breaks stand between the parts of JSON, never in its strings.
_UNUSUAL = re.compile(r"[^\t\r\n -~]")


# A receiver's state, in the word that all who show it use.
health = subscriber.health
# The names of clients by their ids, likewise.
name, names = token.name_in, token.names


def age(ms: float | None) -> str:
    """A span of time, to two digits or so."""
    if ms is None or isinf(ms):
        return "none" if ms is None else "> 5 min"
    seconds = ms / _MS
    if seconds < 1:
        return f"{ms:.0f} ms"
    if seconds < _MINUTE_S:
        return f"{seconds:.1f} s" if seconds < _FEW else f"{seconds:.0f} s"
    if seconds < _HOUR_S:
        return f"{int(seconds // _MINUTE_S)} min {int(seconds % _MINUTE_S)} s"
    return f"{int(seconds // _HOUR_S)} h {int(seconds % _HOUR_S // _MINUTE_S)} min"


def moment(at_ms: int) -> str:
    """A point in time, the same for everyone."""
    return datetime.fromtimestamp(at_ms / _MS, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def rate(per_second: float) -> str:
    """So many a second; small ones with a decimal."""
    return f"{per_second:.1f}" if 0 < per_second < _FEW else f"{per_second:,.0f}"


def size(count: int) -> str:
    """Bytes, in the unit that keeps them short."""
    amount = float(count)
    for unit in ("B", "KiB", "MiB"):
        if amount < _KIB:
            return f"{amount:.0f} {unit}" if unit == "B" else f"{amount:.1f} {unit}"
        amount /= _KIB
    return f"{amount:.1f} GiB"


def printable(text: str) -> str:
    """Without what would command a terminal, or break a row: the text of events and of consumers is anyone's."""
    return "".join(character if character.isprintable() else "\N{REPLACEMENT CHARACTER}" for character in text)


def say(message: object) -> None:
    """Tell on stderr, in our name; what a bus answers is anyone's text too."""
    lines = f"doubledecker: {message}".split("\n")
    click.echo("\n".join(map(printable, lines)), err=True)


def printable_json(text: str | bytes) -> bytes:
    """JSON of the same meaning that commands no terminal: escapes what is not printable in its strings."""
    found = text.decode() if isinstance(text, bytes) else text
    return _UNUSUAL.sub(lambda each: each[0] if each[0].isprintable() else _escape(each[0]), found).encode()


def _escape(character: str) -> str:
    """As JSON has it: one or two units of UTF-16."""
    units = character.encode("utf-16-be").hex()
    return "".join(f"\\u{units[at : at + 4]}" for at in range(0, len(units), 4))


def many(count: int, noun: str) -> str:
    """So many of something, in the singular where there is one."""
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


# Rows on stdout: a table on a terminal, tabs when piped, so that `cut` and `awk` can read them.


def show(titles: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print the rows; numbers to the right."""
    rows = [[printable(cell) for cell in row] for row in rows]
    if not sys.stdout.isatty():
        for row in (titles, *rows):
            click.echo("\t".join(row))
        return
    _draw(titles, rows)


def _draw(titles: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    from rich.console import Console  # noqa: PLC0415 - slow to import, and most output is piped or JSON
    from rich.table import Table  # noqa: PLC0415 - the same
    from rich.text import Text  # noqa: PLC0415 - the same

    table = Table(box=None, header_style="dim", padding=(0, 2, 0, 0), pad_edge=False)
    for index, title in enumerate(titles):
        is_number = bool(rows) and all(row[index][:1].isdigit() for row in rows)
        table.add_column(title, justify="right" if is_number else "left", overflow="fold")
    for row in rows:
        table.add_row(*(Text(cell) for cell in row))
    Console().print(table)
