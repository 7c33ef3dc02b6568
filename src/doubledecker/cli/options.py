"""Options that several commands share."""

from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import click

_F = TypeVar("_F", bound=Callable[..., object])

FOLDER = click.Path(file_okay=False, path_type=Path)
# Not DOUBLEDECKER_…: those are settings of the bus, and an unknown one is an error.
at_bus = click.option(
    "--bus", envvar="BUS_URL", default="http://127.0.0.1:17890", metavar="URL", help="Where the bus is  [env: BUS_URL]"
)
in_folder = click.option(
    "--data", type=FOLDER, default=".data", help="Folder of `doubledecker up`, for its root key  [default: .data]"
)
as_json = click.option("--json", "as_json", is_flag=True, help="Print JSON")
_at_any_bus = click.option("--bus", envvar="BUS_URL", metavar="URL", help="Where the bus is  [default: that of --data]")
_in_any_folder = click.option(
    "--data", type=FOLDER, default=".data", help="Folder of a running `doubledecker up`  [default: .data]"
)
_with_secret = click.option(
    "--token", "secret", envvar="BUS_TOKEN", metavar="SECRET", help="Who asks  [env: BUS_TOKEN; default: root]"
)
is_sure = click.option("--yes", is_flag=True, help="Do not ask")


def as_caller(command: _F) -> _F:
    """Where to ask, and as whom: by address and token, or as root of the bus of a folder."""
    return _at_any_bus(_in_any_folder(_with_secret(command)))
