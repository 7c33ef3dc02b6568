"""The command line: one file a group of commands, imported only when the command runs."""

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, cast

import click

from doubledecker import __version__
from doubledecker.assembly.launch import PROCESSES_MAX, Member
from doubledecker.cli import words
from doubledecker.cli.audit import audit
from doubledecker.cli.dead import dead
from doubledecker.cli.events import events
from doubledecker.cli.looking import dashboard as _dashboard
from doubledecker.cli.looking import doctor as _doctor
from doubledecker.cli.looking import report as _report
from doubledecker.cli.looking import status as _status
from doubledecker.cli.looking import top as _top
from doubledecker.cli.options import FOLDER as _FOLDER
from doubledecker.cli.options import Consent, TokenAsked
from doubledecker.cli.options import as_admin as _as_admin
from doubledecker.cli.options import as_caller as _as_caller
from doubledecker.cli.options import as_json as _json
from doubledecker.cli.options import as_root as _as_root
from doubledecker.cli.options import overlap as _overlap
from doubledecker.cli.options import processes as _processes
from doubledecker.cli.options import receiver as _receiver
from doubledecker.cli.options import with_consent as _with_consent
from doubledecker.cli.options import with_scopes as _with_scopes
from doubledecker.cli.queue.commands import pull, queue
from doubledecker.cli.receiver.commands import receiver, subscribe, subscription, unsubscribe
from doubledecker.cli.replay.commands import erase, replay, replays
from doubledecker.cli.shell import Sections, completion
from doubledecker.cli.simulate.simulate import simulate
from doubledecker.cli.streams import listen as _listen
from doubledecker.cli.streams import tail as _tail
from doubledecker.errors import BusAway, DoubledeckerError, Refused, SettingInvalid

if TYPE_CHECKING:
    from doubledecker.client.bus import AttemptOptions, Publication

# Exit codes: 0 ok, 1 failed, 2 usage (click's own), 3 unreachable, 4 refused.
_UNREACHABLE, _REFUSED = 3, 4

_PORT = click.IntRange(0, 65535)
# Where a file has the same name as its command, the function does not: it would hide the file.


@click.group(cls=Sections, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="doubledecker")
def cli() -> None:
    """An event bus over HTTP: publish once, deliver in batches, lose nothing."""


@cli.command("up")
@click.option("--port", type=_PORT, help="Port, 0 for a free one  [default: DOUBLEDECKER_PORT or 17890]")
@click.option("--data", type=_FOLDER, default=".data", help="Folder to keep everything in  [default: .data]")
@click.option(
    "--processes",
    type=click.IntRange(0, PROCESSES_MAX),
    help="How many processes of web, and of worker; 0 for one a core  [default: as for those commands]",
)
@click.option("--no-demo", is_flag=True, help="Without the demo's publisher and subscribers")
@click.option("--no-pipeline", is_flag=True, help="Without the Spark pipeline")
@click.option("--log", is_flag=True, help="Print the logs of all processes here, not to logs in --data")
def _up(port: int | None, data: Path, processes: int | None, *, no_demo: bool, no_pipeline: bool, log: bool) -> None:
    """Run the whole bus on this machine, with demo traffic.

    On a terminal it shows a live view; elsewhere it says where the bus is, and then only what goes wrong.
    """
    try:
        from doubledecker.cli.up import up  # noqa: PLC0415 - the store is slow to import

        up.up(
            port=port,
            data=data,
            processes=processes,
            with_demo=not no_demo,
            with_pipeline=not no_pipeline,
            logs_here=log,
        )
    except KeyboardInterrupt:
        # Before `up` has its own ways with signals; nothing has started yet.
        click.echo("Doubledecker has stopped", err=True)


@cli.command()
@click.option("--host", help="Address to listen on  [default: DOUBLEDECKER_HOST or 127.0.0.1]")
@click.option("--port", type=_PORT, help="Port  [default: DOUBLEDECKER_PORT or 17890]")
@_processes("DOUBLEDECKER_WEB_PROCESSES")
def web(host: str | None, port: int | None, processes: int | None, member: Member | None, ready_fd: int | None) -> None:
    """Serve the HTTP API."""
    from doubledecker.cli.serve import processes as running  # noqa: PLC0415 - the server is slow to import

    running.web(host, port, running.Processes(processes, member, ready_fd))


@cli.command()
@_processes("DOUBLEDECKER_WORKER_PROCESSES")
def worker(processes: int | None, member: Member | None, ready_fd: int | None) -> None:
    """Deliver batches and do the chores."""
    from doubledecker.cli.serve import processes as running  # noqa: PLC0415 - the server is slow to import

    running.worker(running.Processes(processes, member, ready_fd))


@cli.command("watch")
def _watch() -> None:
    """Push what queues with a callback hold, fairly."""
    from doubledecker.cli.serve import processes  # noqa: PLC0415 - the server is slow to import

    processes.watch()


@cli.command("demo", hidden=True)
def _demo() -> None:
    """Publish and subscribe to the bus on this machine, to have something to look at."""
    from doubledecker.cli.up import demo  # noqa: PLC0415 - the client is slow to import

    demo.demo()


@cli.group("pipeline")
def _pipeline() -> None:
    """Archive, with Spark, what passes over the bus."""


@_pipeline.command("run")
@click.option("--once", is_flag=True, help="End when everything there is has been done")
@click.option("--data", type=_FOLDER, help="Folder of `doubledecker up`: its bus and its lake  [default: .data]")
@click.option("--lake", metavar="PATH", help="Where the tables are  [default: DOUBLEDECKER_LAKE, or lake in --data]")
@click.option("--master", help="Where Spark runs  [default: DOUBLEDECKER_SPARK_MASTER or local[*]]")
@click.option("--take-over", is_flag=True, help="Be the bus's archive, though it has another")
def _run(data: Path | None, lake: str | None, master: str | None, *, once: bool, take_over: bool) -> None:
    """Move journals to the lake, until stopped."""
    from doubledecker.cli import pipeline  # noqa: PLC0415 - only what the command needs

    pipeline.run(data=data, lake=lake, master=master, is_once=once, takes_over=take_over)


@_pipeline.command("sources")
@click.option("--data", type=_FOLDER, help="Folder of `doubledecker up`  [default: .data]")
@_json
def _sources(data: Path | None, *, as_json: bool) -> None:
    """Show what sources.toml configures, or what is wrong there."""
    from doubledecker.cli import pipeline  # noqa: PLC0415 - only what the command needs

    pipeline.show_sources(data=data, as_json=as_json)


@_pipeline.command("package")
@click.argument("folder", type=_FOLDER)
def _package(folder: Path) -> None:
    """Write what spark-submit needs to FOLDER. It is our code as a zip, and a program that starts it."""
    from doubledecker.cli import pipeline  # noqa: PLC0415 - only what the command needs

    pipeline.write_package(folder)


@_pipeline.command("status")
@click.option("--url", metavar="REDIS_URL", help="The bus's Redis  [default: DOUBLEDECKER_REDIS_URL]")
@click.option(
    "--data", type=_FOLDER, help="Folder of a running `doubledecker up`  [default: .data or .demo, where one runs]"
)
@_json
def _pipeline_status(url: str | None, data: Path | None, *, as_json: bool) -> None:
    """Show the rows, the lag and the table of each step."""
    from doubledecker.cli import pipeline  # noqa: PLC0415 - the store is slow to import

    if url and data:
        raise click.UsageError("--url and --data both name a place to look; pass one")
    pipeline.status(url=url, data=data, as_json=as_json)


@cli.group()
def token() -> None:
    """Make, list, update, rotate and revoke tokens."""


@token.command()
@click.argument("name")
@_with_scopes
@_as_admin
def create(name: str, bus: str | None, data: Path | None, secret: str | None, *, asked: TokenAsked) -> None:
    """Make a client and print its secret, this once."""
    from doubledecker.cli import clients  # noqa: PLC0415 - only what the command needs

    clients.create_token(bus, data, secret, name, asked)


@token.command()
@click.argument("id")
@_with_scopes
@click.option("--unlimited", is_flag=True, help="Let it do all that a client may")
@_as_admin
def update(
    id: str,  # noqa: A002 - click shows its name
    bus: str | None,
    data: Path | None,
    secret: str | None,
    *,
    unlimited: bool,
    asked: TokenAsked,
) -> None:
    """Change what a client may do, or when its token ends. Actions, topics and tenants are replaced together."""
    from doubledecker.cli import clients  # noqa: PLC0415 - only what the command needs

    clients.update_token(bus, data, secret, id, asked, is_unlimited=unlimited)


@token.command()
@click.argument("tenant")
@click.option("--topic", "topics", multiple=True, help="Only this of the client's topics; may be repeated")
@click.option(
    "--expires-in",
    "expires_in_s",
    type=click.IntRange(1, 86_400),
    default=3_600,
    show_default=True,
    metavar="S",
    help="Seconds until it ends",
)
@click.option("--token", "secret", envvar="BUS_TOKEN", metavar="SECRET", help="The client's  [env: BUS_TOKEN]")
@_as_root
def portal(
    tenant: str, topics: tuple[str, ...], expires_in_s: int, secret: str | None, bus: str | None, data: Path | None
) -> None:
    """Print a token for the subscriptions of TENANT alone."""
    from doubledecker.cli import clients  # noqa: PLC0415 - only what the command needs

    if not secret:
        raise click.UsageError("say for which client with --token; make one with `doubledecker token create NAME`")
    clients.portal_token(bus, data, secret, tenant, topics=topics, expires_in_s=expires_in_s)


@token.command("list")
@_as_admin
@_json
def list_(bus: str | None, data: Path | None, secret: str | None, *, as_json: bool) -> None:
    """List the clients."""
    from doubledecker.cli import clients  # noqa: PLC0415 - only what the command needs

    clients.list_tokens(bus, data, secret, as_json=as_json)


@token.command()
@click.argument("id")
@_overlap("How long the former secret works too; 0 ends it at once")
@_as_admin
def rotate(id: str, overlap_s: int, bus: str | None, data: Path | None, secret: str | None) -> None:  # noqa: A002 - click shows its name
    """Replace a client's secret and print the new one, this once. The client keeps its id and all that it owns."""
    from doubledecker.cli import clients  # noqa: PLC0415 - only what the command needs

    clients.rotate_token(bus, data, secret, id, overlap_s=overlap_s)


@token.command()
@click.argument("id")
@_with_consent
@_as_admin
def revoke(
    id: str,  # noqa: A002 - click shows its name
    bus: str | None,
    data: Path | None,
    secret: str | None,
    *,
    consent: Consent,
) -> None:
    """Forget a client. Its subscriber ends with it."""
    from doubledecker.cli import clients  # noqa: PLC0415 - only what the command needs

    clients.revoke_token(bus, data, secret, id, consent)


@cli.group()
def topic() -> None:
    """List and share topics, give them away, delete them.

    An owner sets and deletes its topics, an admin any; an admin alone gives.
    """


@topic.command("list")
@_as_caller
@_json
def _list_topics(secret: str | None, bus: str | None, data: Path | None, *, as_json: bool) -> None:
    """List the topics and who owns them."""
    from doubledecker.cli import topics  # noqa: PLC0415 - only what the command needs

    topics.list_(bus, data, secret, as_json=as_json)


@topic.command("show")
@click.argument("topic")
@_as_caller
@_json
def _show_topic(topic: str, secret: str | None, bus: str | None, data: Path | None, *, as_json: bool) -> None:
    """Show a topic: whose it is, and who may publish."""
    from doubledecker.cli import topics  # noqa: PLC0415 - only what the command needs

    topics.show(bus, data, secret, topic, as_json=as_json)


@topic.command("set")
@click.argument("topic")
@click.option("--publisher", "publishers", multiple=True, metavar="ID", help="May publish too; again for each of them")
@click.option("--no-publishers", is_flag=True, help="Nobody but its owner may publish")
@click.option("--description", metavar="TEXT", help="What it is for")
@_as_caller
def _set_topic(
    topic: str,
    publishers: tuple[str, ...],
    description: str | None,
    secret: str | None,
    bus: str | None,
    data: Path | None,
    *,
    no_publishers: bool,
) -> None:
    """Say who may publish on TOPIC, and what it is for. What is not given stays; one that nobody owns is yours."""
    from doubledecker.cli import topics  # noqa: PLC0415 - only what the command needs

    if publishers and no_publishers:
        raise click.UsageError("--publisher and --no-publishers contradict each other; pass one of them")
    if not publishers and not no_publishers and description is None:
        raise click.UsageError("say what to set: --publisher ID, --no-publishers or --description TEXT")
    named = publishers if publishers or no_publishers else None
    topics.set_(bus, data, secret, topic, publishers=named, description=description)


@topic.command("give")
@click.argument("topic")
@click.argument("id")
@_as_caller
def _give_topic(topic: str, id: str, secret: str | None, bus: str | None, data: Path | None) -> None:  # noqa: A002 - click shows the argument's name
    """Make the client with the token ID the owner of TOPIC. Its subscriptions and its count stay."""
    from doubledecker.cli import topics  # noqa: PLC0415 - only what the command needs

    topics.give(bus, data, secret, topic, id)


@topic.command("delete")
@click.argument("topic")
@_with_consent
@_as_caller
def _delete_topic(topic: str, secret: str | None, bus: str | None, data: Path | None, *, consent: Consent) -> None:
    """Forget TOPIC. The subscriptions to it end, and the next client that publishes on it owns it."""
    from doubledecker.cli import topics  # noqa: PLC0415 - only what the command needs

    topics.delete(bus, data, secret, topic, consent)


@cli.command()
@click.argument("topic")
@click.argument("type")
@click.option("--url", help="What the event is about, an https URL")
@click.option("--payload", metavar="JSON", help="What the event carries: its `data`")
@click.option("--tenant", help="Whose event it is")
@click.option("--key", help="Events with the same key keep their order")
@click.option("--id", metavar="ID", help="Its id  [default: a new one]")
@click.option("--timestamp", type=int, metavar="MS", help="When it happened, in ms since 1970  [default: now]")
@click.option("--token", "secret", envvar="BUS_TOKEN", metavar="SECRET", help="Who publishes  [env: BUS_TOKEN]")
@_as_root
def publish(
    bus: str | None, data: Path | None, secret: str | None, payload: str | None, **fields: str | int | None
) -> None:
    """Publish one event and print its id."""
    from doubledecker.cli import clients  # noqa: PLC0415 - only what the command needs

    if not secret:
        raise click.UsageError("say who publishes with --token; make one with `doubledecker token create NAME`")
    event: dict[str, object] = {name: value for name, value in fields.items() if value is not None}
    if payload is not None:
        event["data"] = clients.parse_payload(payload)
    clients.publish(bus, data, secret, cast("Publication", event))


@cli.command("attempts")
@_receiver
@click.option("--event", metavar="ID", help="Those that carried this event")
@click.option("--outcome", help="delivered, refused, timed_out, unreachable, broken, dropped; or failed: not delivered")
@click.option("--status", type=click.IntRange(100, 599), help="Answered with this HTTP status")
@click.option("--from", "start", metavar="TIME", help="From then on, e.g. 2026-11-15T11:00:00Z")
@click.option("--to", "end", metavar="TIME", help="Before then")
@click.option("--before", metavar="ID", help="Older than this attempt")
@click.option("--limit", type=click.IntRange(1, 1000), default=100, show_default=True, help="How many, newest first")
@_as_caller
@_json
def _attempts(
    receiver: str | None,
    event: str | None,
    secret: str | None,
    bus: str | None,
    data: Path | None,
    *,
    as_json: bool,
    **given: str | int | None,
) -> None:
    """List what was tried to deliver to a receiver, or an event."""
    from doubledecker.cli import attempts  # noqa: PLC0415 - only what the command needs

    if receiver and event:
        raise click.UsageError("--receiver and --event both say which attempts; pass one")
    options = cast("AttemptOptions", {name: value for name, value in given.items() if value is not None})
    attempts.show(bus, data, secret, receiver=receiver, event=event, as_json=as_json, options=options)


@cli.command()
@click.argument("event", required=False)
@click.option("--attempt", metavar="ID", help="The events of this attempt, instead of one by its id")
@_receiver
@click.option("--topic", help="The event's, where the receiver gets several with this id")
@click.option("--source", help="The CloudEvent's, where the receiver gets several with this id")
@_as_caller
def resend(
    event: str | None,
    attempt: str | None,
    receiver: str | None,
    topic: str | None,
    source: str | None,
    secret: str | None,
    bus: str | None,
    data: Path | None,
) -> None:
    """Send EVENT to one receiver again and print its id."""
    from doubledecker.cli import attempts  # noqa: PLC0415 - only what the command needs

    if (event is None) == (attempt is None):
        raise click.UsageError("name an event by its id, or an attempt with --attempt")
    attempts.resend(bus, data, secret, event=event, attempt=attempt, receiver=receiver, topic=topic, source=source)


cli.add_command(audit)
cli.add_command(completion)
cli.add_command(dead)
cli.add_command(_dashboard)
cli.add_command(_doctor)
cli.add_command(events)
cli.add_command(pull)
cli.add_command(queue)
cli.add_command(receiver)
cli.add_command(subscribe)
cli.add_command(subscription)
cli.add_command(unsubscribe)
cli.add_command(replay)
cli.add_command(replays)
cli.add_command(erase)
cli.add_command(simulate)
cli.add_command(_report)
cli.add_command(_status)
cli.add_command(_listen)
cli.add_command(_tail)
cli.add_command(_top)


def main() -> None:
    """Run a command; an error that we know is one line on stderr, never a traceback.

    So is a file or folder that is not ours, wherever a command met it.
    """
    try:
        _load_settings_file()
        cli()
    except Refused as error:
        _fail(error, _REFUSED)
    except BusAway as error:
        _fail(error, _UNREACHABLE)
    except DoubledeckerError as error:
        _fail(error, 1)
    except PermissionError as error:
        _fail(f"{error.filename}: {error.strerror}", 1)


def _load_settings_file() -> None:
    if "DOUBLEDECKER_SETTINGS" in os.environ or Path("doubledecker.toml").is_file():
        from doubledecker.assembly import settings, settings_file  # noqa: PLC0415 - the settings are slow to import

        try:
            settings_file.load(os.environ, Path.cwd())
        except SettingInvalid as error:
            # What reads settings fails with it; help does not, and `doctor` shows it among what it finds.
            os.environ[settings.FILE_INVALID] = str(error)


def _fail(error: DoubledeckerError | str, code: int) -> None:
    words.say(error)
    sys.exit(code)
