"""The pages of clients, which are tokens: all of them, a new one, another secret, the end."""

from collections.abc import Mapping
from dataclasses import dataclass

from doubledecker.dashboard import forms
from doubledecker.dashboard.bus_view import BusView
from doubledecker.dashboard.listing import cut, is_meant
from doubledecker.dashboard.pages import HOME, AnswerPage, Field, Question, Visit, part
from doubledecker.errors import NotFound
from doubledecker.model.scopes import ACTIONS
from doubledecker.model.token import Token
from doubledecker.store import registry

CLIENTS = f"{HOME}/clients"
_DAY_S = "86400"


@dataclass(frozen=True)
class ClientRow:
    token: Token
    last_used_at: int | None


class ClientPages:
    def __init__(self, bus: BusView) -> None:
        self._bus = bus

    async def look(self, visit: Visit) -> Mapping[str, object]:
        """All clients by name, with when each was last there."""
        await self._bus.registry.refresh()
        known = self._bus.registry.snapshot.tokens.values()
        chosen = sorted(
            (each for each in known if is_meant(visit, each.id, each.name, each.description)),
            key=lambda each: each.id,
        )
        listing = cut(chosen, visit)
        used = await registry.last_uses(self._bus.partitions.home, [each.id for each in listing.rows])
        return {
            "listing": listing,
            "rows": [ClientRow(each, used.get(each.id)) for each in listing.rows],
            "in_all": len(known),
        }

    async def ask_new(self, visit: Visit) -> Mapping[str, object]:
        """What a new client is asked for."""
        written = visit.query
        fields = [
            Field("name", "Name", written.get("name", ""), is_required=True),
            Field("description", "What it is for", written.get("description", "")),
            Field("expires_in_s", "Ends after so many seconds", written.get("expires_in_s", ""), hint="empty: never"),
            *(Field(f"action_{name}", name, written.get(f"action_{name}", ""), "check") for name in ACTIONS),
            Field("topics", "Topics", written.get("topics", ""), hint="names or globs, like orders.*; empty: all"),
            Field("tenants", "Tenants", written.get("tenants", ""), hint="empty: all"),
        ]
        text = "A token for one program. With no action ticked it may do what any client may, but for admin."
        return {"question": Question(text, "Create the client", CLIENTS, fields=fields)}

    async def create(self, visit: Visit, form: Mapping[str, str]) -> AnswerPage:
        """Make a token; the page shows its secret."""
        actions = [name for name in ACTIONS if form.get(f"action_{name}")]
        scopes: dict[str, object] = {"actions": actions} if actions else {}
        scopes |= {name: some for name in ("topics", "tenants") if (some := forms.words(form, name))}
        body = {**forms.texts(form, "name", "description"), **forms.whole(form, "expires_in_s")}
        told = await visit.send("POST", "/api_tokens", body | ({"scopes": scopes} if scopes else {}))
        return _secret(f"Client {told['id']} signs in with this token", told)

    async def ask_rotate(self, visit: Visit) -> Mapping[str, object]:
        name = self._known(visit).id
        overlap = Field(
            "overlap_s",
            "Seconds in which former tokens work too",
            visit.query.get("overlap_s", _DAY_S),
            hint="0 ends them now",
        )
        text = f"{name} gets a new token, which is shown once; all that it owns stays."
        return {"question": Question(text, "Rotate the token", CLIENTS, fields=[overlap])}

    async def rotate(self, visit: Visit, form: Mapping[str, str]) -> AnswerPage:
        """Replace a client's secret; the page shows the new one."""
        body = forms.whole(form, "overlap_s")
        told = await visit.send("POST", f"/api_tokens/{part(visit.path['id'])}/rotate", body)
        return _secret(f"Client {told['id']} signs in with this token", told)

    async def ask_revoke(self, visit: Visit) -> Mapping[str, object]:
        """What ends with a client."""
        client, known = self._known(visit), self._bus.registry.snapshot
        queues = sum(queue.owner == client.id for queue in known.queues.values())
        ending = len(known.subscriptions_of(client.id))
        warning = f"{ending:,} subscriptions end with it, and what waits for them is destroyed. {queues:,} queues stay."
        return {"question": Question(f"{client.id} is refused from now on.", "Revoke the client", CLIENTS, warning)}

    async def revoke(self, visit: Visit, _form: Mapping[str, str]) -> str:
        """Revoke a client."""
        await visit.send("DELETE", f"/api_tokens/{part(visit.path['id'])}")
        return f"{CLIENTS}?done=revoked"

    def _known(self, visit: Visit) -> Token:
        found = self._bus.registry.snapshot.tokens.get(visit.path["id"])
        if found is None:
            raise NotFound(f"no client {visit.path['id'][:80]!r}")
        return found


def _secret(what: str, told: Mapping[str, object]) -> AnswerPage:
    values = {"what": what, "secret": told["token"], "former_until": told.get("former_until"), "back": CLIENTS}
    return AnswerPage("secret.html", "New token", values)
