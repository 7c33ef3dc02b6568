"""The commands of those who use a bus over HTTP: tokens and topics for its operator, publishing for its clients."""

import json
import os
from pathlib import Path
from urllib.parse import quote

import click
import msgspec

from doubledecker import clock
from doubledecker.assembly import settings as reading
from doubledecker.cli import folder, table, words
from doubledecker.cli.calls import BUS_URL, Remote
from doubledecker.errors import NotFound


class _Created(msgspec.Struct):
    token: str
    id: str


class _Listed(msgspec.Struct):
    name: str
    token: str
    created_at: int
    rotated_at: int | None = None
    former_until: int | None = None


class _Rotated(msgspec.Struct):
    token: str
    id: str
    former_until: int | None


class _Topic(msgspec.Struct):
    name: str
    publisher: str
    publisher_id: str
    events: int


class _Subscriber(msgspec.Struct):
    topics: list[str]


class _Accepted(msgspec.Struct):
    ids: list[str]


def create_token(bus: str | None, data: Path | None, name: str) -> None:
    """Print the secret, this once."""
    answer = as_caller(bus, data).post("/api_tokens", {"name": name})
    created = msgspec.json.decode(answer, type=_Created)
    click.echo(f"Made {created.id}. Its secret is shown this once:", err=True)
    click.echo(created.token)


def list_tokens(bus: str | None, data: Path | None, *, as_json: bool) -> None:
    """Print names and ids."""
    rows = _tokens(as_caller(bus, data))
    if as_json:
        click.echo(json.dumps([_token_row(row) for row in rows]))
        return
    cells = [[row.token, row.name, words.moment(row.created_at), _former(row.former_until)] for row in rows]
    table.show(["id", "name", "created", "former secret"], cells)
    if not rows:
        click.echo("There are no tokens; make one with `doubledecker token create NAME`", err=True)


def rotate_token(bus: str | None, data: Path | None, id_: str, *, overlap_s: int) -> None:
    """Replace a client's secret and print the new one, this once."""
    remote = as_caller(bus, data)
    _check_known(remote, id_)
    answer = remote.post(f"/api_tokens/{quote(id_, safe='')}/rotate", {"overlap_s": overlap_s})
    rotated = msgspec.json.decode(answer, type=_Rotated)
    until = "no longer works" if rotated.former_until is None else f"works until {words.moment(rotated.former_until)}"
    click.echo(f"Rotated {rotated.id}. Its former secret {until}; the new one is shown this once:", err=True)
    click.echo(rotated.token)


def revoke_token(bus: str | None, data: Path | None, id_: str, *, is_sure: bool) -> None:
    """Forget one client."""
    remote = as_caller(bus, data)
    _check_known(remote, id_)
    if not is_sure:
        question = f"Revoke 1 token, {id_}? Its subscriber, and the events that wait for it, end with it."
        click.confirm(question, abort=True, err=True)
    remote.delete("/api_tokens", id_)
    click.echo(f"Revoked {id_}", err=True)


def list_topics(bus: str | None, data: Path | None, *, as_json: bool) -> None:
    """Print the topics, who owns them, and how many events they had."""
    answer = as_caller(bus, data).get("/topics")
    if as_json:
        click.echo(answer)
        return
    rows = msgspec.json.decode(answer, type=list[_Topic])
    shown = [[row.name, row.publisher, row.publisher_id, f"{row.events:,}"] for row in rows]
    table.show(["topic", "owner", "owner's id", "events"], shown)
    if not rows:
        click.echo("There are no topics; the first client to publish on one owns it", err=True)


def give_topic(bus: str | None, data: Path | None, name: str, id_: str) -> None:
    """Make another client the owner of a topic."""
    as_caller(bus, data).post(f"/topics/{quote(name, safe='')}/give", {"to": id_})
    click.echo(f"Topic {name} belongs to {id_}", err=True)


def delete_topic(bus: str | None, data: Path | None, name: str, *, is_sure: bool) -> None:
    """Forget a topic, having said what ends with it."""
    remote = as_caller(bus, data)
    if all(row.name != name for row in msgspec.json.decode(remote.get("/topics"), type=list[_Topic])):
        raise NotFound(f"no topic named {name!r}; `doubledecker topic list` shows them")
    if not is_sure:
        subscribers = msgspec.json.decode(remote.get("/subscribers"), type=list[_Subscriber])
        count = sum(name in each.topics for each in subscribers)
        question = f"Delete topic {name}? {count} subscriptions to it end, and any client may take its name."
        click.confirm(question, abort=True, err=True)
    remote.delete("/topics", name)
    click.echo(f"Deleted {name}", err=True)


def parse_data(text: str) -> msgspec.Raw:
    """The data of an event as it was typed; raises a usage error when it is not JSON."""
    try:
        msgspec.json.decode(text)
    except msgspec.DecodeError as error:
        raise click.UsageError(f"--data is not JSON: {error}; quote it, like --data '{{\"total\": 3}}'") from error
    return msgspec.Raw(text.encode())


def publish(bus: str | None, token: str, event: dict[str, object]) -> None:
    """Publish one event and print its id."""
    accepted = msgspec.json.decode(as_caller(bus, None, token).post("/events", event), type=_Accepted)
    click.echo(accepted.ids[0])


def as_caller(bus: str | None, data: Path | None, secret: str | None = None) -> Remote:
    """The bus that is named, or that of the folder; with the key of whoever asks, or the root key."""
    where = bus or folder.find_bus(data) or BUS_URL
    return Remote(where, secret or reading.read(os.environ).root_key or folder.read_root_key(data or folder.DEFAULT))


def _token_row(row: _Listed) -> dict[str, object]:
    times = {"created_at": row.created_at, "rotated_at": row.rotated_at, "former_until": row.former_until}
    return {"id": row.token, "name": row.name, **times}


def _former(until: int | None) -> str:
    """Until when a client's former secret works."""
    return "" if until is None or until <= clock.now_ms() else f"until {words.moment(until)}"


def _check_known(remote: Remote, id_: str) -> None:
    """Raise unless a client has this id."""
    if all(row.token != id_ for row in _tokens(remote)):
        raise NotFound(f"no token with the id {id_!r}; `doubledecker token list` shows them")


def _tokens(remote: Remote) -> list[_Listed]:
    answer = remote.get("/api_tokens")
    return msgspec.json.decode(answer, type=list[_Listed]) if answer else []
