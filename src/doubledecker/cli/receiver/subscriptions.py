"""What `doubledecker subscription …` does, over HTTP."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, cast

import click

from doubledecker.cli import folder, words
from doubledecker.cli.options import Consent
from doubledecker.cli.receiver import receivers

if TYPE_CHECKING:
    from doubledecker.client import SubscriptionView
    from doubledecker.client.bus import SubscriptionListOptions, SubscriptionOptions


def list_(
    bus: str | None, data: Path | None, secret: str | None, *, as_json: bool, chosen: Mapping[str, object]
) -> None:
    """Print a client's subscriptions, or all of them for root."""
    asked = cast("SubscriptionListOptions", {name: value for name, value in chosen.items() if value is not None})
    with folder.connected(bus, data, secret) as remote:
        if as_json:
            query = "&".join(f"{name}={value}" for name, value in asked.items())
            found = remote.request("GET", "/subscriptions" + (f"?{query}" if query else ""))
            click.echo(words.printable_json(found.decode()))
            return
        rows = remote.subscriptions(**asked)
    words.show(["subscription", "name", "state", "waiting", "dead", "callback", "gets"], [_row(each) for each in rows])


def put(
    bus: str | None, secret: str | None, name: str, topics: Sequence[str], callback: str, fields: Mapping[str, object]
) -> None:
    """Create or replace a subscription, and print its signing secret if it got one."""
    with receivers.as_client(bus, secret) as remote:
        kept = remote.put_subscription(name, topics, callback, **cast("SubscriptionOptions", dict(fields)))
    click.echo(_gets(kept), err=True)
    if kept.secret:
        click.echo("It is signed by this secret, which is shown this once:", err=True)
        click.echo(kept.secret)


def patch(
    bus: str | None,
    secret: str | None,
    name: str,
    topics: Sequence[str],
    fields: Mapping[str, object],
    reset: Sequence[str],
) -> None:
    """Change what is given of a subscription, and give other fields their defaults."""
    changes = dict(fields) | ({"topics": list(topics)} if topics else {}) | dict.fromkeys(reset)
    if not changes:
        raise click.UsageError("nothing is given that could change; name topics, or fields as options")
    with receivers.as_client(bus, secret) as remote:
        kept = remote.change_subscription(name, **changes)
    click.echo(_gets(kept), err=True)


def delete(bus: str | None, secret: str | None, name: str, consent: Consent) -> None:
    """End a subscription, after a look at what waits."""
    with receivers.as_client(bus, secret) as remote:
        kept = remote.subscription(name)
        held = f"{words.many(kept.events.queued, 'waiting event')}, {words.many(kept.dead, 'dead letter')}"
        if not consent.is_given(f"End the subscription {kept.subscriber}, and delete {held}?"):
            return
        remote.delete_subscription(name)
    click.echo(f"{kept.subscriber} gets nothing any more ({held} deleted)", err=True)


def give(bus: str | None, data: Path | None, secret: str | None, subscription: str, to: str) -> None:
    """Give a subscription to another client."""
    with folder.connected(bus, data, secret) as remote:
        remote.give_subscription(subscription, to)
    click.echo(f"{subscription} is {to}'s now, with what waits for it and its credentials", err=True)


def _gets(kept: "SubscriptionView") -> str:
    topics = ", ".join(kept.topics) or "nothing"
    shown = f" with {words.printable(json.dumps(kept.filter))}" if kept.filter is not None else ""
    return f"{kept.subscriber} gets {topics}{shown} at {words.printable(kept.callback)}"


def _row(each: "SubscriptionView") -> list[str]:
    shown, *rest = receivers.subscriber_row(each)
    return [shown, each.name, *rest]
