"""The pages of topics: all of them, one with who publishes and who subscribes, and changing what is said of it."""

from collections.abc import Mapping

from doubledecker.bus.snapshots import SnapshotCache
from doubledecker.dashboard import forms
from doubledecker.dashboard.bus_view import BusView
from doubledecker.dashboard.listing import cut, is_meant
from doubledecker.dashboard.pages import HOME, Field, Question, Visit, part
from doubledecker.model import topic_glob
from doubledecker.model.scopes import SUBSCRIBING
from doubledecker.model.topic import TopicView

TOPICS = f"{HOME}/topics"
# Whoever looks sees the same for so long.
_LEAST_S = 0.9


class TopicPages:
    def __init__(self, bus: BusView) -> None:
        self._bus = bus
        self._all = SnapshotCache(self._look_at_all)

    async def look(self, visit: Visit) -> Mapping[str, object]:
        """All topics that the caller may see, by name."""
        scopes = visit.caller.scopes
        known = [each for each in await self._all.shared(least_s=_LEAST_S) if scopes.has_topic(each.name)]
        chosen = [each for each in known if is_meant(visit, each.name, each.publisher, each.description)]
        return {"listing": cut(chosen, visit), "in_all": len(known), "sees_counts": scopes.tenants is None}

    async def look_at_one(self, visit: Visit) -> Mapping[str, object]:
        """A topic, and those of the caller's subscriptions that get it."""
        name = visit.path["topic"]
        topic = await visit.get(f"/topics/{part(name)}")
        known = self._bus.registry.snapshot.subscribers.values()
        seen = [
            each.token
            for each in known
            if (visit.caller.is_admin or each.client == visit.caller.id) and topic_glob.cover(each.topics, name)
        ]
        is_own = visit.caller.is_admin or topic["publisher_id"] == visit.caller.id
        return {
            "topic": topic,
            "may_see": visit.may(*SUBSCRIBING),
            "listing": cut(sorted(seen), visit),
            "is_own": is_own,
        }

    async def ask_edit(self, visit: Visit) -> Mapping[str, object]:
        name = visit.path["topic"]
        topic = await visit.get(f"/topics/{part(name)}")
        kept = {"description": topic["description"], "publishers": "\n".join(topic["publishers"])}
        written = {**kept, **visit.query}
        fields = [
            Field("description", "What it is for", written["description"]),
            Field("publishers", "Who may publish besides its owner", written["publishers"], "area", "ids of clients"),
        ]
        return {"question": Question(f"Topic {name}.", "Save", f"{TOPICS}/{part(name)}", fields=fields)}

    async def edit(self, visit: Visit, form: Mapping[str, str]) -> str:
        """Say what a topic is for, and who may publish on it."""
        name = visit.path["topic"]
        body = {"description": form.get("description", "").strip(), "publishers": forms.words(form, "publishers")}
        await visit.send("PUT", f"/topics/{part(name)}", body)
        return f"{TOPICS}/{part(name)}?done=saved"

    async def _look_at_all(self) -> list[TopicView]:
        return [each async for each in self._bus.registry.topics.list_()]
