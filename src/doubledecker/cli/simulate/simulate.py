"""`doubledecker simulate`: what the command line takes; the work is in rehearse.py, imported when the command runs."""

from dataclasses import dataclass
from pathlib import Path

import click

_EPILOG = """\b
doubledecker simulate guard.toml --plot guard.svg
doubledecker simulate guard.py --compare bare guarded
doubledecker simulate guard.toml --sweep retry.attempts=1..5 timeout=0.5,1,2
doubledecker simulate guard.toml --traffic recorded --journal redis://127.0.0.1:6379/0

FILE says chain, dependency and traffic; docs/simulations.md describes them.
"""


@dataclass(frozen=True)
class Request:
    """What was asked for."""

    file: Path | None
    chain: str | None
    compare: tuple[str, str] | None
    sweep: tuple[str, ...]
    changes: tuple[str, ...]
    duration: float | None
    seed: int | None
    replications: int | None
    is_recorded: bool
    journal: str | None
    subscriber: str | None
    plot: Path | None
    terminal: bool | None
    jobs: int | None
    with_spark: bool
    as_json: bool


@click.command("simulate", epilog=_EPILOG)
@click.argument("words", nargs=-1, metavar="FILE.py|FILE.toml")
@click.option("--chain", metavar="NAME", help="One of the file's chains  [default: all, side by side]")
@click.option("--compare", nargs=2, metavar="A B", help="Two chains of FILE, or two files, side by side")
@click.option("--sweep", multiple=True, metavar="PATH=VALUES...", help="Try all combinations: retry.attempts=1..5")
@click.option("--set", "changes", multiple=True, metavar="PATH=VALUE", help="Change a setting: timeout.limit_s=2")
@click.option("--duration", type=float, metavar="SECONDS", help="Of the traffic, in virtual time")
@click.option("--seed", type=int, help="What chance begins from; the same seed gives the same result")
@click.option("--replications", type=click.IntRange(min=1), help="Runs with other chance, for confidence intervals")
@click.option("--traffic", type=click.Choice(["file", "recorded"]), default="file", help="Whose traffic and dependency")
@click.option(
    "--journal", metavar="URL|FILE", help="The record: the bus's Redis, or its attempts as .jsonl or .parquet"
)
@click.option("--subscriber", metavar="ID", help="Only the recorded attempts at this subscriber")
@click.option("--plot", type=click.Path(dir_okay=False, path_type=Path), help="Draw into FILE.svg or FILE.png")
@click.option("--terminal/--no-terminal", default=None, help="Draw here  [default: on a terminal]")
@click.option("--jobs", type=click.IntRange(min=1), metavar="N", help="Processes  [default: all cores]")
@click.option("--spark", "with_spark", is_flag=True, help="Carry out the runs on Spark")
@click.option("--json", "as_json", is_flag=True, help="Print JSON")
def simulate(
    words: tuple[str, ...], compare: tuple[str, str] | None, sweep: tuple[str, ...], traffic: str, **rest: object
) -> None:
    """Rehearse a chain of stages in virtual time.

    Prints what callers and stages saw, as means over the replications with 95 % confidence intervals, and draws
    latency, success, queues and breakers over time.
    """
    from doubledecker.cli.simulate import rehearse  # noqa: PLC0415 - tables and stages are slow to import

    # `--sweep a=1 b=2` reads well, but an option takes one value: what looks like a setting belongs to it.
    more = tuple(word for word in words if sweep and "=" in word)
    files = [word for word in words if word not in more]
    if len(files) > 1:
        raise click.UsageError(f"one FILE at a time, not {', '.join(files)}; to compare two, use --compare A B")
    if not files and compare is None:
        raise click.UsageError("give the FILE.py or FILE.toml to rehearse")
    file = Path(files[0]) if files else None
    rehearse.rehearse(
        Request(file=file, compare=compare, sweep=sweep + more, is_recorded=traffic == "recorded", **rest)  # type: ignore[arg-type]  # click has checked them
    )
