"""Who asks, and what they may: Basic, Bearer and Digest, root and client, and the same answer to every stranger."""

import asyncio
import base64
import hashlib
import hmac
import itertools
import re
import shutil

import pytest

from conftest import Topology
from doubledecker import clock
from doubledecker.web import digest
from doubledecker.web.authentication import Authenticator
from harness import ROOT_KEY, TestBus, a_bus, an_event
from web.asking import Answer, ask, everything

EVENT = {"type": "create", "url": "https://shop.example/orders/1"}
SUBSCRIPTION = {"topics": ["orders"], "callback": "https://mail.example/"}

# Route, body, and what root and a client get, asked in this order.
RESTRICTED = [
    ("GET", "/pulse", None, 204, 204),
    ("GET", "/pulse/scaling", None, 204, 204),
    ("GET", "/api_tokens", None, 200, 403),
    ("POST", "/api_tokens", {"name": "new"}, 201, 403),
    ("DELETE", "/api_tokens/nobody", None, 204, 403),
    ("GET", "/topics", None, 200, 200),
    ("POST", "/topics/orders", EVENT, 403, 204),
    ("DELETE", "/topics/unknown", None, 404, 404),
    ("POST", "/events", an_event(1), 403, 202),
    ("POST", "/subscription", SUBSCRIPTION, 403, 204),
    ("POST", "/subscriber", SUBSCRIPTION, 403, 204),
    ("GET", "/subscriptions", None, 200, 200),
    ("GET", "/subscribers", None, 200, 200),
    ("DELETE", "/subscriber/topics/orders", None, 403, 204),
    ("DELETE", "/subscriber", None, 403, 204),
]
PUBLIC = ["/health", "/health/ping", "/health/ping.json", "/livez", "/version", "/openapi.json"]


async def test_each_route_is_for_root_or_clients_or_both_and_never_for_strangers(one: Topology):
    async with a_bus(one, workers=0) as bus:
        client = await bus.token("client")
        before = await everything(bus)
        for method, path, body, _, _ in RESTRICTED:
            for secret in (None, "unknown--token"):
                answer = await ask(bus, method, path, secret, json=body)
                assert answer.status == 401, path
        assert await everything(bus) == before

        for method, path, body, for_root, for_client in RESTRICTED:
            assert (await ask(bus, method, path, ROOT_KEY, json=body)).status == for_root, path
            assert (await ask(bus, method, path, client, json=body)).status == for_client, path


async def test_a_public_route_asks_nobody_who_they_are(one: Topology):
    async with a_bus(one, workers=0) as bus:
        for path in PUBLIC:
            assert (await ask(bus, "GET", path, None)).status == 200, path
            assert (await ask(bus, "GET", path, "unknown--token")).status == 200, path


async def test_metrics_need_a_token_unless_they_are_made_public(one: Topology):
    async with a_bus(one, workers=0, metrics_public=True) as bus:
        assert (await ask(bus, "GET", "/metrics", None)).status == 200
    async with a_bus(one, workers=0) as bus:
        client = await bus.token("client")

        assert (await ask(bus, "GET", "/metrics", None)).status == 401
        assert (await ask(bus, "GET", "/metrics", client)).status == 200
        assert (await ask(bus, "GET", "/metrics")).status == 200


async def test_a_stranger_is_challenged_by_all_three_schemes(one: Topology):
    async with a_bus(one, workers=0) as bus:
        answer = await ask(bus, "GET", "/pulse", None)

        assert answer.status == 401
        assert answer.detail.startswith("this needs a token; send it as the user of Basic, as Bearer, ")
        first, *others = answer.headers.getall("WWW-Authenticate")
        assert re.fullmatch(
            r'Digest realm="doubledecker", qop="auth", algorithm=SHA-256, nonce="[0-9a-f]+", stale=false', first
        )
        assert others == ['Basic realm="doubledecker", charset="UTF-8"', "Bearer"]


async def test_basic_takes_the_token_as_user_and_any_password(one: Topology):
    async with a_bus(one, workers=0) as bus:
        client = await bus.token("client")
        for secret, password in itertools.product((ROOT_KEY, client), ("x", "", "a:b", "ü")):
            assert (await ask(bus, "GET", "/pulse", None, headers=said("Basic", f"{secret}:{password}"))).status == 204


async def test_basic_takes_a_token_with_colons_in_it(one: Topology):
    async with a_bus(one, workers=0) as bus:
        secret = await bus.token("eu:shop:1")

        assert secret.startswith("eu:shop:1--")
        assert (await ask(bus, "GET", "/pulse", None, headers=said("Basic", f"{secret}:x"))).status == 204
        assert (await ask(bus, "GET", "/pulse", None, headers=said("Basic", "eu:x"))).status == 401


async def test_bearer_takes_root_and_client(one: Topology):
    async with a_bus(one, workers=0) as bus:
        for secret in (ROOT_KEY, await bus.token("client")):
            for scheme in ("Bearer", "bearer", "BEARER"):
                assert (
                    await ask(bus, "GET", "/pulse", None, headers={"Authorization": f"{scheme} {secret}"})
                ).status == 204


async def test_digest_takes_root_and_client_by_name(topology: Topology):
    async with a_bus(topology, workers=0) as bus:
        secret = await bus.token("client")

        assert (await ask_by_digest(bus, "GET", "/api_tokens", user="root", secret=ROOT_KEY)).status == 200
        assert (await ask_by_digest(bus, "GET", "/subscribers", user="client", secret=secret)).status == 200
        assert (
            await ask_by_digest(bus, "POST", "/events?all=1", user="client", secret=secret, json=an_event(1))
        ).status == 202


async def test_digest_tells_two_clients_of_one_name_apart(one: Topology):
    async with a_bus(one, workers=0) as bus:
        first, second = await bus.token("shop"), await bus.token("shop")
        await ask_by_digest(bus, "POST", "/topics/orders", user="shop", secret=first, json=EVENT)
        foreign = await ask_by_digest(bus, "POST", "/topics/orders", user="shop", secret=second, json=EVENT)

        assert foreign.status == 403


async def test_a_client_named_root_is_not_root(one: Topology):
    async with a_bus(one, workers=0) as bus:
        secret = await bus.token("root")

        assert (await ask_by_digest(bus, "GET", "/api_tokens", user="root", secret=secret)).status == 403
        assert (await ask_by_digest(bus, "GET", "/api_tokens", user="root", secret=ROOT_KEY)).status == 200


async def test_a_token_that_is_unknown_wrong_or_revoked_gets_the_same_answer(one: Topology):
    async with a_bus(one, workers=0) as bus:
        secret, revoked = await bus.token("client"), await bus.token("gone")
        await ask(bus, "DELETE", f"/api_tokens/{revoked}")
        wrong = secret[:-1] + ("0" if secret[-1] != "0" else "1")
        answers = [await ask(bus, "GET", "/pulse", each) for each in ("nobody--1", wrong, revoked)]
        answers += [
            await ask_by_digest(bus, "GET", "/pulse", user=user, secret="wrong")
            for user in ("nobody", "client", "root")
        ]

        assert {answer.status for answer in answers} == {401}
        assert len({answer.body for answer in answers}) == 1
        assert all(len(answer.headers.getall("WWW-Authenticate")) == 3 for answer in answers)


NONSENSE = [
    "",
    "Basic",
    "Basic !!!",
    "Basic " + base64.b64encode(b":x").decode(),
    "Basic " + base64.b64encode(b"\xff\xfe:x").decode(),
    "Bearer",
    "Bearer ",
    "Digest",
    'Digest username="root"',
    "Digest " + "a=b," * 2000,
    "Negotiate abc",
    ROOT_KEY,
]


async def test_a_header_that_makes_no_sense_is_401(one: Topology):
    async with a_bus(one, workers=0) as bus:
        for header in NONSENSE:
            assert (await ask(bus, "GET", "/pulse", None, headers={"Authorization": header})).status == 401, header


async def test_an_empty_root_key_lets_nobody_in(one: Topology):
    async with a_bus(one, workers=0, root_key="") as bus:
        for header in ("Basic Og==", "Bearer ", "Bearer x", "Basic eDp4"):
            assert (await ask(bus, "GET", "/api_tokens", None, headers={"Authorization": header})).status == 401
        assert (await ask_by_digest(bus, "GET", "/api_tokens", user="root", secret="")).status == 401


async def test_an_old_nonce_is_renewed_with_stale_true(one: Topology):
    async with a_bus(one, workers=0) as bus:
        key = hmac.digest(ROOT_KEY.encode(), b"nonce", "sha256")
        old = digest.make_nonce(key, now_ms=clock.now_ms() - digest.NONCE_MS_MAX - 1000)
        stale = await ask(
            bus, "GET", "/pulse", None, headers=answered(old, "GET", "/pulse", user="root", secret=ROOT_KEY)
        )
        wrong = await ask(bus, "GET", "/pulse", None, headers=answered(old, "GET", "/pulse", user="root", secret="no"))

        assert stale.status == 401
        assert "stale=true" in stale.headers.getall("WWW-Authenticate")[0]
        assert "stale=false" in wrong.headers.getall("WWW-Authenticate")[0]
        again = answered(nonce_of(stale), "GET", "/pulse", user="root", secret=ROOT_KEY)
        assert (await ask(bus, "GET", "/pulse", None, headers=again)).status == 204


async def test_a_nonce_count_is_good_once_and_the_next_one_too(one: Topology):
    async with a_bus(one, workers=0) as bus:
        nonce = nonce_of(await ask(bus, "GET", "/pulse", None))
        first = answered(nonce, "GET", "/pulse", user="root", secret=ROOT_KEY, count=1)
        second = answered(nonce, "GET", "/pulse", user="root", secret=ROOT_KEY, count=2)

        assert (await ask(bus, "GET", "/pulse", None, headers=first)).status == 204
        replayed = await ask(bus, "GET", "/pulse", None, headers=first)
        assert replayed.status == 401
        assert replayed.detail == "this nonce count was used before"
        assert (await ask(bus, "GET", "/pulse", None, headers=second)).status == 204


async def test_a_digest_answer_is_good_for_its_own_request_alone(one: Topology):
    async with a_bus(one, workers=0) as bus:
        nonce = nonce_of(await ask(bus, "GET", "/pulse", None))
        header = answered(nonce, "GET", "/pulse", user="root", secret=ROOT_KEY)
        forged = answered("0" * len(nonce), "GET", "/pulse", user="root", secret=ROOT_KEY)

        assert (await ask(bus, "GET", "/topics", None, headers=header)).status == 401
        assert (await ask(bus, "GET", "/pulse?a=1", None, headers=header)).status == 401
        assert (await ask(bus, "GET", "/pulse", None, headers=forged)).status == 401
        assert (await ask(bus, "GET", "/pulse", None, headers=header)).status == 204


@pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed")
@pytest.mark.parametrize(("user", "expected"), [("root", "403"), ("client", "202")])
async def test_real_curl_speaks_digest_with_us(one: Topology, user: str, expected: str):
    async with a_bus(one, workers=0) as bus:
        secret = await bus.token("client") if user == "client" else ROOT_KEY
        event = '{"topic": "orders", "type": "paid"}'
        answer = await curl("--digest", "-u", f"{user}:{secret}", "-d", event, f"{bus.url}/events?all=1")
        wrong = await curl("--digest", "-u", f"{user}:wrong", f"{bus.url}/pulse")

        assert answer == expected
        assert wrong == "401"


@pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed")
async def test_real_curl_speaks_basic_with_us(one: Topology):
    async with a_bus(one, workers=0) as bus:
        assert await curl("-u", f"{await bus.token('client')}:x", f"{bus.url}/pulse") == "204"


def said(scheme: str, pair: str) -> dict[str, str]:
    return {"Authorization": f"{scheme} {base64.b64encode(pair.encode()).decode()}"}


def nonce_of(challenged: Answer) -> str:
    found = re.search(r'nonce="([0-9a-f]+)"', challenged.headers.getall("WWW-Authenticate")[0])
    assert found
    return found[1]


def answered(nonce: str, method: str, uri: str, *, user: str, secret: str, count: int = 1) -> dict[str, str]:
    """What a Digest client sends; written from RFC 7616, not from our code."""

    def h(*parts: str) -> str:
        return hashlib.sha256(":".join(parts).encode()).hexdigest()

    nc = f"{count:08x}"
    response = h(h(user, "doubledecker", secret), nonce, nc, "c", "auth", h(method, uri))
    return {
        "Authorization": f'Digest username="{user}", realm="doubledecker", nonce="{nonce}", uri="{uri}", '
        f'algorithm=SHA-256, qop=auth, nc={nc}, cnonce="c", response="{response}"'
    }


async def ask_by_digest(
    bus: TestBus, method: str, path: str, *, user: str, secret: str, json: object = None, url: str | None = None
) -> Answer:
    """Answer the server's challenge."""
    nonce = nonce_of(await ask(bus, method, path, None, json=json, url=url))
    headers = answered(nonce, method, path, user=user, secret=secret)
    return await ask(bus, method, path, None, json=json, headers=headers, url=url)


async def curl(*arguments: str) -> str:
    """The status that curl ends with."""
    command = ["curl", "-s", "-o", "/dev/null", "-w", "%{http_code}", "--max-time", "10", *arguments]
    process = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
    output, _ = await process.communicate()
    return output.decode()


async def test_a_client_that_writes_its_token_in_endless_ways_takes_no_ones_place_in_the_cache(
    one: Topology, monkeypatch: pytest.MonkeyPatch
):
    made: list[Authenticator] = []

    class Kept(Authenticator):
        def __init__(self, *args: object, **options: object) -> None:
            super().__init__(*args, **options)
            made.append(self)

    monkeypatch.setattr("doubledecker.web.server.Authenticator", Kept)
    async with a_bus(one, workers=0) as bus:
        greedy, modest = await bus.token("greedy"), await bus.token("modest")
        for n in range(200):
            header = "Basic " + base64.b64encode(f"{greedy}:{n}{'x' * (n % 2) * 1000}".encode()).decode()
            assert (await ask(bus, "GET", "/topics", None, headers={"Authorization": header})).status == 200
        await ask(bus, "GET", "/topics", modest)
        remembered = made[0]._cache

        assert len(remembered) < 20
        assert max(map(len, remembered)) < 1000
        assert f"Bearer {modest}".encode() in remembered
