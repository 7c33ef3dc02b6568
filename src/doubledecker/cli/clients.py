"""The commands of those who use a bus over HTTP: tokens for its operator, publishing for its clients."""

import json
import os
from pathlib import Path

import click
import msgspec

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
        click.echo(json.dumps([{"id": row.token, "name": row.name, "created_at": row.created_at} for row in rows]))
        return
    cells = [[row.token, row.name, words.moment(row.created_at)] for row in rows]
    table.show(["id", "name", "created"], cells)
    if not rows:
        click.echo("There are no tokens; make one with `doubledecker token create NAME`", err=True)


def revoke_token(bus: str | None, data: Path | None, id_: str, *, is_sure: bool) -> None:
    """Forget one client."""
    remote = as_caller(bus, data)
    if all(row.token != id_ for row in _tokens(remote)):
        raise NotFound(f"no token with the id {id_!r}; `doubledecker token list` shows them")
    if not is_sure:
        question = f"Revoke 1 token, {id_}? Its subscriber, and the events that wait for it, end with it."
        click.confirm(question, abort=True, err=True)
    remote.delete("/api_tokens", id_)
    click.echo(f"Revoked {id_}", err=True)


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


def _tokens(remote: Remote) -> list[_Listed]:
    answer = remote.get("/api_tokens")
    return msgspec.json.decode(answer, type=list[_Listed]) if answer else []
