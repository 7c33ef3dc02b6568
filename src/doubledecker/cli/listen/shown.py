"""A line a request: when, how it was answered and how long that took, and which events it had."""

import json
import time
from collections.abc import Sequence

import click
from rich.console import Console
from rich.text import Text

from doubledecker.cli import words
from doubledecker.model.event import AcceptedEvent
from doubledecker.model.outcome import Outcome

_COLOURS = {2: "green", 3: "yellow", 4: "red", 5: "red"}
_STATUS, _TOOK, _KEY = 11, 8, 28


class Shown:
    """Prints lines: JSON if that is asked for, columns on a terminal, and rows with tabs elsewhere."""

    def __init__(self, *, as_json: bool) -> None:
        self._as_json = as_json
        self._console = Console()

    def attempt(self, outcome: Outcome, events: Sequence[AcceptedEvent], *, is_again: bool) -> None:
        """Print one request and its answer."""
        if self._as_json:
            click.echo(words.printable_json(json.dumps(_as_json(outcome, events, is_again=is_again))))
            return
        at = time.strftime("%H:%M:%S")
        status = str(outcome.status or outcome.kind.value.replace("_", " "))
        first = events[0]
        key = f"{first.tenant}:{first.topic}:{first.type}"
        ids = first.id + (f" and {len(events) - 1} more" if len(events) > 1 else "")
        rest = ", ".join(part for part in ("again" if is_again else "", outcome.detail) if part)
        cells = [words.printable(cell) for cell in (at, status, f"{outcome.took_ms} ms", key, ids, rest)]
        if not self._console.is_terminal:
            click.echo("\t".join(cells))
            return
        colour = _COLOURS.get((outcome.status or 0) // 100, "red")
        row = Text.assemble((cells[0], "dim"), "  ", (cells[1].ljust(_STATUS), colour), cells[2].rjust(_TOOK))
        row.append_text(Text.assemble("  ", (cells[3].ljust(_KEY), "bold"), "  ", (cells[4], "cyan")))
        row.append(f"  {cells[5]}", style="dim")
        self._console.print(row, no_wrap=True, overflow="ellipsis", crop=True)


def _as_json(outcome: Outcome, events: Sequence[AcceptedEvent], *, is_again: bool) -> dict[str, object]:
    return {
        "events": [each.id for each in events],
        "topic": events[0].topic,
        "type": events[0].type,
        "tenant": events[0].tenant,
        "outcome": outcome.kind.value,
        "status": outcome.status,
        "took_ms": outcome.took_ms,
        "detail": outcome.detail,
        "again": is_again,
    }
