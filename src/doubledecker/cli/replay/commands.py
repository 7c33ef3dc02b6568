"""`doubledecker replay`, `replays` and `erase`: the words of these commands; what they do is in jobs.py."""

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

import click

from doubledecker.cli import options

# Those of 0.1.0 say what --receiver says.
_TARGETS, _OF_BEFORE = ("receiver", "to_topic"), ("to_subscriber", "to_queue")
_ERASED = ("tenant", "key")
_data = click.option(
    "--data", type=options.FOLDER, help="Folder of `doubledecker up`: its bus and its lake  [default: .data]"
)
_lake = click.option(
    "--lake", metavar="PATH", help="Where the tables are, if no pipeline runs  [default: as for `pipeline run`]"
)
_dry_run = click.option("--dry-run", is_flag=True, help="Only count, by topic and day")


@click.command()
@click.option("--from", "start", metavar="TIME", help="Accepted from then on, e.g. 2026-11-15T11:00:00Z")
@click.option("--to", "end", metavar="TIME", help="Accepted before then  [default: now]")
@click.option("--topic", help="On this topic")
@click.option("--tenant", help="Of this tenant")
@click.option("--where", metavar="SQL", help="Fitting this condition, e.g. \"type = 'create'\"")
@click.option("--receiver", help="To this subscriber, by its id or its client's name, or this queue, by @ and its name")
@click.option("--to-subscriber", hidden=True)
@click.option("--to-queue", hidden=True)
@click.option("--to-topic", metavar="NAME", help="As new events on this topic, by its owner, to all who listen there")
@click.option("--direct", is_flag=True, default=None, help="From Spark's tasks to a subscriber, past Redis")
@click.option("--rate", type=int, metavar="N", help="Events a second  [default: DOUBLEDECKER_REPLAY_RATE_PER_S]")
@click.option("--id", "id_", metavar="ID", help="Go on with a replay, or follow it")
@_dry_run
@options.is_sure
@_data
@_lake
@options.as_json
def replay(
    id_: str | None,
    data: Path | None,
    lake: str | None,
    *,
    dry_run: bool,
    yes: bool,
    as_json: bool,
    **given: str | int | bool | None,
) -> None:
    """Send past events again to one target.

    They come from lake and journal. It counts first, and asks.
    """
    from doubledecker.cli.replay import jobs  # noqa: PLC0415 - the store is slow to import

    asked = {name: value for name, value in given.items() if value is not None}
    if not id_:
        _check_one(asked, _TARGETS, "to whom it goes", former=_OF_BEFORE)
    desk = jobs.JobCalls(data, lake, as_json=as_json)
    if id_ and asked:
        raise click.UsageError(f"--id is a replay as it was asked for; leave out --{min(asked).replace('_', '-')}")
    if id_:
        desk.follow_replay(id_)
    else:
        desk.replay(_aimed(asked), is_dry=dry_run, is_sure=yes)


@click.command()
@click.option("--cancel", metavar="ID", help="End this one where it is; what is sent stays sent")
@_data
@options.as_json
def replays(cancel: str | None, data: Path | None, *, as_json: bool) -> None:
    """List replays, or cancel one."""
    from doubledecker.cli.replay import jobs  # noqa: PLC0415 - the store is slow to import

    desk = jobs.JobCalls(data, None, as_json=as_json)
    if cancel:
        desk.cancel_replay(cancel)
    else:
        desk.list_replays()


@click.command()
@click.option("--tenant", help="All events of this tenant")
@click.option("--key", help="All events of this key")
@click.option("--topic", help="Those of the key on this topic alone")
@_dry_run
@options.is_sure
@_data
@_lake
@options.as_json
def erase(data: Path | None, lake: str | None, *, dry_run: bool, yes: bool, as_json: bool, **given: str | None) -> None:
    """Remove a tenant's or a key's events from the lake for good. Counts first, and asks."""
    from doubledecker.cli.replay import jobs  # noqa: PLC0415 - the store is slow to import

    asked = {name: value for name, value in given.items() if value is not None}
    _check_one(asked, _ERASED, "what to erase")
    jobs.JobCalls(data, lake, as_json=as_json).erase(asked, is_dry=dry_run, is_sure=yes)


def _aimed(asked: Mapping[str, str | int | bool]) -> dict[str, str | int | bool]:
    """What is asked, in the words of the API: a receiver is a subscriber or a queue."""
    aimed = dict(asked)
    if "receiver" in aimed:
        receiver = str(aimed.pop("receiver"))
        aimed["to_queue" if receiver.startswith("@") else "to_subscriber"] = receiver.removeprefix("@")
    return aimed


def _check_one(asked: Collection[str], names: Sequence[str], what: str, *, former: Sequence[str] = ()) -> None:
    """Raise a usage error unless exactly one of these options is there, or one that said so before."""
    given = [name for name in (*names, *former) if name in asked]
    if len(given) != 1:
        seen = " and ".join(map(_option, given)) or "none"
        raise click.UsageError(f"say {what} with one of {', '.join(map(_option, names))}; there is {seen}")


def _option(name: str) -> str:
    return f"--{name.replace('_', '-')}"
