"""The commands of those who use a bus over HTTP: tokens for operators, and publishing."""

import json
from pathlib import Path
from typing import TYPE_CHECKING

import click
import msgspec

from doubledecker import clock
from doubledecker.cli import folder, words
from doubledecker.cli.options import Consent, TokenAsked
from doubledecker.errors import NotFound, Refused

if TYPE_CHECKING:
    from doubledecker.client import Bus, TokenScopes, TokenView
    from doubledecker.client.bus import Publication


def create_token(bus: str | None, data: Path | None, secret: str | None, name: str, asked: TokenAsked) -> None:
    """Print the secret, this once."""
    with folder.connected_as_root(bus, data, secret) as remote:
        created = remote.create_token(
            name, description=asked.description, expires_in_s=asked.expires_in_s, scopes=asked.scopes
        )
    click.echo(f"Made {created.id}. Its secret is shown this once:", err=True)
    click.echo(created.token)


def list_tokens(bus: str | None, data: Path | None, secret: str | None, *, as_json: bool) -> None:
    """Print names and ids."""
    with folder.connected_as_root(bus, data, secret) as remote:
        rows = remote.tokens()
    if as_json:
        click.echo(json.dumps([_token_row(row) for row in rows]))
        return
    cells = [
        [
            row.id,
            row.name,
            words.moment(row.created_at),
            _former(row.former_until),
            "" if row.last_used_at is None else words.moment(row.last_used_at),
            words.moment(row.expires_at) if row.expires_at else "",
            _may(row.scopes),
            row.description,
        ]
        for row in rows
    ]
    words.show(["id", "name", "created", "former secret", "last used", "expires", "limits", "description"], cells)
    if not rows:
        click.echo("There are no tokens; make one with `doubledecker token create NAME`", err=True)


def update_token(
    bus: str | None, data: Path | None, secret: str | None, id_: str, asked: TokenAsked, *, is_unlimited: bool
) -> None:
    """Change what a client may do, how long its token lasts, or what is noted of it."""
    from doubledecker.client import TokenScopes  # noqa: PLC0415 - aiohttp is slow to import

    if is_unlimited and asked.scopes is not None:
        raise click.UsageError("--unlimited goes without --action, --topic and --tenant")
    with folder.connected_as_root(bus, data, secret) as remote:
        id_ = _id_of(remote, id_)
        scopes = TokenScopes() if is_unlimited else asked.scopes
        row = remote.update_token(id_, description=asked.description, expires_in_s=asked.expires_in_s, scopes=scopes)
    click.echo(f"Updated {id_}: {_may(row.scopes) or 'all that a client may'}", err=True)


def rotate_token(bus: str | None, data: Path | None, secret: str | None, id_: str, *, overlap_s: int) -> None:
    """Replace a client's secret and print the new one, this once."""
    with folder.connected_as_root(bus, data, secret) as remote:
        id_ = _id_of(remote, id_)
        rotated = remote.rotate_token(id_, overlap_s=overlap_s)
    until = "no longer works" if rotated.former_until is None else f"works until {words.moment(rotated.former_until)}"
    click.echo(f"Rotated {rotated.id}. Its former secret {until}; the new one is shown this once:", err=True)
    click.echo(rotated.token)


def revoke_token(bus: str | None, data: Path | None, secret: str | None, id_: str, consent: Consent) -> None:
    """Forget one client."""
    with folder.connected_as_root(bus, data, secret) as remote:
        id_ = _id_of(remote, id_)
        question = f"Revoke 1 token, {id_}? Its subscriber, and the events that wait for it, end with it."
        if not consent.is_given(question):
            return
        remote.revoke_token(id_)
    click.echo(f"Revoked {id_}", err=True)


def portal_token(
    bus: str | None, data: Path | None, secret: str, tenant: str, *, topics: tuple[str, ...], expires_in_s: int
) -> None:
    """Print a token for one tenant's own subscriptions."""
    with folder.connected(bus, data, secret) as remote:
        made = remote.portal_token(tenant, expires_in_s=expires_in_s, topics=topics or None)
    until = words.moment(made.expires_at)
    click.echo(f"For the subscriptions of tenant {made.tenant} of {made.client}, until {until}:", err=True)
    click.echo(made.token)


def parse_payload(text: str) -> msgspec.Raw:
    """The data of an event as it was typed; raises a usage error when it is not JSON."""
    try:
        msgspec.json.decode(text)
    except msgspec.DecodeError as error:
        raise click.UsageError(
            f"--payload is not JSON: {error}; quote it, like --payload '{{\"total\": 3}}'"
        ) from error
    return msgspec.Raw(text.encode())


def publish(bus: str | None, data: Path | None, token: str, event: "Publication") -> None:
    """Publish one event and print its id."""
    if data and not data.exists() and _is_json(str(data)):
        raise click.UsageError("--data is a folder, as in all commands; what the event carries is its --payload")
    with folder.connected(bus, data, token) as remote:
        click.echo(remote.publish(**event))


def _is_json(text: str) -> bool:
    try:
        msgspec.json.decode(text)
    except msgspec.DecodeError:
        return False
    return True


def _token_row(row: "TokenView") -> dict[str, object]:
    times = {"created_at": row.created_at, "rotated_at": row.rotated_at, "former_until": row.former_until}
    more = {"description": row.description, "expires_at": row.expires_at, "last_used_at": row.last_used_at}
    return {"id": row.id, "name": row.name, **times, **more, "scopes": msgspec.to_builtins(row.scopes)}


def _may(scopes: "TokenScopes") -> str:
    """The limits of a token in a cell."""
    limits = (("", scopes.actions), ("topics ", scopes.topics), ("tenants ", scopes.tenants))
    return "; ".join(word + (", ".join(names) or "nothing") for word, names in limits if names is not None)


def _former(until: int | None) -> str:
    """Until when a client's former secret works."""
    return "" if until is None or until <= clock.now_ms() else f"until {words.moment(until)}"


def _id_of(remote: "Bus", named: str) -> str:
    """The id of the client that has this id, or alone has this name."""
    rows = remote.tokens()
    if any(row.id == named for row in rows):
        return named
    found = sorted(row.id for row in rows if row.name == named)
    if not found:
        # It is not shown: it may be a secret that was taken for the id.
        raise NotFound("no client has this id or name, and a secret is neither: `doubledecker token list` shows both")
    if len(found) > 1:
        raise Refused(f"{len(found)} clients are named {named!r}; give an id: {', '.join(found)}")
    return found[0]
