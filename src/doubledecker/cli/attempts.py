"""`doubledecker attempts` and `resend`: what was tried to deliver, and sending one of it again."""

from pathlib import Path
from typing import TYPE_CHECKING

import click
import msgspec

from doubledecker.cli import folder, words
from doubledecker.cli.receiver import naming

if TYPE_CHECKING:
    from doubledecker.client import AttemptView
    from doubledecker.client.bus import AttemptOptions

_IDS_SHOWN = 3
# Pages without a row that are passed over: of a busy bus some seconds.
_PAGES_MAX = 10


def show(
    bus: str | None,
    data: Path | None,
    secret: str | None,
    *,
    receiver: str | None,
    event: str | None,
    as_json: bool,
    options: "AttemptOptions",
) -> None:
    """Print the attempts at a receiver, or those that carried an event, the newest first."""
    asked = folder.connected(bus, data, secret) if event else naming.asked(bus, data, secret, receiver)
    with asked as remote:
        page = remote.attempts(receiver, event=event, **options)
        for _ in range(_PAGES_MAX - 1):
            # Busy neighbours' attempts may fill what one request looks at.
            if page.attempts or not page.before:
                break
            options["before"] = page.before
            page = remote.attempts(receiver, event=event, **options)
    if as_json:
        click.echo(words.printable_json(msgspec.json.encode(page)))
        return
    titles = ["id", "began", "receiver", "outcome", "status", "attempt", "took", "events", "detail"]
    words.show(titles, [_row(each) for each in page.attempts])
    if not page.attempts:
        since = f" since {words.moment(page.scanned_until)}" if page.scanned_until else ""
        click.echo(f"There are no such attempts{since}", err=True)
    if page.before:
        click.echo(f"There may be older ones: --before {page.before}", err=True)
    if page.older:
        click.echo(page.older, err=True)


def resend(
    bus: str | None,
    data: Path | None,
    secret: str | None,
    *,
    event: str | None,
    attempt: str | None,
    receiver: str | None,
    topic: str | None,
    source: str | None,
) -> None:
    """Have one event, or those of an attempt, sent to a receiver again; print their ids."""
    with naming.asked(bus, data, secret, receiver) as remote:
        sent = remote.resend(event, attempt=attempt, receiver=receiver, topic=topic, source=source)
    for id_ in sent.events:
        click.echo(id_)
    if sent.missing:
        click.echo(f"Not found any more: {words.printable(', '.join(sent.missing))}", err=True)
    if sent.refused:
        click.echo(f"Refused, as the queue is full: {words.printable(', '.join(sent.refused))}", err=True)


def _row(each: "AttemptView") -> list[str]:
    ids = ", ".join(each.events[:_IDS_SHOWN])
    events = f"{ids} and {each.event_count - _IDS_SHOWN} more" if each.event_count > _IDS_SHOWN else ids
    status = "" if each.status is None else str(each.status)
    began, took = words.moment(each.at), words.age(each.took_ms)
    return [each.id, began, each.receiver, each.outcome, status, str(each.attempt), took, events, each.detail]
