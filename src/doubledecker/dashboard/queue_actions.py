"""What is done to a queue from its page: purging, deleting, and the rule of a tenant, with a look at what waits."""

from collections.abc import Mapping

from doubledecker.dashboard import figures, forms
from doubledecker.dashboard.pages import HOME, Field, Question, Visit, part
from doubledecker.errors import BadRequest
from doubledecker.model.scopes import LOOKING

QUEUES = f"{HOME}/queues"
_PEEKED = "20"


class QueueActions:
    async def look_at_tenant(self, visit: Visit) -> Mapping[str, object]:
        """A tenant's line in a queue: its rule, and the messages that are next."""
        tenant = _tenant(visit.query)
        facet = await visit.get(f"{_api(visit)}/facets/{part(tenant)}")
        messages = []
        if visit.may(*LOOKING):
            found = await visit.get(f"{_api(visit)}/messages", {"tenant": tenant, "limit": _PEEKED})
            messages = [(each["id"], figures.pretty(each["event"])) for each in found["messages"]]
        return {
            "queue": visit.path["queue"],
            "facet": facet,
            "messages": messages,
            "may_look": visit.may(*LOOKING),
            "fields": _rule_fields(facet),
        }

    async def ask_rule(self, visit: Visit) -> Mapping[str, object]:
        tenant = _tenant(visit.query)
        facet = await visit.get(f"{_api(visit)}/facets/{part(tenant)}")
        written = {"paused": "", **visit.query} if visit.wrong else {}
        text = f"How tenant {tenant} is served by {visit.path['queue']}. What is empty is no bound."
        fields = [Field("tenant", value=tenant, kind="hidden"), *_rule_fields({**facet, **written})]
        return {"question": Question(text, "Save", _at_tenant(visit, tenant), fields=fields)}

    async def rule(self, visit: Visit, form: Mapping[str, str]) -> str:
        """Set a tenant's weight, bounds and pause."""
        tenant = _tenant(form)
        body: dict[str, object] = {"concurrency": None, "rate_per_s": None, "paused": "paused" in form}
        body |= forms.numbers(form, "weight", "rate_per_s") | forms.whole(form, "concurrency")
        await visit.send("PATCH", f"{_api(visit)}/facets/{part(tenant)}", body)
        return f"{_at_tenant(visit, tenant)}&done=ruled"

    async def ask_purge(self, visit: Visit) -> Mapping[str, object]:
        """How many messages would be destroyed: a tenant's, or all."""
        chosen = visit.given("tenant")
        told = await visit.send("POST", f"{_api(visit)}/purge", {**chosen, "dry_run": True})
        whose = f"of tenant {chosen['tenant']} " if chosen else ""
        text = f"{told['messages']:,} messages {whose}wait in {visit.path['queue']}."
        warning = "What waits when you confirm is destroyed for good; what consumers hold is left."
        fields = [Field(name, value=value, kind="hidden") for name, value in chosen.items()]
        return {"question": Question(text, f"Purge {told['messages']:,}", _at(visit), warning, fields)}

    async def purge(self, visit: Visit, form: Mapping[str, str]) -> str:
        """Destroy what waits."""
        told = await visit.send("POST", f"{_api(visit)}/purge", forms.texts(form, "tenant"))
        return f"{_at(visit)}?done=purged&count={told['messages']}"

    async def ask_delete(self, visit: Visit) -> Mapping[str, object]:
        """What would be destroyed with a queue."""
        seen = await visit.get(_api(visit), {"facets": "1"})
        held = ", ".join(
            f"{seen[name]:,} {said}"
            for name, said in (
                ("waiting", "waiting"),
                ("in_flight", "in flight"),
                ("delayed", "delayed"),
                ("dead", "dead letters"),
            )
        )
        warning = f"Its messages are destroyed with it: {held}."
        return {"question": Question(f"{visit.path['queue']} ends.", "Delete the queue", _at(visit), warning)}

    async def delete(self, visit: Visit, _form: Mapping[str, str]) -> str:
        """Delete a queue with all that it holds."""
        await visit.send("DELETE", _api(visit), query={"discard": "1"})
        return f"{QUEUES}?done=deleted"


def _rule_fields(rule: Mapping[str, object]) -> list[Field]:
    def written(name: str) -> str:
        value = rule.get(name)
        return f"{value:g}" if isinstance(value, float) else str(value or "")

    return [
        Field("weight", "Weight", written("weight"), hint="its share against others; 1 is usual"),
        Field("concurrency", "At most in flight", written("concurrency")),
        Field("rate_per_s", "At most a second", written("rate_per_s")),
        Field("paused", "Paused", written("paused"), "check", "nothing of it is handed out"),
    ]


def _tenant(given: Mapping[str, str]) -> str:
    if tenant := given.get("tenant", "").strip():
        return tenant
    raise BadRequest("no tenant is named; give its name, like default")


def _api(visit: Visit) -> str:
    return f"/queues/{part(visit.path['queue'])}"


def _at(visit: Visit) -> str:
    return f"{QUEUES}/{part(visit.path['queue'])}"


def _at_tenant(visit: Visit, tenant: str) -> str:
    return f"{_at(visit)}/tenant?tenant={part(tenant)}"
