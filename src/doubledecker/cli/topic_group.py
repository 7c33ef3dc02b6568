"""`doubledecker topic`: list topics, give one to another client, delete one."""

from pathlib import Path

import click

from doubledecker.cli import options


@click.group()
def topic() -> None:
    """List topics, give them to other clients, delete them."""


@topic.command("list")
@options.as_root
@options.as_json
def list_(bus: str | None, data: Path | None, *, as_json: bool) -> None:
    """List the topics and who owns them."""
    from doubledecker.cli import clients  # noqa: PLC0415 - only what the command needs

    clients.list_topics(bus, data, as_json=as_json)


@topic.command()
@click.argument("topic")
@click.argument("id")
@options.as_root
def give(topic: str, id: str, bus: str | None, data: Path | None) -> None:  # noqa: A002 - click shows the argument's name
    """Make the client with the token ID the owner of TOPIC. Its subscriptions and its count stay."""
    from doubledecker.cli import clients  # noqa: PLC0415 - only what the command needs

    clients.give_topic(bus, data, topic, id)


@topic.command()
@click.argument("topic")
@options.is_sure
@options.as_root
def delete(topic: str, bus: str | None, data: Path | None, *, yes: bool) -> None:
    """Forget TOPIC. The subscriptions to it end, and the next client that publishes on it owns it."""
    from doubledecker.cli import clients  # noqa: PLC0415 - only what the command needs

    clients.delete_topic(bus, data, topic, is_sure=yes)
