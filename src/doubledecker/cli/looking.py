"""`doubledecker status`, `top`, `dashboard`, `doctor` and `report`: the words of the commands that look at a bus."""

from pathlib import Path

import click

from doubledecker.cli import options

_in_folder = click.option(
    "--data",
    type=options.FOLDER,
    help="Folder of a running `doubledecker up`  [default: .data or .demo, where one runs]",
)
_at_redis = click.option("--url", metavar="REDIS_URL", help="The bus's Redis  [default: DOUBLEDECKER_REDIS_URL]")


@click.command()
@_at_redis
@_in_folder
@options.as_json
def status(url: str | None, data: Path | None, *, as_json: bool) -> None:
    """Show counts, what waits, and the health of subscribers."""
    from doubledecker.cli import status as showing  # noqa: PLC0415 - the store is slow to import

    _check_one_place(url, data)
    showing.status(url=url, data=data, as_json=as_json)


@click.command()
@_at_redis
@_in_folder
@options.as_json
def top(url: str | None, data: Path | None, *, as_json: bool) -> None:
    """Watch rates, latency, receivers, queues and processes.

    It is drawn anew each second until q or Ctrl-C; piped, or with --json, it is printed once.
    """
    from doubledecker.cli import top as watching  # noqa: PLC0415 - the store is slow to import

    _check_one_place(url, data)
    watching.top(url=url, data=data, as_json=as_json)


@click.command()
@_at_redis
@_in_folder
@options.at_bus
def dashboard(url: str | None, data: Path | None, bus: str | None) -> None:
    """Print a link that signs in to the dashboard."""
    from doubledecker.cli import dashboard as showing  # noqa: PLC0415 - the store is slow to import

    _check_one_place(url, data)
    showing.dashboard(url=url, data=data, bus=bus)


@click.command()
@click.option("--no-pipeline", is_flag=True, help="Java and Spark are not needed")
@options.as_caller
@options.as_json
def doctor(bus: str | None, data: Path | None, secret: str | None, *, no_pipeline: bool, as_json: bool) -> None:
    """Check this machine, Redis and a bus; say how to mend them.

    To a bus that runs it sends an event, as a client and on a topic named doctor-…, which it then removes; receivers of
    all topics get that event too. It exits with 1 if a check failed.
    """
    from doubledecker.cli.doctor import doctor as checking  # noqa: PLC0415 - the store is slow to import

    checking.doctor(bus=bus, data=data, secret=secret, with_pipeline=not no_pipeline, as_json=as_json)


@click.command()
@click.option(
    "--from", "start", metavar="TIME", help="From then on, e.g. 2026-11-15T11:00:00Z  [default: a day before --to]"
)
@click.option("--to", "end", metavar="TIME", help="Until then  [default: now]")
@click.option("--html", type=click.Path(path_type=Path), metavar="FILE", help="Write a page that needs nothing else")
@click.option("--data", type=options.FOLDER, help="Folder of `doubledecker up`, for its lake  [default: .data]")
@click.option("--lake", metavar="PATH", help="Where the tables are  [default: DOUBLEDECKER_LAKE, or lake in --data]")
@options.as_json
def report(
    start: str | None, end: str | None, html: Path | None, data: Path | None, lake: str | None, *, as_json: bool
) -> None:
    """Show throughput, latency, failures and fairness."""
    from doubledecker.cli.report import report as reporting  # noqa: PLC0415 - only what the command needs

    reporting.report(start=start, end=end, html=html, data=data, lake=lake, as_json=as_json)


def _check_one_place(url: str | None, data: Path | None) -> None:
    if url and data:
        raise click.UsageError("--url and --data both name a place to look; pass one")
