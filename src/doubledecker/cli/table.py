"""Rows on stdout: a table on a terminal, tabs when piped, so that `cut` and `awk` can read them."""

import sys
from collections.abc import Sequence

import click

from doubledecker.cli import words


def show(titles: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print the rows; numbers to the right."""
    rows = [[words.printable(cell) for cell in row] for row in rows]
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
