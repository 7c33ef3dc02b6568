"""Rows on stdout: a table on a terminal, tabs when piped, so that `cut` and `awk` can read them."""

from collections.abc import Sequence

import click
from rich.console import Console
from rich.table import Table
from rich.text import Text

from doubledecker.cli import words


def show(titles: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print the rows; numbers to the right."""
    console = Console()
    rows = [[words.printable(cell) for cell in row] for row in rows]
    if not console.is_terminal:
        for row in (titles, *rows):
            click.echo("\t".join(row))
        return
    table = Table(box=None, header_style="dim", padding=(0, 2, 0, 0), pad_edge=False)
    for index, title in enumerate(titles):
        is_number = bool(rows) and all(row[index][:1].isdigit() for row in rows)
        table.add_column(title, justify="right" if is_number else "left", overflow="fold")
    for row in rows:
        table.add_row(*(Text(cell) for cell in row))
    console.print(table)
