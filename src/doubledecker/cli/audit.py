"""`doubledecker audit`: who changed what on the bus, when and from where."""

from pathlib import Path
from typing import TYPE_CHECKING, cast

import click
import msgspec

from doubledecker.cli import options, words

if TYPE_CHECKING:
    from doubledecker.client import AuditRecordView
    from doubledecker.client.bus import AuditOptions


@click.command()
@click.option("--actor", help="Done by this client, given by its id or its name, or by root")
@click.option("--action", help="This action, e.g. queue.deleted")
@click.option("--target", help="Done to this, e.g. a queue by its name")
@click.option("--from", "start", metavar="TIME", help="From then on, e.g. 2026-11-15T11:00:00Z")
@click.option("--to", "end", metavar="TIME", help="Before then")
@click.option("--before", metavar="ID", help="Older than this record")
@click.option("--limit", type=click.IntRange(1, 1000), default=100, show_default=True, help="How many, newest first")
@options.as_caller
@options.as_json
def audit(secret: str | None, bus: str | None, data: Path | None, *, as_json: bool, **given: str | int | None) -> None:
    """List who changed what, and from where."""
    from doubledecker.cli import folder  # noqa: PLC0415 - only what the command needs

    asked = cast("AuditOptions", {name: value for name, value in given.items() if value is not None})
    with folder.connected(bus, data, secret) as remote:
        page = remote.audit(**asked)
    if as_json:
        click.echo(words.printable_json(msgspec.json.encode(page)))
        return
    titles = ["id", "at", "actor", "action", "target", "outcome", "status", "count", "from", "detail"]
    words.show(titles, [_row(each) for each in page.records])
    if not page.records:
        click.echo("There are no such records", err=True)
    if page.before:
        click.echo(f"There may be older ones: --before {page.before}", err=True)
    if page.older:
        click.echo(page.older, err=True)


def _row(each: "AuditRecordView") -> list[str]:
    count = "" if each.count is None else f"{each.count:,}"
    status = "" if each.status is None else str(each.status)
    done = (each.actor, each.action, each.target, each.outcome, status)
    return [each.id, words.moment(each.at), *done, count, each.address, each.detail]
