"""The OpenAPI document against the server: all routes, no others, and no answer that it does not describe."""

import json
import re
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import replace
from typing import Annotated

import msgspec
import pytest
from jsonschema import Draft202012Validator
from starlette.requests import Request
from starlette.responses import Response

from conftest import Topology
from doubledecker.assembly.settings import Settings
from doubledecker.model import token as tokens
from doubledecker.model.schema import Shape, between
from doubledecker.model.scopes import ANY
from doubledecker.model.token import Caller
from doubledecker.store import dead_letters, registry
from doubledecker.web import openapi
from doubledecker.web.examples import EXAMPLES
from doubledecker.web.route_table import ApiRoute, Reply, RouteTable
from doubledecker.web.route_table import json as json_of
from harness import ROOT_KEY, TestBus, a_bus, an_event
from letters import a_letter
from web import letter_requests, queue_requests, receiver_requests
from web.asking import Answer, an_app, ask

DOCUMENT = json.loads(an_app(Settings()).document)
SCHEMAS = DOCUMENT["components"]["schemas"]
OPERATIONS = {
    (method.upper(), path): operation for path, row in DOCUMENT["paths"].items() for method, operation in row.items()
}
EVENT = {"type": "noop", "url": "https://shop.example/"}
SUBSCRIPTION = {"topics": ["mine"], "callback": "https://mail.example/"}
LARGE = "x" * 3000
KEY = {"Idempotency-Key": "k"}
_ROTATE = "/api_tokens/{name}/rotate"
FOR_ROOT = {"/api_tokens", "/api_tokens/{name}", "/erasures", "/topics/{name}/give", _ROTATE}

# Who (- is nobody), method, documented path, what is put for its {name}, body, headers, and the status; asked in order.
REQUESTS = [
    # A name with a slash is another path.
    ("root", "PUT", "/subscriptions/{name}", "a%2Fb", None, {}, 404),
    ("root", "PUT", "/queues/{name}", "a%2Fb", None, {}, 404),
    ("root", "POST", "/topics/{name}", "a%2Fb", None, {}, 404),
    ("root", "DELETE", "/api_tokens/{name}", "a%2Fb", None, {}, 404),
    ("root", "GET", "/api_tokens", "", None, {}, 200),
    ("root", "POST", "/api_tokens", "", {"name": "new"}, {}, 201),
    ("root", "POST", "/api_tokens", "", {"name": "new", "token": "chosen"}, {}, 201),
    ("root", "POST", "/api_tokens", "", {"name": "another", "token": "chosen"}, {}, 409),
    ("root", "POST", "/api_tokens", "", {"name": "Bad"}, {}, 400),
    ("root", "POST", "/api_tokens", "", {"name": LARGE}, {}, 413),
    ("root", "POST", "/api_tokens", "", {"name": "taken", "token": "taken"}, {}, 201),
    ("root", "POST", _ROTATE, "chosen", {"token": "rotated"}, {}, 200),
    ("root", "POST", _ROTATE, "chosen", {"overlap_s": -1}, {}, 400),
    ("root", "POST", _ROTATE, "chosen", {"token": LARGE}, {}, 413),
    ("root", "POST", _ROTATE, "chosen", {"token": "taken"}, {}, 409),
    ("root", "POST", _ROTATE, "nobody", {}, {}, 404),
    ("client", "POST", _ROTATE, "chosen", {}, {}, 403),
    ("root", "PATCH", "/api_tokens/{name}", "rotated", {"description": "Why"}, {}, 200),
    ("root", "PATCH", "/api_tokens/{name}", "rotated", {"expires_in_s": 0}, {}, 400),
    ("root", "PATCH", "/api_tokens/{name}", "rotated", {"description": LARGE}, {}, 413),
    ("root", "PATCH", "/api_tokens/{name}", "nobody", {}, {}, 404),
    *(("root", "POST", _ROTATE, "rotated", {}, {}, 200) for _ in range(9)),
    ("root", "POST", _ROTATE, "rotated", {}, {}, 429),
    ("root", "DELETE", "/api_tokens/{name}", "chosen", None, {}, 204),
    ("client", "POST", "/topics/{name}", "mine", EVENT, {}, 204),
    ("client", "POST", "/topics/{name}", "mine", EVENT, KEY, 204),
    ("client", "POST", "/topics/{name}", "mine", {**EVENT, "type": "update"}, KEY, 409),
    ("client", "POST", "/topics/{name}", "mine", {**EVENT, "more": 1}, {}, 400),
    ("client", "POST", "/topics/{name}", "mine", {**EVENT, "data": LARGE}, {}, 413),
    ("other", "POST", "/topics/{name}", "mine", EVENT, {}, 403),
    ("client", "POST", "/events", "", an_event(1, topic="mine"), {}, 202),
    ("client", "POST", "/events", "", [an_event(1, topic="mine"), 7], {}, 202),
    ("client", "POST", "/events", "", [an_event(1, topic="mine")], KEY, 409),
    ("client", "POST", "/events", "", {"topic": "mine"}, {}, 400),
    ("client", "POST", "/events", "", [{"topic": "mine"}], {}, 400),
    ("client", "POST", "/events", "", an_event(1, topic="mine", data=LARGE), {}, 413),
    ("client", "POST", "/events", "", "csv", {"Content-Type": "text/csv"}, 415),
    ("other", "POST", "/events", "", an_event(1, topic="mine"), {}, 403),
    ("other", "POST", "/events", "", [an_event(1, topic="mine")], {}, 403),
    ("root", "GET", "/topics", "", None, {}, 200),
    ("client", "PUT", "/topics/{name}", "said", {"description": "What is said"}, {}, 201),
    ("client", "PUT", "/topics/{name}", "said", {"publishers": []}, {}, 200),
    ("client", "PUT", "/topics/{name}", "said", {"publishers": ["nobody"]}, {}, 400),
    ("client", "PUT", "/topics/{name}", "said", {"description": LARGE}, {}, 413),
    ("other", "PUT", "/topics/{name}", "said", {}, {}, 403),
    ("root", "PUT", "/topics/{name}", "nothing", {}, {}, 404),
    ("other", "GET", "/topics/{name}", "said", None, {}, 200),
    ("other", "GET", "/topics/{name}", "nothing", None, {}, 404),
    ("root", "POST", "/topics/{name}/give", "mine", {"to": "nobody"}, {}, 400),
    ("root", "POST", "/topics/{name}/give", "mine", {"to": LARGE}, {}, 413),
    ("root", "POST", "/topics/{name}/give", "nothing", {"to": "nobody"}, {}, 404),
    ("client", "POST", "/topics/{name}/give", "mine", {"to": "nobody"}, {}, 403),
    *queue_requests.REQUESTS,
    ("client", "POST", "/replays", "", {"to_topic": "mine"}, {}, 202),
    ("client", "POST", "/replays", "", {"to_topic": "mine", "rate": 0}, {}, 400),
    ("client", "POST", "/replays", "", {"to_topic": LARGE}, {}, 413),
    ("client", "POST", "/replays", "", {"to_queue": "nobodys"}, {}, 404),
    ("other", "POST", "/replays", "", {"to_topic": "mine"}, {}, 403),
    ("client", "GET", "/replays", "", None, {}, 200),
    ("client", "GET", "/replays/{id}", "/replays", None, {}, 200),
    ("other", "GET", "/replays/{id}", "/replays", None, {}, 403),
    ("other", "GET", "/replays/{id}", "nobody", None, {}, 404),
    ("other", "DELETE", "/replays/{id}", "/replays", None, {}, 403),
    ("other", "DELETE", "/replays/{id}", "nobody", None, {}, 404),
    ("client", "DELETE", "/replays/{id}", "/replays", None, {}, 200),
    ("client", "DELETE", "/replays/{id}", "/replays", None, {}, 409),
    ("root", "POST", "/erasures", "", {"tenant": "acme"}, {}, 202),
    ("root", "POST", "/erasures", "", {"tenant": "acme", "key": "a"}, {}, 400),
    ("root", "POST", "/erasures", "", {"tenant": LARGE}, {}, 413),
    ("client", "POST", "/erasures", "", {"tenant": "acme"}, {}, 403),
    ("root", "GET", "/erasures", "", None, {}, 200),
    ("client", "GET", "/erasures", "", None, {}, 403),
    ("root", "GET", "/erasures/{id}", "/erasures", None, {}, 200),
    ("root", "GET", "/erasures/{id}", "nobody", None, {}, 404),
    ("client", "GET", "/erasures/{id}", "/erasures", None, {}, 403),
    *(
        (who, "POST", path, "", body, {}, status)
        for path in ("/subscription", "/subscriber")
        for who, body, status in (
            ("client", SUBSCRIPTION, 204),
            ("client", {**SUBSCRIPTION, "max": 0}, 400),
            ("client", {**SUBSCRIPTION, "uuid": LARGE}, 413),
            ("root", SUBSCRIPTION, 403),
        )
    ),
    ("client", "POST", "/filters/test", "", {"filter": {"type": ["made"]}}, {}, 200),
    ("client", "POST", "/filters/test", "", {"filter": {}}, {}, 400),
    ("client", "POST", "/filters/test", "", {"filter": {"type": [LARGE]}}, {}, 413),
    *receiver_requests.REQUESTS,
    *letter_requests.REQUESTS,
    ("root", "GET", "/subscriptions", "", None, {}, 200),
    ("client", "GET", "/subscribers", "", None, {}, 200),
    ("client", "DELETE", "/subscriber/topics/{name}", "mine", None, {}, 204),
    ("client", "DELETE", "/subscriber/topics/{name}", "mine", None, {}, 404),
    ("root", "DELETE", "/subscriber/topics/{name}", "mine", None, {}, 403),
    ("client", "DELETE", "/subscriber", "", None, {}, 204),
    ("client", "DELETE", "/subscriber", "", None, {}, 404),
    ("root", "DELETE", "/subscriber", "", None, {}, 403),
    ("other", "DELETE", "/topics/{name}", "mine", None, {}, 403),
    ("client", "DELETE", "/topics/{name}", "mine", None, {}, 204),
    ("client", "DELETE", "/topics/{name}", "mine", None, {}, 404),
    ("client", "GET", "/api_tokens", "", None, {}, 403),
    ("client", "POST", "/portal_tokens", "", {"tenant": "acme"}, {}, 201),
    ("client", "POST", "/portal_tokens", "", {"tenant": "a b"}, {}, 400),
    ("client", "POST", "/portal_tokens", "", {"tenant": LARGE}, {}, 413),
    ("root", "POST", "/portal_tokens", "", {"tenant": "acme"}, {}, 403),
    ("client", "POST", "/api_tokens", "", {"name": "new"}, {}, 403),
    ("client", "DELETE", "/api_tokens/{name}", "nobody", None, {}, 403),
    ("client", "GET", "/audit", "", None, {}, 200),
    ("client", "GET", "/pulse", "", None, {}, 204),
    ("client", "GET", "/pulse/scaling", "", None, {}, 204),
    *(("-", "GET", path, "", None, {}, 200) for path in ("/health", "/health/ping", "/health/ping.json")),
    *(("-", "GET", path, "", None, {}, 200) for path in ("/livez", "/version")),
    *(("-", "GET", path, "", None, {}, 200) for path in ("/openapi.json", "/metrics")),
    ("-", "GET", "/readyz", "", None, {}, 200),
]
# Answered below the routes, to any request at all; tests/web/test_limits.py and test_probes.py see them.
ANY_REQUEST = {"408", "431", "503"}


def filled(path: str, name: str, id_: str = "0-1") -> str:
    return path.replace("{name}", name).replace("{subscriber}", name).replace("{tenant}", "acme").replace("{id}", id_)


def test_every_route_is_in_the_document_and_every_documented_route_exists():
    app = an_app(Settings())

    routes = {(method, path) for path, row in app.table.routes.items() for method in row}
    assert set(OPERATIONS) == routes


def test_every_operation_has_a_summary():
    assert [key for key, operation in OPERATIONS.items() if not operation["summary"]] == []


def test_what_is_public_in_the_document_is_public_in_the_app():
    for is_public in (True, False):
        app = an_app(Settings(metrics_public=is_public))
        paths = json.loads(app.document)["paths"]
        for path, row in app.table.routes.items():
            for method, route in row.items():
                operation = paths[path][method.lower()]
                assert route.is_public == (operation["security"] == []) == ("401" not in operation["responses"]), path
        assert (paths["/metrics"]["get"]["security"] == []) == is_public


def test_a_component_is_named_in_one_word_and_is_used():
    used = {pointer.rpartition("/")[2] for pointer in references(DOCUMENT)}

    assert [name for name in SCHEMAS if not re.fullmatch(r"([A-Z][a-z]+)+", name)] == []
    assert set(SCHEMAS) == used
    assert set(EXAMPLES) <= set(SCHEMAS)


def test_a_field_that_is_added_to_a_body_or_an_answer_is_in_the_document():
    class Answer(Shape):
        """What is answered."""

        rows: list[int]

    class AskedBody(msgspec.Struct, forbid_unknown_fields=True):
        """What is asked."""

        most: Annotated[int, between(1, 9, "Rows")] = 5

    async def handler(_request: Request, _caller: Caller) -> Response:
        """Ask for rows.

        This is for colleagues.
        """
        return Response()

    route = ApiRoute("POST /asked", handler, {200: Reply(json_of(Answer))}, takes=json_of(AskedBody), needs=ANY)
    document = json.loads(openapi.document(RouteTable([route]).routes))

    assert document["components"]["schemas"]["Asked"] == {
        "description": "What is asked.",
        "type": "object",
        "properties": {
            "most": {"type": "integer", "minimum": 1, "maximum": 9, "default": 5, "description": "Rows"},
        },
        "required": [],
        "additionalProperties": False,
    }
    operation = document["paths"]["/asked"]["post"]
    assert operation["summary"] == "Ask for rows"
    assert operation["requestBody"]["content"]["application/json"]["schema"] == {"$ref": "#/components/schemas/Asked"}
    assert set(operation["responses"]) == {"200", "400", "401", "403", "408", "413", "415", "429", "431", "503"}


def test_the_schemas_are_schemas_and_every_reference_leads_somewhere():
    for schema in SCHEMAS.values():
        Draft202012Validator.check_schema(schema)
    for pointer in references(DOCUMENT):
        kind, _, name = pointer.removeprefix("#/components/").partition("/")
        assert name in DOCUMENT["components"][kind], pointer
    schemes = set(DOCUMENT["components"]["securitySchemes"])
    assert schemes == {"basic", "digest", "bearer"}
    assert {name for operation in OPERATIONS.values() for way in operation["security"] for name in way} == schemes


def test_the_variables_of_a_path_are_declared():
    for (_, path), operation in OPERATIONS.items():
        declared = [each["name"] for each in operation.get("parameters", []) if each["in"] == "path"]
        assert declared == re.findall(r"{(\w+)}", path), path


@pytest.mark.parametrize("name", sorted(SCHEMAS))
def test_the_examples_of_a_schema_fit_it(name: str):
    for example in SCHEMAS[name].get("examples", []):
        assert problems(example, SCHEMAS[name]) == []


async def test_the_server_takes_every_example_of_a_request(one: Topology):
    async with a_bus(one, workers=0) as bus:
        client = await bus.token("client")
        await ask(bus, "POST", "/api_tokens", json={"name": "orders", "token": "orders"})
        # Examples of topics name a client by an id, which cannot be chosen.
        shop = tokens.make("shop-1a2b3c4d", "shop", "a-secret", now_ms=0)
        home = bus.partitions.home
        await registry.save_token(home, shop, seen=await registry.version(home))
        pushed = {"pattern": ".*:orders:.*", "callback": "https://mail.example/"}
        assert (await ask(bus, "PUT", "/queues/orders", client, json=pushed)).status == 201
        [id_] = [row["token"] for row in (await ask(bus, "GET", "/api_tokens")).json if row["name"] == "client"]
        tried = 0
        for (method, path), operation in OPERATIONS.items():
            if path == "/subscribers/{subscriber}/give":
                continue  # the example names a client that is not there
            for kind, media in operation.get("requestBody", {}).get("content", {}).items():
                for example in resolved(media["schema"])["examples"]:
                    body = example.encode() if isinstance(example, str) else json.dumps(example).encode()
                    secret = ROOT_KEY if path in FOR_ROOT else client
                    headers = {"Content-Type": kind}
                    target = filled(path, id_ if "{subscriber}" in path else "orders")
                    answer = await ask(bus, method, target, secret, body=body, headers=headers)
                    # Those of a subscriber and of a queue are alike, and one job runs at a time.
                    if ("{" in path and "/dead/" in path) or "rate_per_s" in example:
                        continue
                    # Which events there are nobody can know before.
                    is_taken = answer.status < 300 or (path.endswith("/resend") and answer.status in {404, 409})
                    assert is_taken, (path, example, answer.body)
                    tried += 1
        assert tried > 10


@pytest.mark.parametrize(
    ("path", "name", "good", "changes"),
    [
        (
            "/topics/orders",
            "TopicEvent",
            EVENT,
            [
                {"type": "paid"},
                {"url": "http://shop.example/"},
                {"url": "https://shop.example/?a"},
                {"url": "https://shop.example/" + "x" * 1024},
                {"url": None},
                {"timestamp": -1},
                {"timestamp": 2**53 + 1},
                {"timestamp": "1"},
                {"topic": "orders"},
            ],
        ),
        (
            "/events",
            "Event",
            an_event(1),
            [
                {"topic": "7bad"},
                {"topic": None},
                {"type": "a b"},
                {"type": "x" * 65},
                {"tenant": ""},
                {"key": "a/b"},
                {"id": "a b"},
                {"id": "x" * 129},
                {"traceparent": "00"},
                {"t": 1},
            ],
        ),
        (
            "/subscription",
            "Subscription",
            SUBSCRIPTION,
            [
                {"topics": ["7bad"]},
                {"topics": ["a"] * 10_001},
                {"callback": "ftp://mail.example/"},
                {"callback": "https://mail.example/a b"},
                {"callback": "https://mail.example/" + "x" * 2048},
                {"uuid": "a:b"},
                {"uuid": "x" * 256},
                *({"timeout": value} for value in (-1, 3_600_001)),
                *({"max": value} for value in (0, 10_001)),
                *({"max_bytes": value} for value in (0, 16_777_217)),
                *({"concurrency": value} for value in (0, 101)),
                {"max_events": 1},
            ],
        ),
        (
            "/api_tokens",
            "TokenWanted",
            {"name": "a"},
            [
                {"name": "A"},
                {"name": "x" * 65},
                {"token": ""},
                {"id": "a"},
                {"description": "x" * 201},
                *({"expires_at": at} for at in (-1, 2**53 + 1)),
                *({"expires_in_s": in_s} for in_s in (0, 400_000_000)),
                *({"scopes": {"actions": actions}} for actions in ([""], ["publish"] * 10, "publish")),
                *({"scopes": {"topics": topics}} for topics in (["a/b"], ["a"] * 101)),
                *({"scopes": {"tenants": tenants}} for tenants in (["a b"], ["."], ["a"] * 101)),
                {"scopes": {"actors": []}},
            ],
        ),
        (
            "/portal_tokens",
            "PortalWanted",
            {"tenant": "acme", "expires_in_s": 60, "topics": ["orders"]},
            [
                *({"tenant": tenant} for tenant in ("", "a b", ".", 1, None)),
                *({"expires_in_s": in_s} for in_s in (0, 86_401, "1")),
                *({"topics": topics} for topics in (["or*"], ["a"] * 21, "orders")),
                {"client": "a"},
            ],
        ),
    ],
    ids=["topic event", "event", "subscription", "token", "portal token"],
)
async def test_the_schema_and_the_server_refuse_the_same(
    one: Topology, path: str, name: str, good: dict[str, object], changes: list[dict[str, object]]
):
    async with a_bus(one, workers=0) as bus:
        secret = ROOT_KEY if path == "/api_tokens" else await bus.token("client")
        assert problems(good, SCHEMAS[name]) == []
        assert (await ask(bus, "POST", path, secret, json=good)).status < 300
        for change in changes:
            assert problems({**good, **change}, SCHEMAS[name]) != [], change
            assert (await ask(bus, "POST", path, secret, json={**good, **change})).status == 400, change
        for field in SCHEMAS[name]["required"]:
            less = {key: value for key, value in good.items() if key != field}
            assert problems(less, SCHEMAS[name]) != [], field
            assert (await ask(bus, "POST", path, secret, json=less)).status == 400, field


Look = Callable[[str, str, str, str, object, dict[str, str]], Awaitable[int]]


async def look_too_often(look: Look, monkeypatch: pytest.MonkeyPatch) -> set[int]:
    """What changes without a body answer to a client that has made too many."""
    with monkeypatch.context() as hasty:
        hasty.setattr("doubledecker.web.app.MINUTE_CHANGES_MAX", 0.1)
        paced = [key for key in OPERATIONS if key[1].endswith(("/pause", "/resume", "/enable"))]
        return {await look("client", *key, "pushed", None, {}) for key in paced}


async def test_every_answer_is_documented_and_every_documented_answer_is_given(
    one: Topology, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("doubledecker.web.body._CLIENT_SHARE", 0.1)
    # As many test events as are asked for with success: one for each path.
    monkeypatch.setattr("doubledecker.web.trials.MINUTE_TRIALS_MAX", 4)
    async with a_bus(one, body_bytes_max=2000, bodies_bytes_max=4000) as bus:
        given: set[tuple[str, str, str]] = set()
        last_ids: dict[str, str] = {}
        ids: dict[str, str] = {}

        async def look(who: str, method: str, path: str, name: str, body: object, headers: dict[str, str]) -> int:
            name, body = with_ids(path, name, body, ids)
            # Of errands, whose ids nobody can know before, the last that was asked for is meant.
            id_ = last_ids.get(name, name) if path.startswith(("/replays", "/erasures")) else "0-9"
            target = filled(path, name, last_ids.get("job", "none") if "/dead/jobs/" in path else id_)
            target += "?event=evt-1" if path == "/attempts" else ""
            answer = await ask(bus, method, target, secrets[who], json=body, headers=headers)
            if answer.status == 202 and path in {"/replays", "/erasures"}:
                last_ids[path] = answer.json["id"]
            if answer.status == 202 and "/dead/" in path:
                last_ids["job"] = answer.json["id"]
            given.add((method, path, str(answer.status)))
            check(method, path, answer)
            return answer.status

        secrets: dict[str, str | None] = {"root": ROOT_KEY, "-": None}
        assert await look("root", "GET", "/api_tokens", "", None, {}) == 204
        secrets |= {"client": await bus.token("client"), "other": await bus.token("other")} | {
            "idle": await bus.token("idle", actions=[])
        }
        ids.update({row["name"]: row["token"] for row in (await ask(bus, "GET", "/api_tokens")).json})
        assert await look("client", "POST", "/topics/{name}", "given", EVENT, {}) == 204
        assert await look("root", "POST", "/topics/{name}/give", "given", {"to": ids["other"]}, {}) == 204
        for who, method, path, name, body, headers, status in REQUESTS:
            as_whom = "client" if path == "/metrics" else who
            await add_letters(bus, who, path)
            assert await look(as_whom, method, path, name, body, headers) == status, (who, method, path, body)
        for (method, path), operation in OPERATIONS.items():
            if operation["security"]:
                assert await look("-", method, path, "a", None, {}) == 401
                assert await look("idle", method, path, "a", None, {}) == 403
        # Whoever was told that a body is too large came as far as the body.
        askers = {(method, path): (who, name) for who, method, path, name, _, _, status in REQUESTS if status == 413}
        with_body = {key: askers[key] for key, operation in OPERATIONS.items() if "requestBody" in operation}
        for method, path in OPERATIONS:
            assert await look("root", method, path, "a", None, {"Content-Encoding": "gzip"}) == 415, (method, path)
        with monkeypatch.context() as crowded:
            crowded.setattr("doubledecker.web.body.UNCOUNTED_BYTES", 0)
            for (method, path), (who, name) in with_body.items():
                assert await look(who, method, path, name, {"why": "x" * 700}, {}) == 429, path
        assert await look_too_often(look, monkeypatch) == {429}
        monkeypatch.setattr("doubledecker.store.registry.TOKENS_MAX", 1)
        assert await look("root", "POST", "/api_tokens", "", {"name": "more"}, {}) == 429
        monkeypatch.setattr("doubledecker.store.pipeline_jobs.ACTIVE_MAX", 1)
        assert await look("client", "POST", "/replays", "", {"to_topic": "mine"}, {}) == 202
        assert await look("client", "POST", "/replays", "", {"to_topic": "mine"}, {}) == 429
        assert await look("root", "POST", "/erasures", "", {"tenant": "acme"}, {}) == 429
        monkeypatch.setattr("doubledecker.store.registry.QUEUES_MAX", 1)
        assert await look("root", "PUT", "/queues/{name}", "more", {"pattern": ".*"}, {}) == 429

    documented = {(*key, status) for key, operation in OPERATIONS.items() for status in operation["responses"]}
    missing = {(method, path, status) for method, path, status in documented - given if status not in ANY_REQUEST}
    # Its answer has no end; tests/web/test_stream.py reads it.
    missing -= {("GET", "/stream", status) for status in ("200", "410", "429")}
    # Without a body to be wrong, a 400 is for what is not HTTP.
    bodiless = {(*key, "400") for key, operation in OPERATIONS.items() if "requestBody" not in operation}
    assert missing - bodiless == set()


def with_ids(path: str, name: str, body: object, ids: dict[str, str]) -> tuple[str, object]:
    """What is put for {subscriber}, and to whom one is given, with ids of clients in the place of their names."""
    if "{subscriber}" not in path:
        return name, body
    client, slash, rest = name.partition("/")
    if path.endswith("/give") and isinstance(body, dict) and "to" in body:
        body = {"to": ids.get(body["to"], body["to"])}
    return ids.get(client, client) + slash.replace("/", "%2F") + rest, body


async def add_letters(bus: TestBus, who: str, path: str) -> None:
    """Before the first request about them: whoever subscribes begins without."""
    if (who, path) == ("client", "/subscriber/dead"):
        [token] = [row["token"] for row in (await ask(bus, "GET", "/api_tokens")).json if row["name"] == who]
        some = [replace(a_letter(n), id=f"0-{n}") for n in range(1, letter_requests.LETTERS + 1)]
        for receiver in (token, f"{token}/own", "@jobs"):
            await dead_letters.add(bus.partitions.home, receiver, some)


async def test_an_answer_of_not_ready_is_documented(one: Topology):
    async with a_bus(one, workers=0) as bus:
        answer = await ask(bus, "GET", "/readyz", None)

        assert answer.status == 503
        check("GET", "/readyz", answer)


async def test_the_document_is_what_the_server_gives(one: Topology):
    async with a_bus(one, workers=0) as bus:
        assert (await ask(bus, "GET", "/openapi.json", None)).json == DOCUMENT


def check(method: str, path: str, answer: Answer) -> None:
    """Fail unless the document has this status for the route, with this content."""
    responses = OPERATIONS[method, path]["responses"]
    assert str(answer.status) in responses, (method, path, answer.status, answer.body)
    response = responses[str(answer.status)]
    for header in response.get("headers", {}):
        assert header in answer.headers, (method, path, header)
    if "content" not in response:
        assert answer.body == b""
        return
    kind = answer.headers["Content-Type"].partition(";")[0]
    schema = response["content"][kind]["schema"]
    value = answer.body.decode() if kind == "text/plain" else answer.json
    assert problems(value, schema) == [], (method, path, answer.status)


def problems(value: object, schema: dict[str, object]) -> list[str]:
    """What does not fit, with references into the document."""
    validator = Draft202012Validator({**schema, "components": DOCUMENT["components"]})
    return [error.message for error in validator.iter_errors(value)]


def resolved(schema: dict) -> dict:
    return SCHEMAS[schema["$ref"].rpartition("/")[2]] if "$ref" in schema else schema


def references(value: object) -> Iterator[str]:
    if isinstance(value, dict):
        yield from (each for name, each in value.items() if name == "$ref")
        yield from (found for each in value.values() for found in references(each))
    elif isinstance(value, list):
        yield from (found for each in value for found in references(each))
