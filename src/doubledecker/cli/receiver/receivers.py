"""What `doubledecker receiver`, `subscribe` and `unsubscribe` do, over HTTP."""

import contextlib
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal, cast

import click
import msgspec

from doubledecker import client
from doubledecker.cli import folder, words
from doubledecker.cli.options import Consent
from doubledecker.cli.queue.queues import QueueCalls
from doubledecker.cli.receiver import naming
from doubledecker.model.subscriber import Halt

if TYPE_CHECKING:
    from doubledecker.client import QueueView, ReceiverView, SubscriptionView, TrialView
    from doubledecker.client.bus import SubscriptionOptions


def list_(bus: str | None, data: Path | None, secret: str | None, *, as_json: bool) -> None:
    """Print the subscribers and the queues with a callback that the caller may see."""
    with folder.connected(bus, data, secret) as remote:
        if as_json:
            subscribers, queues = (json.loads(remote.request("GET", at)) for at in ("/subscribers", "/queues"))
            pushed = [each for each in queues if each.get("callback")]
            click.echo(words.printable_json(json.dumps({"subscribers": subscribers, "queues": pushed})))
            return
        rows = [subscriber_row(each) for each in remote.subscriptions()]
        rows += [_queue_row(each) for each in remote.queues() if each.callback]
    words.show(["receiver", "state", "waiting", "dead", "callback", "gets"], rows)
    if not rows:
        click.echo("There are no receivers; a client makes one with `doubledecker subscribe`", err=True)


def show(bus: str | None, data: Path | None, secret: str | None, receiver: str | None, *, as_json: bool) -> None:
    """Print one receiver."""
    with naming.asked(bus, data, secret, receiver) as remote:
        if receiver is not None and receiver.startswith("@"):
            QueueCalls(remote).show(receiver.removeprefix("@"), as_json=as_json)
            return
        if receiver is None:
            # The list is all of them for root, who has none of its own: this is refused then.
            remote.attempts(limit=1)
        seen = remote.subscriptions()
        shown = naming.default(seen) if receiver is None else naming.choose(seen, receiver)
        rows = json.loads(remote.request("GET", "/subscribers")) if as_json else []
    if as_json:
        [row] = [row for row in rows if row["subscriber"] == shown.subscriber]
        click.echo(words.printable_json(json.dumps(row)))
        return
    words.show([f"subscriber {shown.subscriber}", ""], _details(shown))


def change(
    bus: str | None,
    data: Path | None,
    secret: str | None,
    receiver: str | None,
    action: Literal["pause", "resume", "enable"],
) -> None:
    """Pause, resume or enable a receiver, and say what it is then."""
    with naming.asked(bus, data, secret, receiver) as remote:
        act = {"pause": remote.pause, "resume": remote.resume, "enable": remote.enable}[action]
        click.echo(_condition(act(receiver)), err=True)


def test(bus: str | None, data: Path | None, secret: str | None, receiver: str | None, *, as_json: bool) -> None:
    """Send a test event, and print its outcome; exits with 1 unless it was delivered."""
    with naming.asked(bus, data, secret, receiver) as remote:
        seen = remote.test(receiver)
    click.echo(_told(seen), err=True)
    if as_json:
        click.echo(words.printable_json(msgspec.json.encode(seen)))
    else:
        for line in (*seen.headers, *([""] if seen.headers and seen.answer else []), *seen.answer.splitlines()):
            click.echo(words.printable(line))
    if seen.outcome != "delivered":
        raise SystemExit(1)


def rotate_secret(
    bus: str | None, data: Path | None, secret: str | None, receiver: str | None, *, overlap_s: int
) -> None:
    """Replace the signing secret and print the new one, this once."""
    with naming.asked(bus, data, secret, receiver) as remote:
        issued = remote.rotate_secret(receiver, overlap_s=overlap_s)
    until = "" if issued.former_until is None else f"; former ones sign too until {words.moment(issued.former_until)}"
    click.echo(f"{issued.receiver} is signed by a new secret{until}. It is shown this once:", err=True)
    click.echo(issued.secret)


def subscribe(bus: str | None, secret: str | None, topics: Sequence[str], changes: Mapping[str, object]) -> None:
    """Make a client's subscription, or change what is given of it, and say what it gets."""
    options = dict(changes)
    with as_client(bus, secret) as remote:
        former = next((each for each in remote.subscriptions() if each.name == "default"), None)
        callback = str(options.pop("callback", former.callback if former else ""))
        wanted = topics or (former.topics if former else ())
        # Without topics a subscription gets nothing, and is there.
        if not callback or not (wanted or former):
            raise click.UsageError("this client has no subscription yet; give at least one TOPIC, and --callback URL")
        remote.subscribe(wanted, callback, **cast("SubscriptionOptions", options))
        kept = naming.default(remote.subscriptions())
    click.echo(
        f"{kept.subscriber} gets {', '.join(kept.topics) or 'nothing'} at {words.printable(kept.callback)}", err=True
    )


def unsubscribe(bus: str | None, secret: str | None, consent: Consent) -> None:
    """End a client's subscription, after a look at what waits."""
    with as_client(bus, secret) as remote:
        naming.check_known(remote, None)
        kept = naming.default(remote.subscriptions())
        held = f"{words.many(kept.events.queued, 'waiting event')}, {words.many(kept.dead, 'dead letter')}"
        if not consent.is_given(f"End the subscription of {kept.subscriber}, and delete {held}?"):
            return
        remote.unsubscribe()
    click.echo(f"{kept.subscriber} gets nothing any more ({held} deleted)", err=True)


@contextlib.contextmanager
def as_client(bus: str | None, secret: str | None) -> Iterator["client.Bus"]:
    """The bus as a client, which alone has subscriptions."""
    if not secret:
        raise click.UsageError("say whose subscription with --token; make one with `doubledecker token create NAME`")
    with folder.connected(bus, None, secret) as remote:
        yield remote


def subscriber_row(each: "SubscriptionView") -> list[str]:
    """A subscription as lists have it: its id, state, what waits and is dead, where it is called, and its topics."""
    numbers = [f"{each.events.queued:,}", f"{each.dead:,}"]
    return [each.subscriber, _state(each), *numbers, each.callback, " ".join(each.topics)]


def _queue_row(each: "QueueView") -> list[str]:
    # The list of queues says nothing of their receivers' health.
    halt = _halt(each)
    state = halt.name.lower() if halt else ""
    return [f"@{each.name}", state, f"{each.waiting:,}", f"{each.dead:,}", each.callback, " ".join(each.pattern)]


def _details(each: "SubscriptionView") -> list[list[str]]:
    waits = f", the oldest for {words.age(each.events.oldest)}" if each.events.queued else ""
    rows = [
        ["callback", each.callback],
        ["topics", " ".join(each.topics)],
        ["state", _state(each)],
        ["health", f"{each.health}, {words.many(each.failures, 'failure')} in a row"],
        ["waiting", f"{each.events.queued:,}{waits}"],
        ["sent", f"{each.events.sent:,}"],
        ["dead letters", f"{each.dead:,}"],
        ["tier", each.tier],
        ["a batch", f"{each.max_events:,} events, {words.size(each.max_bytes)}, waits {words.age(each.timeout)}"],
        ["calls", f"{each.concurrency} at a time" + (f", {each.rate_per_s:g} a second" if each.rate_per_s else "")],
        ["order", f"by key, on_dead {each.on_dead}" if each.ordered else "none"],
        ["signed", "yes" if each.secret_set else "no"],
    ]
    if each.backlog_max_bytes:
        rows.append(["backlog at most", words.size(each.backlog_max_bytes)])
    if each.filter is not None:
        rows.append(["filter", words.printable(json.dumps(each.filter))])
    if each.disabled:
        rows.append(["disabled", f"since {words.moment(each.disabled.since)}: {each.disabled.why}"])
    return rows


def _state(each: "SubscriptionView") -> str:
    return words.health(each.health, failures=each.failures, refusals=each.refusals, halt=_halt(each))


def _halt(each: "SubscriptionView | QueueView | ReceiverView") -> Halt:
    return Halt.PAUSED if each.paused else Halt.DISABLED if each.disabled else Halt.NONE


def _condition(seen: "ReceiverView") -> str:
    if seen.paused:
        return f"{seen.receiver} is paused; what waits is kept until `doubledecker receiver resume`"
    if seen.disabled:
        why = words.printable(seen.disabled.why)
        return f"{seen.receiver} is disabled ({why}); `doubledecker receiver enable` has it sent to again"
    return f"{seen.receiver} is sent what waits for it"


def _told(seen: "TrialView") -> str:
    status = "" if seen.status is None else f" {seen.status}"
    why = f": {words.printable(seen.detail)}" if seen.detail else ""
    kind = "Signed" if seen.signed else "Unsigned"
    return f"{kind} test event {seen.event} to {seen.receiver}: {seen.outcome}{status} in {seen.took_ms} ms{why}"
