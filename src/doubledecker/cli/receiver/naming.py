"""How commands name a receiver: a subscription by its id or `client/name`, or `@` and a queue.

The bus finds it. When it finds none, the error names those that are alike, and the command that lists all.
"""

import contextlib
import difflib
from collections.abc import Iterator, Sequence
from pathlib import Path

import click

from doubledecker import client
from doubledecker.cli import folder, words
from doubledecker.errors import NotFound, Refused

_NO_OWN = (
    "root has no subscriber of its own: name a receiver (`doubledecker receiver list` shows them), "
    "or pass its client's --token"
)
_SHOWN_MAX = 5


@contextlib.contextmanager
def asked(bus: str | None, data: Path | None, secret: str | None, receiver: str | None) -> Iterator["client.Bus"]:
    """The bus, to be asked about a receiver: the one with this name, or the caller's own subscriber."""
    if receiver is None and secret is None:
        raise click.UsageError(_NO_OWN)
    with folder.connected(bus, data, secret) as remote:
        try:
            yield remote
        except client.NotFound:
            check_known(remote, receiver)
            raise
        except client.Forbidden as error:
            if receiver is None:
                raise click.UsageError(_NO_OWN) from error
            raise


def check_known(remote: "client.Bus", receiver: str | None) -> None:
    """Raise NotFound unless the caller has such a receiver, also when it gets nothing."""
    if receiver is not None and receiver.startswith("@"):
        known = [each.name for each in remote.queues()]
        if receiver.removeprefix("@") not in known:
            raise _unknown(receiver.removeprefix("@"), known, "queue", "queue list")
        return
    subscriptions = remote.subscriptions()
    if receiver is not None:
        choose(subscriptions, receiver)
    else:
        default(subscriptions)


def default(subscriptions: "Sequence[client.SubscriptionView]") -> "client.SubscriptionView":
    """A client's default one of its subscriptions; raises NotFound."""
    for each in subscriptions:
        if each.name == "default":
            return each
    raise NotFound("this client has no default subscription; make one with `doubledecker subscribe`")


def choose(subscriptions: "Sequence[client.SubscriptionView]", named: str) -> "client.SubscriptionView":
    """The subscription with this id, or that alone has this name; raises NotFound, or Refused for several."""
    by_id = {each.subscriber: each for each in subscriptions}
    found = [named] if named in by_id else [id_ for id_, each in by_id.items() if named in _names(each)]
    if not found:
        known = [name for each in subscriptions for name in (each.subscriber, *_names(each))]
        raise _unknown(named, known, "subscriber", "receiver list")
    if len(found) > 1:
        raise Refused(f"{len(found)} subscribers are named {named!r}; give an id: {', '.join(sorted(found))}")
    return by_id[found[0]]


def _names(each: "client.SubscriptionView") -> list[str]:
    """What one is called besides its id; by its name alone where that is another than `default`."""
    client_name = words.name(each.client)
    if each.name == "default":
        return [client_name]
    return [f"{each.client}/{each.name}", f"{client_name}/{each.name}", each.name]


def _unknown(named: str, known: Sequence[str], kind: str, command: str) -> NotFound:
    alike = difflib.get_close_matches(named, known, n=_SHOWN_MAX)
    hint = f"did you mean {' or '.join(alike)}? " if alike else ""
    return NotFound(f"no {kind} named {named!r}; {hint}`doubledecker {command}` shows them")
