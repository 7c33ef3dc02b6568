"""The command line: one file a group of commands, imported only when the command runs."""

import sys

import click

from doubledecker import __version__
from doubledecker.errors import BusAway, DoubledeckerError, Refused

# Exit codes: 0 ok, 1 failed, 2 usage (click's own), 3 unreachable, 4 refused.
_UNREACHABLE, _REFUSED = 3, 4


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="doubledecker")
def cli() -> None:
    """An event bus over HTTP: publish once, deliver in batches, lose nothing."""


@cli.command()
@click.option("--host", help="Address to listen on  [default: DOUBLEDECKER_HOST or 127.0.0.1]")
@click.option("--port", type=click.IntRange(0, 65535), help="Port  [default: DOUBLEDECKER_PORT or 17890]")
def web(host: str | None, port: int | None) -> None:
    """Serve the HTTP API."""
    from doubledecker.cli import processes  # noqa: PLC0415 - the server is slow to import

    processes.web(host, port)


@cli.command()
def worker() -> None:
    """Deliver batches and do the chores."""
    from doubledecker.cli import processes  # noqa: PLC0415 - the server is slow to import

    processes.worker()


def main() -> None:
    """Run a command; an error that we know is one line on stderr, never a traceback."""
    try:
        cli()
    except Refused as error:
        _fail(error, _REFUSED)
    except BusAway as error:
        _fail(error, _UNREACHABLE)
    except DoubledeckerError as error:
        _fail(error, 1)


def _fail(error: DoubledeckerError, code: int) -> None:
    click.echo(f"doubledecker: {error}", err=True)
    sys.exit(code)
