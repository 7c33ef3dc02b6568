"""Options that several commands share."""

from pathlib import Path

import click

FOLDER = click.Path(file_okay=False, path_type=Path)
# Not DOUBLEDECKER_…: those are settings of the bus, and an unknown one is an error.
at_bus = click.option(
    "--bus", envvar="BUS_URL", default="http://127.0.0.1:17890", metavar="URL", help="Where the bus is  [env: BUS_URL]"
)
in_folder = click.option(
    "--data", type=FOLDER, default=".data", help="Folder of `doubledecker up`, for its root key  [default: .data]"
)
as_json = click.option("--json", "as_json", is_flag=True, help="Print JSON")
is_sure = click.option("--yes", is_flag=True, help="Do not ask")
