"""Options that several commands share."""

from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import click

_F = TypeVar("_F", bound=Callable[..., object])

FOLDER = click.Path(file_okay=False, path_type=Path)
# Not DOUBLEDECKER_…: those are settings of the bus, and an unknown one is an error.
at_bus = click.option(
    "--bus", envvar="BUS_URL", metavar="URL", help="Where the bus is  [env: BUS_URL; default: of .data]"
)
_at_any_bus = click.option(
    "--bus", envvar="BUS_URL", metavar="URL", help="Where the bus is  [env: BUS_URL; default: that of --data]"
)
_in_any_folder = click.option(
    "--data", type=FOLDER, help="Folder of a running `doubledecker up`  [default: .data, if one runs there]"
)
_with_secret = click.option(
    "--token", "secret", envvar="BUS_TOKEN", metavar="SECRET", help="Who asks  [env: BUS_TOKEN; default: root]"
)
as_json = click.option("--json", "as_json", is_flag=True, help="Print JSON")
is_sure = click.option("--yes", is_flag=True, help="Do not ask")


def as_root(command: _F) -> _F:
    """Where to ask as root: by address, or by the folder that has the key."""
    return _at_any_bus(_in_any_folder(command))


def as_caller(command: _F) -> _F:
    """Where to ask, and as whom: by address and token, or as root of the bus of a folder."""
    return as_root(_with_secret(command))
