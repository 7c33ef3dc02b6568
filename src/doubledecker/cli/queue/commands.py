"""`doubledecker queue …`: the words of its commands; what they do is in cli/queue/queues.py, imported when one runs."""

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import click

from doubledecker.cli import options
from doubledecker.cli.dead import list_ as list_letters
from doubledecker.cli.dead import purge as purge_letters
from doubledecker.cli.dead import redrive as redrive_letters

if TYPE_CHECKING:
    from doubledecker.cli.queue.queues import QueueCalls

_OF_A_CALLBACK = ("uuid", "max", "max_bytes", "timeout", "concurrency", "rate_per_s", "retry", "headers", "format")


@contextlib.contextmanager
def _desk(bus: str | None, data: Path | None, secret: str | None, name: str) -> Iterator["QueueCalls"]:
    """To ask about one queue; an unknown one is an error that names those that are alike."""
    from doubledecker.cli.queue import queues  # noqa: PLC0415 - only what the command needs
    from doubledecker.cli.receiver import naming  # noqa: PLC0415 - only what the command needs

    with naming.asked(bus, data, secret, f"@{name}") as remote:
        yield queues.QueueCalls(remote)


@click.group()
def queue() -> None:
    """Register queues, look into them, pull from them."""


@queue.command()
@click.argument("name")
@click.argument("patterns", nargs=-1, required=True, metavar="PATTERN...")
@click.option("--lease-ms", type=int, help="How long a pulled message is its consumer's")
@click.option("--attempts-max", type=int, help="How many times a message is tried")
@click.option("--charge", type=click.Choice(["time", "count"]), help="What serving a message costs its tenant")
@click.option("--max-length", type=int, help="How many messages it holds")
@click.option("--facet-max-length", type=int, help="How many of one tenant; 0 for no bound")
@click.option("--overflow", type=click.Choice(["drop_oldest", "refuse"]), help="What a full queue does")
@click.option("--ordered", is_flag=True, help="Hand out messages of a tenant with the same key one at a time, in order")
@click.option("--owner", metavar="ID", help="Whose queue it is, a token's id; root alone may say so")
@click.option(
    "--refuse-client",
    "refuse_clients",
    metavar="ID",
    multiple=True,
    help="A further client whose events it may refuse, besides its owner; root alone may name one",
)
@options.event_filter
@click.option("--callback", metavar="URL", help="Where its messages are pushed; the next nine are for this alone")
@click.option("--uuid", metavar="TEXT", help="The user name that deliveries carry; a random one if left out")
@click.option("--max", "max", type=int, help="How many messages are pushed together at most")
@click.option("--max-bytes", type=int, help="How many bytes of them")
@click.option("--timeout", type=int, help="How many milliseconds the first of them waits for others")
@click.option("--concurrency", type=int, help="How many calls to the receiver at a time")
@click.option("--rate-per-s", type=float, help="How many calls to it begin in a second; 0 for no bound")
@options.retry
@options.headers
@options.receiver_format
@options.as_caller
def register(
    name: str,
    patterns: tuple[str, ...],
    bus: str | None,
    data: Path | None,
    secret: str | None,
    **asked: object,
) -> None:
    """Create or replace a queue of the events that match a PATTERN.

    It must match the whole of an event's tenant:topic:type, as in '.*:orders:paid'.

    What is not given gets its default, also when the queue was there before: without --callback it has none any more.
    """
    alone = [name for name in _OF_A_CALLBACK if asked[name] is not None]
    if alone and not asked["callback"]:
        raise click.UsageError(
            f"--{alone[0].replace('_', '-')} is for a queue with a callback: pass --callback URL too, also when the "
            "queue has one, as what is not given is reset"
        )
    with _desk(bus, data, secret, name) as desk:
        desk.register(name, patterns, asked)


@queue.command("list")
@options.as_json
@options.as_caller
def list_(bus: str | None, data: Path | None, secret: str | None, *, as_json: bool) -> None:
    """List queues and what they hold."""
    from doubledecker.cli import folder  # noqa: PLC0415 - only what the command needs
    from doubledecker.cli.queue import queues  # noqa: PLC0415 - only what the command needs

    with folder.connected(bus, data, secret) as remote:
        queues.QueueCalls(remote).list_(as_json=as_json)


@queue.command()
@click.argument("name")
@options.as_json
@options.as_caller
def show(name: str, bus: str | None, data: Path | None, secret: str | None, *, as_json: bool) -> None:
    """Show a queue with its facets and their shares."""
    with _desk(bus, data, secret, name) as desk:
        desk.show(name, as_json=as_json)


@queue.command()
@click.argument("name")
@click.option("--max", "most", type=click.IntRange(1, 200), default=1, help="How many messages at most  [default: 1]")
@click.option("--wait-ms", type=click.IntRange(0, 30_000), default=0, help="How long to wait for the first")
@click.option("--ack", is_flag=True, help="Ack them; otherwise they come back when their leases end")
@options.as_json
@options.as_caller
def pull(
    name: str,
    most: int,
    wait_ms: int,
    bus: str | None,
    data: Path | None,
    secret: str | None,
    *,
    ack: bool,
    as_json: bool,
) -> None:
    """Take messages and print their events."""
    with _desk(bus, data, secret, name) as desk:
        desk.pull(name, most=most, wait_ms=wait_ms, is_acked=ack, as_json=as_json)


@queue.command()
@click.argument("name")
@click.option("--tenant", default="default", show_default=True, help="Whose")
@click.option("--limit", type=click.IntRange(1, 1_000), default=10, help="How many at most  [default: 10]")
@options.as_json
@options.as_caller
def peek(
    name: str, tenant: str, limit: int, bus: str | None, data: Path | None, secret: str | None, *, as_json: bool
) -> None:
    """Look at a tenant's next messages, without taking them."""
    with _desk(bus, data, secret, name) as desk:
        desk.peek(name, tenant=tenant, limit=limit, as_json=as_json)


@queue.command()
@click.argument("name")
@click.argument("tenant")
@click.option("--weight", metavar="N", help="Its part of the service beside others'")
@click.option("--concurrency", metavar="N|none", help="Messages in consumers' hands at most")
@click.option("--rate", metavar="N|none", help="Messages a second at most")
@click.option("--pause/--resume", "paused", default=None, help="Serve nothing of it; serve it again")
@options.as_json
@options.as_caller
def facet(
    name: str,
    tenant: str,
    bus: str | None,
    data: Path | None,
    secret: str | None,
    *,
    paused: bool | None,
    as_json: bool,
    **bounds: str | None,
) -> None:
    """Show the rules of a tenant, or change those that are given."""
    with _desk(bus, data, secret, name) as desk:
        desk.facet(name, tenant, paused=paused, as_json=as_json, **bounds)


@queue.command()
@click.argument("name")
@click.option("--tenant", help="Only this tenant's")
@click.option("--dead", "is_dead", is_flag=True, hidden=True)
@options.with_consent
@options.as_caller
@click.pass_context
def purge(
    context: click.Context,
    name: str,
    tenant: str | None,
    bus: str | None,
    data: Path | None,
    secret: str | None,
    *,
    is_dead: bool,
    consent: options.Consent,
) -> None:
    """Destroy what waits. What consumers have in hand is left to them."""
    if is_dead:
        context.invoke(
            purge_letters,
            receiver=f"@{name}",
            tenant=tenant,
            bus=bus,
            data=data,
            secret=secret,
            yes=consent.is_sure,
            dry_run=consent.is_dry,
        )
        return
    with _desk(bus, data, secret, name) as desk:
        desk.purge(name, tenant=tenant, consent=consent)


@queue.command()
@click.argument("name")
@options.with_consent
@options.as_caller
def delete(name: str, bus: str | None, data: Path | None, secret: str | None, *, consent: options.Consent) -> None:
    """Forget a queue, and all it holds."""
    with _desk(bus, data, secret, name) as desk:
        desk.delete(name, consent=consent)


# Dead letters of a queue as version 0.1.0 had them: `doubledecker dead` has those of any receiver.


@queue.command(hidden=True)
@click.argument("name")
@click.option("--tenant")
@click.option("--limit", type=click.IntRange(1), default=100)
@options.as_json
@options.as_caller
@click.pass_context
def dead(context: click.Context, /, name: str, **given: object) -> None:
    """`doubledecker dead list --receiver @NAME`."""
    context.invoke(list_letters, receiver=f"@{name}", **given)


@queue.command(hidden=True)
@click.argument("name")
@click.argument("ids", nargs=-1)
@click.option("--tenant")
@options.is_sure
@options.as_caller
@click.pass_context
def redrive(context: click.Context, /, name: str, **given: object) -> None:
    """`doubledecker dead redrive --receiver @NAME`."""
    context.invoke(redrive_letters, receiver=f"@{name}", dry_run=False, **given)
