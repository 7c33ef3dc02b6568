"""The words of `doubledecker receiver …`, `subscription …`, `subscribe` and `unsubscribe`."""

from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import click

from doubledecker.cli import options

_RECEIVER = click.argument("receiver", required=False)
_F = TypeVar("_F", bound=Callable[..., object])
_FIELDS = (
    click.option("--uuid", metavar="TEXT", help="The user name that deliveries carry; a random one at first"),
    click.option("--timeout", type=int, help="How many milliseconds the first event of a batch waits for others"),
    click.option("--max", "max", type=int, help="How many events a batch has at most"),
    click.option("--max-bytes", type=int, help="How many bytes of them"),
    click.option("--concurrency", type=int, help="How many calls at a time"),
    click.option("--rate-per-s", type=float, help="How many calls begin in a second; 0 for no bound"),
    options.retry,
    options.headers,
    options.event_filter,
    options.receiver_format,
    click.option(
        "--backlog-max-bytes", type=int, help="How much may wait before the oldest is dropped; 0 for no bound"
    ),
    click.option(
        "--tier", type=click.Choice(["live", "bulk"]), help="Sent by workers, or from the lake by the pipeline"
    ),
    click.option("--ordered/--unordered", default=None, help="Keep the order of events with the same key; do not"),
    click.option("--on-dead", type=click.Choice(["continue", "block"]), help="What a key does after a dead letter"),
)


def _fields(command: _F) -> _F:
    """What can be said of a subscription, but its topics and where it is called."""
    for option in reversed(_FIELDS):
        command = option(command)
    return command


@click.group()
def receiver() -> None:
    """List, test, pause and resume receivers.

    A receiver is a subscription, by its id or as CLIENT/NAME, a client's default one by the client's name, or a queue
    with a callback, by @ and the queue's name. Where a command gets none, it is the caller's default subscription.
    """


@receiver.command("list")
@options.as_json
@options.as_caller
def list_(bus: str | None, data: Path | None, secret: str | None, *, as_json: bool) -> None:
    """List subscribers, and queues with a callback."""
    from doubledecker.cli.receiver import receivers  # noqa: PLC0415 - only what the command needs

    receivers.list_(bus, data, secret, as_json=as_json)


@receiver.command()
@_RECEIVER
@options.as_json
@options.as_caller
def show(receiver: str | None, bus: str | None, data: Path | None, secret: str | None, *, as_json: bool) -> None:
    """Show what a receiver is sent, how, and its health."""
    from doubledecker.cli.receiver import receivers  # noqa: PLC0415 - only what the command needs

    receivers.show(bus, data, secret, receiver, as_json=as_json)


@receiver.command()
@_RECEIVER
@options.as_caller
def pause(receiver: str | None, bus: str | None, data: Path | None, secret: str | None) -> None:
    """Send it nothing, and keep what waits for it."""
    from doubledecker.cli.receiver import receivers  # noqa: PLC0415 - only what the command needs

    receivers.change(bus, data, secret, receiver, "pause")


@receiver.command()
@_RECEIVER
@options.as_caller
def resume(receiver: str | None, bus: str | None, data: Path | None, secret: str | None) -> None:
    """End its pause."""
    from doubledecker.cli.receiver import receivers  # noqa: PLC0415 - only what the command needs

    receivers.change(bus, data, secret, receiver, "resume")


@receiver.command()
@_RECEIVER
@options.as_caller
def enable(receiver: str | None, bus: str | None, data: Path | None, secret: str | None) -> None:
    """Send to it again after it answered 410."""
    from doubledecker.cli.receiver import receivers  # noqa: PLC0415 - only what the command needs

    receivers.change(bus, data, secret, receiver, "enable")


@receiver.command()
@_RECEIVER
@options.as_json
@options.as_caller
def test(receiver: str | None, bus: str | None, data: Path | None, secret: str | None, *, as_json: bool) -> None:
    """Send a test event now and show the answer."""
    from doubledecker.cli.receiver import receivers  # noqa: PLC0415 - only what the command needs

    receivers.test(bus, data, secret, receiver, as_json=as_json)


@receiver.command("rotate-secret")
@_RECEIVER
@options.overlap("How long former secrets sign too; 0 ends them at once")
@options.as_caller
def rotate_secret(receiver: str | None, overlap_s: int, bus: str | None, data: Path | None, secret: str | None) -> None:
    """Replace the signing secret and print the new one.

    It is shown this once.
    """
    from doubledecker.cli.receiver import receivers  # noqa: PLC0415 - only what the command needs

    receivers.rotate_secret(bus, data, secret, receiver, overlap_s=overlap_s)


@click.command()
@click.argument("topics", nargs=-1, metavar="[TOPIC...]")
@click.option("--callback", metavar="URL", help="Where events are posted")
@_fields
@click.option("--no-filter", is_flag=True, help="Get all events of the topics again")
@options.with_secret
@options.at_bus
def subscribe(
    topics: tuple[str, ...], secret: str | None, bus: str | None, *, no_filter: bool, **asked: object
) -> None:
    """Have events sent to a callback, or change how.

    They are those of each TOPIC, by the client's default subscription; `subscription put` makes others. What is not
    given stays as it was, also TOPIC and --callback; what is given replaces what was there.
    """
    from doubledecker.cli.receiver import receivers  # noqa: PLC0415 - only what the command needs

    changes = {name: value for name, value in asked.items() if value is not None}
    if no_filter and changes.get("filter"):
        raise click.UsageError("--filter and --no-filter exclude one another; give one")
    receivers.subscribe(bus, secret, topics, changes | ({"filter": None} if no_filter else {}))


@click.command()
@options.with_consent
@options.with_secret
@options.at_bus
def unsubscribe(secret: str | None, bus: str | None, *, consent: options.Consent) -> None:
    """End a client's subscription. What waits for it is deleted."""
    from doubledecker.cli.receiver import receivers  # noqa: PLC0415 - only what the command needs

    receivers.unsubscribe(bus, secret, consent)


@click.group()
def subscription() -> None:
    """Make, change and give away subscriptions by name.

    A client has several, each apart from the others; what `subscribe` makes is the one named default.
    """


_NAME = click.argument("name")
_TOPICS = click.argument("topics", nargs=-1, metavar="[TOPIC...]")


@subscription.command("list")
@click.option("--topic", help="Only those of this topic")
@click.option("--state", type=click.Choice(["paused", "disabled", "failing"]), help="Only those in this state")
@click.option("--host", help="Only those whose callback has this host")
@options.as_json
@options.as_caller
def list_subscriptions(
    bus: str | None, data: Path | None, secret: str | None, *, as_json: bool, **chosen: object
) -> None:
    """List a client's subscriptions, or all as root."""
    from doubledecker.cli.receiver import subscriptions  # noqa: PLC0415 - only what the command needs

    subscriptions.list_(bus, data, secret, as_json=as_json, chosen=chosen)


@subscription.command("show")
@_NAME
@options.as_json
@options.as_caller
def show_subscription(name: str, bus: str | None, data: Path | None, secret: str | None, *, as_json: bool) -> None:
    """Show what a subscription gets, how, and its health."""
    from doubledecker.cli.receiver import receivers  # noqa: PLC0415 - only what the command needs

    receivers.show(bus, data, secret, None if name == "default" and secret else name, as_json=as_json)


@subscription.command()
@_NAME
@_TOPICS
@click.option("--callback", metavar="URL", required=True, help="Where events are posted")
@_fields
@options.with_secret
@options.at_bus
def put(
    name: str, topics: tuple[str, ...], callback: str, secret: str | None, bus: str | None, **asked: object
) -> None:
    """Create or replace a subscription of each TOPIC.

    What is not given has its default. A new one is signed; its secret is printed this once.
    """
    from doubledecker.cli.receiver import subscriptions  # noqa: PLC0415 - only what the command needs

    fields = {field: value for field, value in asked.items() if value is not None}
    subscriptions.put(bus, secret, name, topics, callback, fields)


@subscription.command()
@_NAME
@_TOPICS
@click.option("--callback", metavar="URL", help="Where events are posted")
@_fields
@click.option("--reset", multiple=True, metavar="FIELD", help="Give a field its default, as --reset filter")
@options.with_secret
@options.at_bus
def patch(
    name: str,
    topics: tuple[str, ...],
    secret: str | None,
    bus: str | None,
    *,
    reset: tuple[str, ...],
    **asked: object,
) -> None:
    """Change what is given of a subscription."""
    from doubledecker.cli.receiver import subscriptions  # noqa: PLC0415 - only what the command needs

    fields = {field: value for field, value in asked.items() if value is not None}
    subscriptions.patch(bus, secret, name, topics, fields, reset)


@subscription.command()
@_NAME
@options.with_consent
@options.with_secret
@options.at_bus
def delete(name: str, secret: str | None, bus: str | None, *, consent: options.Consent) -> None:
    """End a subscription. What waits for it is deleted."""
    from doubledecker.cli.receiver import subscriptions  # noqa: PLC0415 - only what the command needs

    subscriptions.delete(bus, secret, name, consent)


@subscription.command()
@click.argument("subscription")
@click.argument("to")
@options.as_caller
def give(subscription: str, to: str, bus: str | None, data: Path | None, secret: str | None) -> None:
    """Make another client the owner of a subscription, by its id CLIENT/NAME."""
    from doubledecker.cli.receiver import subscriptions  # noqa: PLC0415 - only what the command needs

    subscriptions.give(bus, data, secret, subscription, to)
