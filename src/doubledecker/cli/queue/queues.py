"""What the commands of `doubledecker queue` do, over HTTP. Counts come before anything is destroyed."""

import contextlib
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, TypeVar, cast
from urllib.parse import quote

import click
import msgspec
from msgspec import Raw

from doubledecker import client
from doubledecker.cli import words
from doubledecker.cli.options import Consent
from doubledecker.client.views import FacetView, Rule
from doubledecker.model.queue import HELD_MAX, RATE_MAX, RATE_MIN, WEIGHT_MAX, WEIGHT_MIN
from doubledecker.model.subscriber import Halt

if TYPE_CHECKING:
    from doubledecker.client import Bus, QueueView
    from doubledecker.client.queue import QueueOptions

_Number = TypeVar("_Number", int, float)

_BAR_LENGTH = 20
_NO_BOUND = "none"
_NOUNS: Mapping[type, str] = {int: "a whole number", float: "a number"}


class _Pulled(msgspec.Struct):
    id: str
    attempt: int
    tenant: str
    event: Raw


class _Pulls(msgspec.Struct):
    messages: list[_Pulled]


class _Peeked(msgspec.Struct):
    id: str
    tenant: str
    event: Raw


class _Peeks(msgspec.Struct):
    messages: list[_Peeked]


class _Settled(msgspec.Struct):
    ids: list[str]
    lost: list[str]


class QueueCalls:
    """Asks a bus about its queues: as the client with a token, or as root."""

    def __init__(self, bus: "Bus") -> None:
        self._bus = bus

    def register(self, name: str, patterns: Sequence[str], asked: Mapping[str, object]) -> None:
        """Create or replace a queue."""
        given = {field: value for field, value in asked.items() if value is not None and value != ()}
        former = self._callback(name)
        kept = self._bus.queue(name).register(patterns, **cast("QueueOptions", given))
        click.echo(
            f"Queue {kept.name} of {kept.owner} gets what matches {' or '.join(kept.pattern)}; "
            f"leases of {words.age(kept.lease_ms)}, {kept.attempts_max} attempts, charged by {kept.charge}"
            + (f"; pushed to {kept.callback}" if kept.callback else "")
            + (f" with the user name {kept.uuid}" if kept.uuid and not asked.get("uuid") else ""),
            err=True,
        )
        if former and not kept.callback:
            click.echo(f"It had the callback {words.printable(former)}, which is removed, with its secret", err=True)
        if kept.secret:
            click.echo("Its signing secret is shown this once:", err=True)
            click.echo(kept.secret)

    def _callback(self, name: str) -> str:
        """The callback that a queue of this name has, if the caller has one."""
        try:
            return self._bus.queue(name).get().callback
        except client.Refused:
            return ""

    def list_(self, *, as_json: bool) -> None:
        """Print all queues that the caller may see."""
        if as_json:
            click.echo(words.printable_json(self._bus.request("GET", "/queues")))
            return
        rows = self._bus.queues()
        numbers = [[f"{n:,}" for n in (row.waiting, row.in_flight, row.delayed, row.dead)] for row in rows]
        cells = [
            [row.name, row.owner, *cell, _pushing(row), " ".join(row.pattern)]
            for row, cell in zip(rows, numbers, strict=True)
        ]
        words.show(["queue", "owner", "waiting", "in flight", "delayed", "dead", "pushing", "patterns"], cells)
        if not rows:
            click.echo("There are no queues; make one with `doubledecker queue register NAME PATTERN`", err=True)

    def show(self, name: str, *, as_json: bool) -> None:
        """Print one queue with its facets."""
        if as_json:
            click.echo(words.printable_json(self._bus.request("GET", _path(name))))
            return
        seen = self._bus.queue(name).get()
        held = {"waiting": seen.waiting, "in flight": seen.in_flight, "delayed": seen.delayed, "dead": seen.dead}
        numbers = {**held, **{f"ever {kind}": count for kind, count in seen.counters.items()}}
        rows = [["patterns", " ".join(seen.pattern)], ["owner", seen.owner], ["lease", words.age(seen.lease_ms)]]
        if seen.filter is not None:
            rows.append(["filter", words.printable(msgspec.json.encode(seen.filter).decode())])
        rows += [["attempts", str(seen.attempts_max)], ["charge", seen.charge]]
        rows += [["order", "one message of a key at a time"]] if seen.ordered else []
        if seen.callback and seen.health is not None:
            halt = Halt.PAUSED if seen.paused else Halt.DISABLED if seen.disabled else Halt.NONE
            state = words.health(seen.health, failures=seen.failures, refusals=seen.refusals, halt=halt)
            counted = (
                words.many(seen.refusals, "refusal") if state == "refusing" else words.many(seen.failures, "failure")
            )
            fares = f"{state} {seen.health}, {counted} in a row"
            rows += [["pushed to", seen.callback], ["its health", fares]]
        words.show([f"queue {seen.name}", ""], rows + [[label, f"{count:,}"] for label, count in numbers.items()])
        click.echo()
        titles = ["tenant", "waiting", "in flight", "oldest", "share", "", "rules"]
        words.show(titles, [_facet_row(each) for each in seen.facets])

    def pull(self, name: str, *, most: int, wait_ms: int, is_acked: bool, as_json: bool) -> None:
        """Take messages and print them; acked only when they are out."""
        # Not by the client's own pull, which reads events and rejects those that it cannot: here they are shown.
        body = {"max": most, "wait_ms": wait_ms}
        answer = self._bus.request("POST", f"{_path(name)}/pull", body, wait_s=wait_ms / 1000)
        messages = msgspec.json.decode(answer, type=_Pulls).messages
        _print(messages, as_json=as_json)
        if not messages:
            click.echo("There is nothing to pull", err=True)
        elif is_acked:
            named = [{"id": each.id, "attempt": each.attempt} for each in messages]
            answer = self._bus.request("POST", f"{_path(name)}/ack", {"messages": named})
            settled = msgspec.json.decode(answer, type=_Settled)
            lost = f"; {len(settled.lost)} had to be left to others" if settled.lost else ""
            click.echo(f"Acked {len(settled.ids)}{lost}", err=True)

    def peek(self, name: str, *, tenant: str, limit: int, as_json: bool) -> None:
        """Print a tenant's next messages, and leave them where they are."""
        answer = self._bus.request("GET", f"{_path(name)}/messages?limit={limit}&tenant={quote(tenant, safe='')}")
        messages = msgspec.json.decode(answer, type=_Peeks).messages
        _print(messages, as_json=as_json)
        if not messages:
            click.echo(f"Nothing of {tenant} waits in {name}", err=True)

    def facet(self, name: str, tenant: str, *, paused: bool | None, as_json: bool, **bounds: str | None) -> None:
        """Change a facet, or show it."""
        facet = self._bus.queue(name).facet(tenant)
        weight = _number("weight", bounds["weight"], float, WEIGHT_MIN, WEIGHT_MAX)
        concurrency = _bound("concurrency", bounds["concurrency"], int, 1, HELD_MAX)
        rate_per_s = _bound("rate", bounds["rate"], float, RATE_MIN, RATE_MAX)
        if weight is paused is None and concurrency is rate_per_s is msgspec.UNSET:
            if as_json:
                at = f"{_path(name)}/facets/{quote(tenant, safe='')}"
                click.echo(words.printable_json(self._bus.request("GET", at)))
                return
            words.show(["tenant", "waiting", "in flight", "oldest", "share", "", "rules"], [_facet_row(facet.get())])
            return
        rule = facet.set(weight=weight, concurrency=concurrency, rate_per_s=rate_per_s, paused=paused)
        click.echo(f"{tenant} in {name}: {_rules(rule)}", err=True)
        if as_json:
            click.echo(words.printable_json(msgspec.json.encode(rule)))

    def purge(self, name: str, *, tenant: str | None, consent: Consent) -> None:
        """Destroy what waits, after a look at how much it is."""
        queue = self._bus.queue(name)
        count, where = queue.purge(tenant=tenant, dry_run=True), f"of {tenant} in {name}" if tenant else f"in {name}"
        if not count:
            click.echo(f"There is no waiting message {where}", err=True)
            return
        if not consent.is_given(f"Destroy {words.many(count, 'waiting message')} {where}?"):
            return
        click.echo(f"{words.many(queue.purge(tenant=tenant), 'waiting message')} {where} destroyed", err=True)

    def delete(self, name: str, *, consent: Consent) -> None:
        """Forget a queue, after a look at what it holds."""
        queue = self._bus.queue(name)
        seen = queue.get()
        held = f"{seen.waiting:,} waiting, {seen.in_flight:,} in flight, {seen.delayed:,} delayed, {seen.dead:,} dead"
        if not consent.is_given(f"Delete queue {name}, and the messages it holds ({held})?"):
            return
        queue.delete(discard=True)
        click.echo(f"Deleted {name} ({held})", err=True)


def _pushing(row: "QueueView") -> str:
    """Whether the queue's messages are pushed to a callback."""
    if not row.callback:
        return "no"
    return "paused" if row.paused else "disabled" if row.disabled else "yes"


def _print(messages: Sequence[_Pulled] | Sequence[_Peeked], *, as_json: bool) -> None:
    """A line each: the event, or the message with it."""
    for each in messages:
        click.echo(words.printable_json(msgspec.json.encode(each) if as_json else bytes(each.event)))


def _path(name: str) -> str:
    return f"/queues/{quote(name, safe='')}"


def _facet_row(each: FacetView) -> list[str]:
    bar = "█" * round(each.share * _BAR_LENGTH) or ("▏" if each.share else "")
    oldest = words.age(each.oldest) if each.waiting else ""
    share = f"{each.share:.1%}"
    return [each.tenant, f"{each.waiting:,}", f"{each.in_flight:,}", oldest, share, bar, _rules(each)]


def _rules(rule: Rule | FacetView) -> str:
    parts = [f"weight {rule.weight:g}"]
    if rule.concurrency is not None:
        parts.append(f"at most {rule.concurrency} at a time")
    if rule.rate_per_s is not None:
        parts.append(f"at most {rule.rate_per_s:g} a second")
    if rule.paused:
        parts.append("paused")
    return ", ".join(parts)


def _bound(
    name: str, text: str | None, kind: type[_Number], least: float, most: float
) -> _Number | msgspec.UnsetType | None:
    """A number, None for no bound, or UNSET when nothing was given; raises a usage error otherwise."""
    if text is None:
        return msgspec.UNSET
    if text == _NO_BOUND:
        return None
    return _number(name, text, kind, least, most, f", or {_NO_BOUND} for no bound")


def _number(
    name: str, text: str | None, kind: type[_Number], least: float, most: float, otherwise: str = ""
) -> _Number | None:
    """A number in its range; NaN and infinity are in none, and JSON would make null of them, which ends a bound."""
    if text is None:
        return None
    with contextlib.suppress(ValueError):
        value = kind(text)
        if least <= value <= most:
            return value
    span = f"{_NOUNS[kind]} from {least:g} to {most:.0f}{otherwise}"
    raise click.UsageError(f"--{name} is {text[:80]!r}; it must be {span}")
