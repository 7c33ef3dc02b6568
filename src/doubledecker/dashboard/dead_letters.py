"""The pages of dead letters: grouped by what went wrong, of one receiver, one alone; and what can be done to them."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlencode

import msgspec
from msgspec import Raw

from doubledecker.dashboard import figures
from doubledecker.dashboard.bus_view import BusView
from doubledecker.dashboard.listing import cut, is_meant
from doubledecker.dashboard.pages import HOME, Visit, api_of, part
from doubledecker.errors import BadRequest
from doubledecker.model import token
from doubledecker.model.dead_letter import FIELDS, REASONS
from doubledecker.model.scopes import SEEING_QUEUES
from doubledecker.store import dead_letters

_FILTER = (*FIELDS, "from", "to")
_ROWS = 50
_ATTEMPTS = "50"
# Receivers whose letters are grouped together; those with the most come first.
_GROUPED_MAX = 50
# Values of a field that are shown.
_VALUES_MAX = 12
DEAD = f"{HOME}/dead"
# What one request of the API does; more take a job.
_AT_ONCE_MAX = 10_000
_RATE = "100"
_DID = {"redrive": "redriven", "purge": "purged"}


@dataclass(frozen=True)
class Value:
    """A value that letters have, how many have it, and where these are listed."""

    text: str
    count: int
    link: str = ""


class EventId(msgspec.Struct, gc=False):
    """All that a list shows of an event."""

    id: str = ""


class LetterRow(msgspec.Struct, gc=False):
    """What a list shows of a letter.

    Events are not read but for their ids: those of a page hold megabytes, which are a million values when somebody
    means harm, and the process would answer nobody until it had them.
    """

    id: str
    topic: str
    tenant: str
    attempts: int
    reason: str
    why: str
    died_at: int
    event: EventId


class LetterRows(msgspec.Struct, gc=False):
    """A page of letters."""

    count: int
    messages: list[LetterRow]
    after: str | None


class DeadLetterPages:
    def __init__(self, bus: BusView) -> None:
        self._bus = bus

    async def look(self, visit: Visit) -> Mapping[str, object]:
        """All receivers of the caller that have dead letters, and what these died of."""
        counts = await self._counts(visit)
        chosen = [(name, count) for name, count in counts.items() if count and is_meant(visit, name)]
        chosen.sort(key=lambda pair: (-pair[1], pair[0]))
        return {
            "listing": cut(chosen, visit),
            "names": token.names(list(counts)),
            "in_all": sum(counts.values()),
            "groups": await self._groups(visit, [name for name, _ in chosen[:_GROUPED_MAX]]),
            "grouped_max": _GROUPED_MAX,
        }

    async def look_at_receiver(self, visit: Visit) -> Mapping[str, object]:
        """The letters of one receiver that a filter means, the oldest first, and the jobs that work on them."""
        receiver = visit.path["receiver"]
        chosen, after = visit.given(*_FILTER), visit.given("after")
        asked = {**chosen, **after, "limit": str(_ROWS)}
        found = await visit.get(f"{api_of(receiver)}/dead", asked, type_=LetterRows)
        return {
            "receiver": receiver,
            "found": found,
            "chosen": chosen,
            "reasons": REASONS,
            "groups": await self._groups(visit, [receiver], link=True),
            "jobs": await visit.get(f"{api_of(receiver)}/dead/jobs"),
            "query": urlencode(chosen),
            "said": _said(visit),
        }

    async def look_at_letter(self, visit: Visit) -> Mapping[str, object]:
        """One letter: its event, what was answered last, and the attempts that carried it."""
        receiver = visit.path["receiver"]
        letter = await visit.get(f"{api_of(receiver)}/dead/{part(visit.path['id'])}", type_=dict[str, Raw])
        event = bytes(letter.pop("event"))
        event_id = msgspec.json.decode(event, type=EventId).id
        tried: dict[str, Any] = {"attempts": [], "older": ""}
        if event_id:
            tried = await visit.get("/attempts", {"event": event_id, "limit": _ATTEMPTS})
        return {
            "receiver": receiver,
            "letter": {name: msgspec.json.decode(value) for name, value in letter.items()},
            "event_id": event_id,
            "event": figures.over_lines(event),
            "attempts": [each for each in tried["attempts"] if each["receiver"] == receiver],
            "older": tried["older"],
        }

    async def ask_redrive(self, visit: Visit) -> Mapping[str, object]:
        return await self._ask(visit, "redrive")

    async def ask_purge(self, visit: Visit) -> Mapping[str, object]:
        return await self._ask(visit, "purge")

    async def redrive(self, visit: Visit, form: Mapping[str, str]) -> str:
        return await self._settle(visit, form, "redrive")

    async def purge(self, visit: Visit, form: Mapping[str, str]) -> str:
        return await self._settle(visit, form, "purge")

    async def ask_cancel(self, visit: Visit) -> Mapping[str, object]:
        """What is asked before a job is cancelled."""
        receiver = visit.path["receiver"]
        return {"receiver": receiver, "job": await visit.get(f"{api_of(receiver)}/dead/jobs/{part(visit.path['id'])}")}

    async def cancel(self, visit: Visit, _form: Mapping[str, str]) -> str:
        """Cancel a job."""
        receiver = visit.path["receiver"]
        await visit.send("DELETE", f"{api_of(receiver)}/dead/jobs/{part(visit.path['id'])}")
        return f"{DEAD}/{part(receiver)}"

    async def _ask(self, visit: Visit, action: str) -> Mapping[str, object]:
        """How many letters would be taken; of them a form has those that had died by now."""
        receiver = visit.path["receiver"]
        body = _body(visit.given(*_FILTER), visit.ids)
        answer = await visit.send("POST", f"{api_of(receiver)}/dead/{action}", {**body, "dry_run": True})
        given = {name: str(value) for name, value in body.items() if name != "ids"}
        return {
            "receiver": receiver,
            "action": action,
            "count": answer["count"],
            "given": given if visit.ids else {**given, "to": answer["until"]},
            "ids": visit.ids,
            "rate": _RATE if answer["count"] > _AT_ONCE_MAX else "",
            "at_once_max": _AT_ONCE_MAX,
            "back": f"{DEAD}/{part(receiver)}",
        }

    async def _settle(self, visit: Visit, form: Mapping[str, str], action: str) -> str:
        receiver = visit.path["receiver"]
        body = _body({name: form[name] for name in _FILTER if form.get(name)}, visit.ids)
        if rate := form.get("rate_per_s", "").strip():
            body["rate_per_s"] = _number(rate)
        answer = await visit.send("POST", f"{api_of(receiver)}/dead/{action}", body)
        said = {} if "rate_per_s" in body else {_DID[action]: answer["messages"], "of": answer["count"]}
        return f"{DEAD}/{part(receiver)}" + (f"?{urlencode(said)}" if said else "")

    async def _counts(self, visit: Visit) -> dict[str, int]:
        """How many letters each receiver of the caller has."""
        view = await self._bus.overview()
        found = {each.subscriber.token: each.dead for each in self._bus.seen(view, visit)}
        queues = await self._bus.queues(visit.caller) if visit.may(*SEEING_QUEUES) else []
        return {**{f"@{each.queue.name}": each.dead for each in queues}, **found}

    async def _groups(self, visit: Visit, receivers: Sequence[str], *, link: bool = False) -> dict[str, list[Value]]:
        """How many letters have each value of each field, the most frequent first.

        A limited token sees none: the counts are also of what is beyond its limits.
        """
        if visit.caller.scopes.limits_events or not receivers:
            return {}
        counted: dict[str, Counter[str]] = {field: Counter() for field in ("reason", "status", "topic", "tenant")}
        for partition in self._bus.partitions.all:
            for receiver in receivers:
                by = (await dead_letters.totals(partition, receiver)).by
                for field, counts in counted.items():
                    counts.update(by.get(field, {}))
        return {
            field: [
                Value(text, count, f"?{urlencode({**visit.given(*_FILTER), field: text})}" if link else "")
                for text, count in counts.most_common(_VALUES_MAX)
            ]
            for field, counts in counted.items()
            if counts
        }


def _body(chosen: Mapping[str, str], ids: Sequence[str]) -> dict[str, Any]:
    """A choice of letters as the API takes it."""
    body: dict[str, Any] = {name: value for name, value in chosen.items() if name != "status"}
    if status := chosen.get("status"):
        body["status"] = _whole(status)
    return {**body, **({"ids": list(ids)} if ids else {})}


def _whole(text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) < _VALUES_MAX):
        raise BadRequest(f"status is {text[:80]!r}; it must be an HTTP status, like 503, or 0 for no answer")
    return int(text)


def _number(text: str) -> float:
    try:
        return float(msgspec.json.decode(text.encode(), type=float))
    except msgspec.DecodeError:
        raise BadRequest(f"the rate is {text[:80]!r}; it must be a number, like 100") from None


def _said(visit: Visit) -> str:
    """What was done just now, as the address has it: numbers alone, so that no link puts words here."""
    for did in _DID.values():
        done, of = visit.query.get(did, ""), visit.query.get("of", "")
        if all(text.isascii() and text.isdigit() and len(text) < _VALUES_MAX for text in (done, of)):
            left = int(of) - int(done)
            more = f"; {left:,} more are left" if left > 0 else ""
            return f"{int(done):,} of {int(of):,} dead letters are {did}{more}."
    return ""
