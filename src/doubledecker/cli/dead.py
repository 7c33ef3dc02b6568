"""`doubledecker dead`: the dead letters of subscribers and queues. Counts come before anything is done."""

import contextlib
import itertools
import math
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, cast

import click
import msgspec

from doubledecker.cli import options, words
from doubledecker.errors import NotFound

if TYPE_CHECKING:
    from doubledecker.client import DeadLetter
    from doubledecker.client.dead_letters import LetterChoice
    from doubledecker.client.sync import SyncDeadLetters
    from doubledecker.client.views import LetterJobView

# Between two looks at a job.
_LOOK_S = 1.0
# As many as the bus gives at once.
_PAGE = 1_000


@contextlib.contextmanager
def _letters(
    bus: str | None, data: Path | None, secret: str | None, receiver: str | None
) -> Iterator["SyncDeadLetters"]:
    from doubledecker.cli.receiver import naming  # noqa: PLC0415 - only what the command needs

    with naming.asked(bus, data, secret, receiver) as remote:
        yield remote.dead_letters(receiver)


def _filters(command: Callable[..., None]) -> Callable[..., None]:
    for option in (
        click.option("--to", "end", metavar="TIME", help="Died before then"),
        click.option("--from", "start", metavar="TIME", help="Died from then on, e.g. 2026-11-15T11:00:00Z"),
        click.option("--status", type=int, help="Of the last answer; 0 for none"),
        click.option("--reason", help="attempts, age, rejected or lease"),
        click.option("--tenant", help="Of this tenant"),
        click.option("--topic", help="Of this topic"),
    ):
        command = option(command)
    return command


class _Rate(click.FloatRange):
    """A rate within bounds; NaN is within any that are only compared with."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        rate = float(super().convert(value, param, ctx))
        if math.isnan(rate):
            self.fail(f"{value!r} is no number; it is {self.min} to {self.max} a second", param, ctx)
        return rate


def _rate(command: Callable[..., None]) -> Callable[..., None]:
    text = "So many a second, by the workers; the command shows how far they are, and may be left"
    return click.option("--rate", metavar="N", type=_Rate(0.01, 10_000), help=text)(command)


@click.group()
def dead() -> None:
    """List, redrive and purge dead letters of a receiver."""


@dead.command("list")
@options.receiver
@_filters
@click.option("--event", metavar="ID", help="Of the event with this id; all others that are chosen are read too")
@click.option("--limit", type=click.IntRange(1), default=100, show_default=True, help="How many at most")
@options.as_json
@options.as_caller
def list_(
    receiver: str | None,
    event: str | None,
    limit: int,
    bus: str | None,
    data: Path | None,
    secret: str | None,
    *,
    as_json: bool,
    **chosen: str | int | None,
) -> None:
    """List dead letters, oldest first."""
    which = _given(chosen)
    with _letters(bus, data, secret, receiver) as letters:
        each = letters.each(page=_PAGE if event else min(limit, _PAGE), event=event, **which)
        if as_json:
            for letter in itertools.islice(each, limit):
                click.echo(words.printable_json(msgspec.json.encode(letter)))
            return
        found = list(itertools.islice(each, limit))
        titles = ["id", "event", "topic", "tenant", "reason", "status", "attempts", "redriven", "died", "why"]
        words.show(titles, [_row(letter) for letter in found])
        # Events are no index: how many letters there are of one is known when all have been read.
        count = len(found) if event else letters.count(**which)
    if len(found) < count or not found:
        click.echo(f"{len(found)} of {words.many(count, 'dead letter')}", err=True)


@dead.command()
@click.argument("id_", metavar="ID")
@options.receiver
@click.option("--json", "_as_json", is_flag=True, hidden=True)
@options.as_caller
def show(
    id_: str, receiver: str | None, bus: str | None, data: Path | None, secret: str | None, *, _as_json: bool
) -> None:
    """Print one dead letter as JSON.

    It has its event and the last answer.
    """
    with _letters(bus, data, secret, receiver) as letters:
        click.echo(words.printable_json(msgspec.json.format(msgspec.json.encode(letters.show(id_)), indent=2)))


def _acting(action: Literal["redrive", "purge"], text: str) -> click.Command:
    """Make the command that does this to dead letters."""

    @dead.command(action, help=text)
    @click.argument("ids", nargs=-1, metavar="[ID...]")
    @options.receiver
    @_filters
    @_rate
    @options.with_consent
    @options.as_caller
    def act(
        ids: tuple[str, ...],
        receiver: str | None,
        rate: float | None,
        bus: str | None,
        data: Path | None,
        secret: str | None,
        *,
        consent: options.Consent,
        **chosen: str | int | None,
    ) -> None:
        with _letters(bus, data, secret, receiver) as letters:
            _act(letters, action, ids, _given(chosen), rate=rate, consent=consent)

    return act


redrive = _acting(
    "redrive",
    "Have dead letters delivered again.\n\nThey are those with these IDs, or all chosen ones, and get new attempts.",
)
purge = _acting("purge", "Destroy dead letters.\n\nThey are those with these IDs, or all that are chosen.")


@dead.command()
@options.receiver
@click.option("--cancel", metavar="ID", help="End this one; what it has done stays done")
@options.as_caller
@options.as_json
def jobs(
    receiver: str | None,
    cancel: str | None,
    bus: str | None,
    data: Path | None,
    secret: str | None,
    *,
    as_json: bool,
) -> None:
    """List the jobs that `--rate` began, newest first."""
    with _letters(bus, data, secret, receiver) as letters:
        if cancel:
            click.echo(_progress(letters.cancel(cancel)), err=True)
            return
        found = letters.jobs()
    if as_json:
        click.echo(words.printable_json(msgspec.json.encode(found)))
        return
    rows = [[job.id, job.action, job.state, f"{job.done:,} of {job.count:,}"] for job in found]
    words.show(["id", "action", "state", "done"], rows)


def _act(
    letters: "SyncDeadLetters",
    action: Literal["redrive", "purge"],
    ids: tuple[str, ...],
    chosen: "LetterChoice",
    *,
    rate: float | None,
    consent: options.Consent,
) -> None:
    """Count, ask unless that is sure, do it, and say how much was done."""
    if ids and rate:
        raise click.UsageError("--rate is for letters that are chosen by their values, not by ID")
    meant = letters.meant(ids or None, **chosen)
    count = meant.count
    if ids and not count:
        which = " of those that are chosen" if chosen else ""
        raise NotFound(f"no dead letter {' or '.join(map(repr, ids))}{which}; `doubledecker dead list` shows them")
    if not count:
        click.echo("There are no such dead letters", err=True)
        return
    many = words.many(count, "dead letter")
    if not consent.is_given(f"{action.capitalize()} {many}?"):
        return
    if meant.until:
        # Those that died since were not confirmed.
        chosen = {**chosen, "end": meant.until}
    if rate:
        _follow(letters, letters.begin(action, rate_per_s=rate, **chosen))
        return
    act, done = (letters.redrive, "Redriven") if action == "redrive" else (letters.purge, "Purged")
    gone = f"; {len(set(ids)) - count:,} not found" if len(set(ids)) > count else ""
    click.echo(f"{done}: {act(ids or None, **chosen):,}{gone}", err=True)


def _follow(letters: "SyncDeadLetters", job: "LetterJobView") -> None:
    """Show how far a job is until it has ended; it goes on when the command is ended."""
    click.echo(f"Job {job.id}; `doubledecker dead jobs` shows it too", err=True)
    from doubledecker.cli import progress  # noqa: PLC0415 - slow to import

    is_watched = sys.stderr.isatty()
    with progress.bar() as show:
        while job.state == "running":
            show(job.action, job.done, job.count)
            if not is_watched:
                click.echo(_progress(job), err=True)
            time.sleep(_LOOK_S)
            job = letters.job(job.id)
    click.echo(_progress(job), err=True)


def _progress(job: "LetterJobView") -> str:
    return f"{job.state}: {job.done:,} of {job.count:,}"


def _given(chosen: Mapping[str, Any]) -> "LetterChoice":
    return cast("LetterChoice", {name: value for name, value in chosen.items() if value is not None})


def _row(letter: "DeadLetter") -> list[str]:
    numbers = [str(letter.status or ""), str(letter.attempts), str(letter.redriven)]
    of = [letter.event.id, letter.topic, letter.tenant]
    return [letter.id, *of, letter.reason, *numbers, words.moment(letter.died_at), letter.why]
