"""Every route of /openapi.json asked with every kind of token: a new route is in it without being named here."""

import asyncio
import re

import pytest

from conftest import Topology
from doubledecker.dashboard import site
from harness import ROOT_KEY, TestBus, a_bus
from signing_in import a_browser
from web.asking import Answer, ask, bearer
from web.test_scopes import make

pytestmark = pytest.mark.slow

ACTIONS = ("publish", "subscribe", "consume", "stream", "search", "replay", "manage")


async def kinds(bus: TestBus) -> dict[str, str | None]:
    """A secret of each kind of token."""
    named = {action: {"actions": [action]} for action in (*ACTIONS, "admin", "read-only")}
    wanted = {**named, "none": {"actions": []}, "tenant": {"tenants": ["acme"]}, "topic": {"topics": ["orders"]}}
    made = {name: (await make(bus, f"a-{name}", scopes=scopes))["token"] for name, scopes in wanted.items()}
    revoked, owner = await make(bus, "a-revoked"), await bus.token("owner")
    await ask(bus, "DELETE", f"/api_tokens/{revoked['id']}")
    await ask(bus, "PUT", "/queues/theirs", owner, json={"pattern": ".*", "callback": "https://mail.example/"})
    portal = await ask(bus, "POST", "/portal_tokens", made["manage"], json={"tenant": "acme"})
    return {
        **made,
        "portal": portal.json["token"],
        "root": ROOT_KEY,
        "client": await bus.token("a-client"),
        "revoked": revoked["token"],
        "nobody": None,
    }


def is_open(kind: str, method: str, needs: list[str] | None) -> bool:
    """Whether a token of some kind may ask for a route, in plain words."""
    if needs is None or kind in {"root", "admin"}:
        return True
    if needs == ["admin"] or kind == "none":
        return False
    return kind in {"client", "tenant", "topic"} or kind in needs or (kind == "read-only" and method == "get")


async def test_every_route_is_open_to_the_tokens_that_it_says_and_to_no_others(one: Topology):
    async with a_bus(one, workers=0) as bus:
        paths = (await ask(bus, "GET", "/openapi.json", None)).json["paths"]
        secrets = await kinds(bus)
        operations = [(path, method, operation) for path, row in paths.items() for method, operation in row.items()]

        # A portal has a tenth of its client's requests at a time.
        places = asyncio.Semaphore(20)

        async def look(kind: str, path: str, method: str) -> Answer:
            async with places:
                return await look_now(kind, path, method)

        async def look_now(kind: str, path: str, method: str) -> Answer:
            target = path
            for name in ("name", "subscriber", "tenant", "id"):
                target = target.replace(f"{{{name}}}", "theirs")
            if path == "/stream":
                said = bearer(secrets[kind]) if secrets[kind] else {}
                async with bus.http.head(bus.url + path, headers=said) as response:
                    return Answer(response.status, response.headers, b"")
            return await ask(bus, method.upper(), target, secrets[kind], body=b"")

        wrong = []
        # Those who may delete what is another's come last.
        for kind in sorted(secrets, key=lambda kind: kind in {"root", "admin"}):
            answers = await asyncio.gather(*(look(kind, path, method) for path, method, _ in operations))
            for (path, method, operation), answer in zip(operations, answers, strict=True):
                needs = operation.get("x-actions")
                if kind in {"revoked", "nobody"}:
                    is_right = (answer.status == 401) == (needs is not None)
                elif is_open(kind, method, needs):
                    is_right = answer.status != 401 and not is_gate(answer)
                else:
                    is_right = answer.status == 403
                if not is_right:
                    wrong.append((kind, method, path, answer.status))
            still = await ask(bus, "GET", "/queues/theirs")
            assert still.status == 200 or kind in {"root", "admin"}, kind
    assert wrong == []


def is_gate(answer: Answer) -> bool:
    """Whether the answer is what a token without the action gets; a stream, which has no end, is asked for its head."""
    return answer.status == 403 and (not answer.body or b"this needs the" in answer.body)


async def test_every_page_and_action_is_open_to_the_tokens_that_it_says_and_to_no_others(one: Topology):
    pages = {page.path: page for page in site.pages(None, None)}  # type: ignore[arg-type]  # nothing is looked at
    async with a_bus(one, workers=0) as bus:
        secrets = {kind: secret for kind, secret in (await kinds(bus)).items() if secret}
        wrong = []
        for kind in secrets.keys() - {"portal", "revoked"}:
            async with a_browser(bus, secrets[kind]) as http:
                for path, page in pages.items():
                    # A form without the token of its session does nothing, whoever sends it.
                    for method in ("GET", "POST") if page.act else ("GET",):
                        at = bus.url + re.sub(r"{\w+}", "theirs", path)
                        async with http.request(method, at, allow_redirects=False) as answer:
                            is_shut = answer.status == 403 and "this needs the" in await answer.text()
                        # What is asked before an action may count by a route that changes things.
                        is_asked = bool(page.act) and kind == "read-only" and method == "GET"
                        is_right = is_asked or is_shut != is_open(kind, method.lower(), list(page.needs))
                        if not is_right or answer.status >= 500:
                            wrong.append((kind, method, path, answer.status))
    assert wrong == []
