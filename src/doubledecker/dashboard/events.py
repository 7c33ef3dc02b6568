"""The pages of events: the last ones, one event's whole life, sending it again, and the search."""

import shlex
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlencode

import msgspec

from doubledecker.dashboard import figures
from doubledecker.dashboard.bus_view import BusView
from doubledecker.dashboard.event_search import EventPlace, EventSearch, EventsWanted
from doubledecker.dashboard.pages import HOME, Elsewhere, Visit, api_of, part
from doubledecker.errors import Forbidden, NotFound
from doubledecker.model import token, uid
from doubledecker.model.event import EVENT_ID
from doubledecker.model.scopes import LOOKING, SEARCH, SEEING_QUEUES, STREAM

EVENTS = f"{HOME}/events"
_FILTER = ("topic", "tenant", "type")
_ROWS = 50
_ATTEMPTS = "100"
# As publishers give them; the bus adds the others.
_PUBLISHED = ("topic", "type", "url", "data", "tenant", "key")
# Receivers that are offered to send an event to; others are typed in.
_OFFERED_MAX = 200


class EventPages:
    def __init__(self, bus: BusView, events: EventSearch) -> None:
        self._bus = bus
        self._events = events

    async def look(self, visit: Visit) -> Mapping[str, object]:
        """The newest events of the journal that fit."""
        chosen, before = visit.given(*_FILTER), visit.given("before")
        place = EventPlace.parse(before["before"]) if before else None
        found = await self._events.newest(EventsWanted(visit.caller, **chosen), before=place, limit=_ROWS)
        return {
            "found": found.rows,
            "chosen": chosen,
            "is_first": not before,
            "newest": f"?{urlencode(chosen)}",
            "older": f"?{urlencode({**chosen, 'before': str(found.before)})}" if found.before else "",
            "looked_to": found.before.ms if found.before else None,
        }

    async def look_at_one(self, visit: Visit) -> Mapping[str, object]:
        """All that is known of the events with an id."""
        id_ = visit.path["event"]
        if not EVENT_ID.fullmatch(id_):
            raise NotFound(f"no event has the id {id_[:80]!r}")
        life = await self._events.life(id_, visit.caller)
        may_look = visit.may(*LOOKING)
        tried = await visit.get("/attempts", {"event": id_, "limit": _ATTEMPTS}) if may_look else None
        return {
            "id": id_,
            "life": life,
            "shown": [(each, figures.pretty(each.fields), _curl(each.fields)) for each in life.accepted],
            "attempts": tried,
            "letters": [each for each in life.waiting if each.kind == "dead"],
            "was_sent": visit.query.get("sent") == "1",
        }

    async def ask_resend(self, visit: Visit) -> Mapping[str, object]:
        """The receivers to which an event may be sent again."""
        view = await self._bus.overview()
        offered = [each.subscriber.token for each in self._bus.seen(view, visit)]
        return {"id": visit.path["event"], "offered": offered[:_OFFERED_MAX], "topic": visit.query.get("topic", "")}

    async def resend(self, visit: Visit, form: Mapping[str, str]) -> str:
        """Send an event to one receiver again."""
        id_, receiver = visit.path["event"], form.get("receiver", "").strip()
        if not receiver.removeprefix("@"):
            raise NotFound("name a subscriber, or a queue by @ and its name")
        body = {"event": id_, **({"topic": form["topic"]} if form.get("topic") else {})}
        await visit.send("POST", f"{api_of(receiver)}/resend", body)
        return f"{EVENTS}/{part(id_)}?sent=1"

    async def search(self, visit: Visit) -> Mapping[str, object]:
        """Leads to what the text names; where that is several things or unknown, shows what it may be."""
        text = visit.query.get("q", "").strip()[:200]
        view = await self._bus.overview()
        tokens = [each.subscriber.token for each in self._bus.seen(view, visit)]
        names = token.names(tokens)
        queues = [each.queue.name for each in await self._queues(visit)]
        topic = await self._topic(visit, text)
        subscribers = [each for each in tokens if text and text in {each, names[each]}]
        links = [(f"Subscriber {each}", f"{HOME}/subscribers/{part(each)}") for each in subscribers]
        links += [(f"Queue {text}", f"{HOME}/queues/{part(text)}")] if text.removeprefix("@") in queues else []
        sees_events = visit.may(SEARCH, STREAM)
        links += (
            [(f"Events on topic {text}", f"{EVENTS}?{urlencode({'topic': text})}")] if topic and sees_events else []
        )
        if not links and sees_events and uid.made_at(text) is not None:
            links = [("", f"{EVENTS}/{part(text)}")]
        if len(links) == 1:
            raise Elsewhere(links[0][1])
        like = [each for each in tokens if text and text.lower() in each.lower()][:_ROWS]
        return {"text": text, "links": links, "like": like, "names": names, "sees_events": sees_events}

    async def _queues(self, visit: Visit) -> list[Any]:
        return list(await self._bus.queues(visit.caller)) if visit.may(*SEEING_QUEUES) else []

    async def _topic(self, visit: Visit, name: str) -> bool:
        """Whether there is such a topic, as far as the API shows it to this caller."""
        if not name:
            return False
        try:
            await visit.get(f"/topics/{part(name)}")
        except (NotFound, Forbidden):
            return False
        return True


def _curl(fields: Mapping[str, object]) -> str:
    """The command that publishes an event like this one."""
    given = {name: fields[name] for name in _PUBLISHED if name in fields}
    return f"curl -u $TOKEN: $BUS/events -d {shlex.quote(msgspec.json.encode([given]).decode())}"
