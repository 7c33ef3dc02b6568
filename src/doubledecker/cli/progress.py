"""A bar for long work, on a terminal: how much is done, how fast it goes, and how long it will take."""

import contextlib
from collections.abc import Callable, Iterator

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, ProgressColumn, Task, TextColumn, TimeRemainingColumn
from rich.text import Text

from doubledecker.cli import words

# What it is doing, how much of it is done, and of how much; 0 while that is not known.
Show = Callable[[str, int, int], None]


class _Rate(ProgressColumn):
    """So many a second, lately."""

    def render(self, task: Task) -> Text:
        return Text("" if task.speed is None else f"{words.rate(task.speed)}/s", style="dim")


@contextlib.contextmanager
def bar() -> Iterator[Show]:
    """A bar on stderr while the block runs; nothing where no one watches."""
    console = Console(stderr=True)
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        _Rate(),
        TimeRemainingColumn(compact=True),
    )
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task("waiting", total=None)

        def show(description: str, done: int, total: int) -> None:
            progress.update(task, description=description, completed=done, total=total or None)

        yield show
