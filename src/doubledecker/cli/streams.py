"""`doubledecker tail` and `listen`: the words of the commands that read a stream."""

from pathlib import Path

import click

from doubledecker.cli import options

_start = click.option(
    "--from", "start", default="latest", metavar="WHERE", help="earliest, latest, or an id  [default: latest]"
)
_count = click.option("--count", type=click.IntRange(1), help="Stop after so many events")


@click.command()
@click.argument("pattern", default="*")
@_start
@_count
@options.as_caller
@options.as_json
def tail(
    pattern: str,
    start: str,
    count: int | None,
    secret: str | None,
    bus: str | None,
    data: Path | None,
    *,
    as_json: bool,
) -> None:
    """Show events as they are published. PATTERN is a glob on tenant:topic:type, like '*:page:*'."""
    from doubledecker.cli import tail as tailing  # noqa: PLC0415 - only what the command needs

    tailing.tail(bus, data, secret, tailing.TailRequest(pattern, start, count), as_json=as_json)


@click.command()
@click.option("--forward-to", "to", metavar="URL", required=True, help="Where events are posted: any URL of yours")
@click.option("--topic", help="Only events on this topic")
@click.option("--pattern", help="Only those that fit a glob on tenant:topic:type, like '*:page:*'")
@_start
@click.option(
    "--max", "max_events", type=click.IntRange(1, 10_000), default=1, show_default=True, help="Events in a request"
)
@options.receiver_format
@click.option(
    "--secret",
    "signing_secret",
    envvar="BUS_SIGNING_SECRET",
    metavar="WHSEC",
    help="Sign with it  [default: a new one]",
)
@click.option("--timeout-s", type=click.FloatRange(0.1), default=20.0, show_default=True, help="For each request")
@click.option(
    "--give-up-s", type=click.FloatRange(0), default=300.0, show_default=True, help="When the bus is away for so long"
)
@_count
@options.as_caller
@options.as_json
def listen(
    topic: str | None,
    pattern: str | None,
    format: str | None,  # noqa: A002 - the option is called so
    bus: str | None,
    data: Path | None,
    secret: str | None,
    *,
    as_json: bool,
    **given: str | float | None,
) -> None:
    """Have events posted to a URL of your own, without a tunnel.

    They are posted as the bus posts them, signed, in the order in which they come over a stream that this command
    opens. Type r to send the last one again, r ID to send another.
    """
    if topic and pattern:
        raise click.UsageError("--topic and --pattern both say which events; pass one")
    if format == "cloudevents-binary" and given["max_events"] != 1:
        raise click.UsageError("cloudevents-binary is one event a request; leave out --max")
    from doubledecker.cli import folder  # noqa: PLC0415 - only what the command needs
    from doubledecker.cli.listen import listen as forwarding  # noqa: PLC0415 - only what the command needs

    plan = forwarding.ForwardPlan(
        pattern=pattern or (f"*:{topic}:*" if topic else "*"),
        format=format or "routemaster",
        **given,  # type: ignore[arg-type]  # click gave each its type
    )
    forwarding.listen(folder.address_of(bus, data, secret), plan, as_json=as_json)
