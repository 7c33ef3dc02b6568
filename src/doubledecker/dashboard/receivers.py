"""The pages of subscribers and of queues: all of them, and each alone."""

from collections.abc import Mapping

from doubledecker.bus.overview import STATES
from doubledecker.dashboard.bus_view import BusView
from doubledecker.dashboard.listing import cut, is_meant
from doubledecker.dashboard.pages import Visit
from doubledecker.errors import NotFound
from doubledecker.model import token
from doubledecker.model.scopes import LOOKING

_LETTERS_MAX = 10


class SubscriberPages:
    def __init__(self, bus: BusView) -> None:
        self._bus = bus

    async def look(self, visit: Visit) -> Mapping[str, object]:
        """All receivers that the caller may see, those in need first."""
        view = await self._bus.overview()
        seen = self._bus.seen(view, visit)
        state = visit.query.get("state", "")
        chosen = [
            each
            for each in seen
            if state in {"", each.state} and is_meant(visit, each.subscriber.token, *each.subscriber.topics)
        ]
        chosen.sort(key=lambda each: (STATES.index(each.state), -each.events, each.subscriber.token))
        return {
            "at": view.at,
            "states": STATES,
            "listing": cut(chosen, visit),
            "names": token.names([each.subscriber.token for each in seen]),
            "in_all": len(seen),
        }

    async def look_at_one(self, visit: Visit) -> Mapping[str, object]:
        """One receiver, its last attempts and its newest dead letters."""
        name = visit.path["receiver"]
        one = await self._bus.receiver(name, visit)
        may_look = visit.may(*LOOKING)
        return {
            "at": visit.now_ms,
            "one": one,
            "may_look": may_look,
            "attempts": await self._bus.attempts(name, visit.caller) if may_look else [],
            "letters": await self._bus.newest_letters([one], visit.caller, most=_LETTERS_MAX) if may_look else [],
        }


class QueuePages:
    def __init__(self, bus: BusView) -> None:
        self._bus = bus

    async def look(self, visit: Visit) -> Mapping[str, object]:
        """All queues that the caller may see, those with the most waiting first."""
        seen = await self._bus.queues(visit.caller)
        chosen = [each for each in seen if is_meant(visit, each.queue.name, each.queue.owner, *each.queue.patterns)]
        chosen.sort(key=lambda each: (-each.waiting, each.queue.name))
        served = await self._bus.served()
        return {"listing": cut(chosen, visit), "in_all": len(seen), "served": served}

    async def look_at_one(self, visit: Visit) -> Mapping[str, object]:
        """One queue and its tenants, those who ask for the most first."""
        name = visit.path["queue"]
        found = [each for each in await self._bus.queues(visit.caller) if each.queue.name == name]
        if not found:
            raise NotFound(f"no queue {name[:80]!r} that you may see")
        weighed = await self._bus.fairness(found[0])
        tenants = [each for each in weighed.tenants if is_meant(visit, each.tenant)]
        return {"one": found[0], "fairness": weighed, "listing": cut(tenants, visit)}
