"""The commands about topics: who owns which, who else may publish there, and their end."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click
import msgspec

from doubledecker.cli import folder, words
from doubledecker.cli.options import Consent
from doubledecker.errors import NotFound

if TYPE_CHECKING:
    from doubledecker.client import Bus, Topic


def list_(bus: str | None, data: Path | None, secret: str | None, *, as_json: bool) -> None:
    """Print the topics, who owns them, and how many events they had."""
    with folder.connected(bus, data, secret) as remote:
        if as_json:
            click.echo(words.printable_json(remote.request("GET", "/topics")))
            return
        rows = remote.topics()
    shown = [
        [row.name, row.publisher, row.publisher_id, _count(row), f"{len(row.publishers)}", row.description]
        for row in rows
    ]
    words.show(["topic", "owner", "owner's id", "events", "other publishers", "description"], shown)
    if not rows:
        click.echo("There are no topics; the first client to publish on one owns it", err=True)


def show(bus: str | None, data: Path | None, secret: str | None, name: str, *, as_json: bool) -> None:
    """Print all there is to know of a topic."""
    with folder.connected(bus, data, secret) as remote:
        topic = remote.topic(name)
    if as_json:
        click.echo(words.printable_json(msgspec.json.encode(topic)))
        return
    rows = [
        ["description", topic.description],
        ["owner", f"{topic.publisher}, {topic.publisher_id}"],
        ["publishers", " ".join(topic.publishers)],
        ["events", _count(topic)],
    ]
    words.show([f"topic {name}", ""], rows)


def set_(
    bus: str | None,
    data: Path | None,
    secret: str | None,
    name: str,
    *,
    publishers: Sequence[str] | None,
    description: str | None,
) -> None:
    """Say who may publish on a topic, and what it is for."""
    with folder.connected(bus, data, secret) as remote:
        topic = remote.set_topic(name, publishers=publishers, description=description)
    others = f" and {words.many(len(topic.publishers), 'other client')}" if topic.publishers else ""
    click.echo(f"{topic.publisher_id}{others} may publish on {name}", err=True)


def give(bus: str | None, data: Path | None, secret: str | None, name: str, id_: str) -> None:
    """Make another client the owner of a topic."""
    with folder.connected(bus, data, secret) as remote:
        remote.give_topic(name, id_)
    click.echo(f"Topic {name} belongs to {id_}", err=True)


def delete(bus: str | None, data: Path | None, secret: str | None, name: str, consent: Consent) -> None:
    """Forget a topic, having shown what ends with it."""
    with folder.connected(bus, data, secret) as remote:
        if all(row.name != name for row in remote.topics()):
            raise NotFound(f"no topic named {name!r}; `doubledecker topic list` shows them")
        # A client sees its own subscription alone.
        ended = "The subscriptions to it end" if secret else _ended(remote, name)
        if not consent.is_given(f"Delete topic {name}? {ended}, and any client may take its name."):
            return
        remote.delete_topic(name)
    click.echo(f"Deleted {name}", err=True)


def _ended(remote: "Bus", topic: str) -> str:
    count = sum(topic in each.topics for each in remote.subscriptions())
    return "1 subscription to it ends" if count == 1 else f"{count:,} subscriptions to it end"


def _count(topic: "Topic") -> str:
    """How many events a topic had; not shown to a token of some tenants."""
    return "" if topic.events is None else f"{topic.events:,}"
