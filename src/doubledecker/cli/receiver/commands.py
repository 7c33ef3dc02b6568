"""`doubledecker receiver …`, `subscribe` and `unsubscribe`: their words; what they do is in receivers.py."""

from pathlib import Path

import click

from doubledecker.cli import options

_RECEIVER = click.argument("receiver", required=False)


@click.group()
def receiver() -> None:
    """List, test, pause and resume receivers.

    A receiver is a subscriber, by its id or its client's name, or a queue with a callback, by @ and the queue's name.
    Where a command gets none, it is the caller's own subscriber.
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
@click.option("--uuid", metavar="TEXT", help="The user name that deliveries carry; a random one at first")
@click.option("--timeout", type=int, help="How many milliseconds the first event of a batch waits for others")
@click.option("--max", "max", type=int, help="How many events a batch has at most")
@click.option("--max-bytes", type=int, help="How many bytes of them")
@click.option("--concurrency", type=int, help="How many calls at a time")
@click.option("--rate-per-s", type=float, help="How many calls begin in a second; 0 for no bound")
@options.retry
@options.headers
@options.event_filter
@click.option("--no-filter", is_flag=True, help="Get all events of the topics again")
@options.receiver_format
@click.option("--backlog-max-bytes", type=int, help="How much may wait before the oldest is dropped; 0 for no bound")
@click.option("--tier", type=click.Choice(["live", "bulk"]), help="Sent by workers, or from the lake by the pipeline")
@click.option("--ordered/--unordered", default=None, help="Keep the order of events with the same key; do not")
@click.option("--on-dead", type=click.Choice(["continue", "block"]), help="What a key does after a dead letter")
@options.with_secret
@options.at_bus
def subscribe(
    topics: tuple[str, ...], secret: str | None, bus: str | None, *, no_filter: bool, **asked: object
) -> None:
    """Have events sent to a callback, or change how.

    They are those of each TOPIC. A client has one subscription. What is not given stays as it was, also TOPIC and
    --callback; what is given replaces what was there.
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
