"""`doubledecker events`: its words; what it does is in search.py."""

from pathlib import Path

import click

from doubledecker.cli import options

_in_folder = click.option(
    "--data", type=options.FOLDER, help="Folder of `doubledecker up`: its bus and its lake  [default: .data]"
)
_in_lake = click.option(
    "--lake", metavar="PATH", help="Where the tables are  [default: DOUBLEDECKER_LAKE, or lake in --data]"
)


class _SearchUnlessNamed(click.Group):
    """In 0.1.0 `events` searched, and `events --id` showed one: what names no command is a search."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if not args or args[0] not in {*self.commands, *ctx.help_option_names}:
            args = ["search", *args]
        return super().parse_args(ctx, args)


@click.group(cls=_SearchUnlessNamed)
def events() -> None:
    """Search what passed over the bus; show one event's life.

    Both read the lake and the journal. Without a command it is a search.
    """


@events.command()
@click.option(
    "--from", "start", metavar="TIME", help="Accepted from then on, e.g. 2026-11-15T11:00:00Z; attempts from then on"
)
@click.option("--to", "end", metavar="TIME", help="Accepted before then")
@click.option("--topic", help="On this topic")
@click.option("--tenant", help="Of this tenant")
@click.option("--where", metavar="SQL", help="Fitting this condition, e.g. \"type = 'create' and bytes > 1000\"")
@click.option("--id", "id_", metavar="ID", hidden=True)
@click.option("--limit", type=click.IntRange(1, 100_000), default=100, show_default=True, help="How many, oldest first")
@_in_folder
@_in_lake
@options.as_json
def search(
    id_: str | None, limit: int, data: Path | None, lake: str | None, *, as_json: bool, **given: str | None
) -> None:
    """List events, the oldest first."""
    wanted = {name: value for name, value in given.items() if value}
    narrowing = wanted.keys() - {"start"}
    if id_ and narrowing:
        raise click.UsageError(f"--id is one event; leave out --{min(narrowing).replace('end', 'to')}")
    _search(id_, limit, data, lake, wanted, as_json=as_json)


@events.command()
@click.argument("id_", metavar="ID")
@click.option("--from", "start", metavar="TIME", help="Attempts from then on, e.g. 2026-11-15T11:00:00Z")
@_in_folder
@_in_lake
@options.as_json
def show(id_: str, start: str | None, data: Path | None, lake: str | None, *, as_json: bool) -> None:
    """Show an event's whole life.

    When it was accepted, every attempt, where it waits, and its replays.
    """
    _search(id_, 1, data, lake, {"start": start} if start else {}, as_json=as_json)


def _search(
    id_: str | None, limit: int, data: Path | None, lake: str | None, wanted: dict[str, str], *, as_json: bool
) -> None:
    from doubledecker.cli import search as searching  # noqa: PLC0415 - only what the command needs

    searching.search(id_=id_, limit=limit, data=data, lake=lake, as_json=as_json, wanted=wanted)
