"""Receivers by command: tested, and their secrets replaced."""

import asyncio
import subprocess
from pathlib import Path

import standardwebhooks

from cli.commands import run
from conftest import Topology
from harness import TestBus, a_bus
from receiver import Receiver

LOUD = {"said": "seen \x1b[2J"}


async def asked(bus: TestBus, secret: str, *words: str) -> subprocess.CompletedProcess[str]:
    return await asyncio.to_thread(run, *words, "--bus", bus.url, "--token", secret)


async def test_a_receiver_is_tested_and_its_secret_replaced(one: Topology):
    async with Receiver(answer=lambda _: LOUD) as mail, a_bus(one, workers=0) as bus:
        client = await bus.token("client")
        made = await asked(bus, client, "queue", "register", "hooks", "no:no:no", "--callback", mail.url)
        good = await asked(bus, client, "receiver", "test", "@hooks")
        rotated = await asked(bus, client, "receiver", "rotate-secret", "@hooks", "--overlap-s", "0")
        await asked(bus, client, "receiver", "test", "@hooks")
        mail.plan = lambda _: 401
        bad = await asked(bus, client, "receiver", "test", "@hooks")

    for answer, batch in zip((made, rotated), mail.batches, strict=True):
        standardwebhooks.Webhook(answer.stdout.strip()).verify(batch.body, batch.headers)
    assert made.stderr.endswith("Its signing secret is shown this once:\n")
    assert good.returncode == 0
    assert good.stderr.startswith("Signed test event ")
    assert " to @hooks: delivered 200 in " in good.stderr
    assert good.stdout.splitlines()[-1] == '{"said": "seen \\u001b[2J"}'
    assert rotated.stderr == "@hooks is signed by a new secret. It is shown this once:\n"
    assert bad.returncode == 1
    assert "refused 401" in bad.stderr


async def test_a_clients_own_subscriber_is_meant_when_none_is_named(one: Topology):
    async with Receiver() as mail, a_bus(one, workers=0) as bus:
        client = await bus.token("client")
        await bus.subscribe(client, mail.url, "nothing")
        tested = await asked(bus, client, "receiver", "test")
        rotated = await asked(bus, client, "receiver", "rotate-secret")
        again = await asked(bus, client, "receiver", "rotate-secret")
        unknown = await asked(bus, client, "receiver", "test", "nobody")

    assert tested.stderr.startswith("Unsigned test event ")
    assert rotated.stdout.startswith("whsec_")
    assert " is signed by a new secret; former ones sign too until 20" in again.stderr
    assert unknown.returncode == 4
    assert "no subscriber named 'nobody'" in unknown.stderr


async def test_a_queue_is_registered_with_retries_and_headers_of_its_own(one: Topology, tmp_path: Path):
    headers = tmp_path / "headers.json"
    headers.write_text('{"X-Key": "k"}')
    async with Receiver() as mail, a_bus(one, workers=0) as bus:
        client = await bus.token("client")
        register = ("queue", "register", "hooks", "no:no:no", "--callback", mail.url)
        made = await asked(bus, client, *register, "--retry", "[100, 200]", "--headers", str(headers))
        kept = await bus.get("/queues/hooks", client)
        bad = [await asked(bus, client, *register, "--retry", retry) for retry in ("[100", "soon", "[0]")]

    assert made.returncode == 0, made.stderr
    assert (kept["retry"], kept["headers"]) == ([100, 200], {"X-Key": "k"})
    assert [answer.returncode == 0 for answer in bad] == [False] * 3
    assert "--retry is not JSON" in bad[0].stderr
    assert "a delay of 0 ms" in bad[2].stderr
