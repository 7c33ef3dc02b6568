"""`doubledecker attempts` lists what was tried to deliver, and `resend` has an event sent again."""

import asyncio
import json

import pytest

from cli.commands import run
from conftest import Topology
from doubledecker.store import attempts as store_attempts
from harness import a_bus, an_event
from receiver import Receiver
from web.asking import ask
from web.test_attempts import attempts
from worker.test_deliver import _until


async def test_attempts_are_listed_and_an_event_is_sent_again(one: Topology, monkeypatch: pytest.MonkeyPatch):
    async with a_bus(one) as bus, Receiver(plan=lambda n: 500 if n == 1 else 200) as hook:
        secret = await bus.token("mail")
        await bus.subscribe(secret, hook.url, "widgets", timeout=0)
        [id_] = await bus.publish(secret, [an_event()])
        await hook.until_events(1)
        known = await _until(lambda: attempts(bus, "/subscriber/attempts", secret), lambda rows: len(rows) == 2)

        async def said(*arguments: str):
            return await asyncio.to_thread(run, *arguments, "--bus", bus.url, "--token", secret)

        listed = await said("attempts")
        failed = await said("attempts", "--outcome", "failed", "--json")
        of_event = await said("attempts", "--event", id_, "--status", "200")
        with monkeypatch.context() as patch:
            patch.setattr(store_attempts, "_ENTRIES_MAX", 1)
            patch.setattr(store_attempts, "_CALLS_MAX", 1)
            page = (await ask(bus, "GET", "/subscriber/attempts?status=500", secret)).json
            behind_others = await said("attempts", "--status", "500")
        resent = await said("resend", id_, "--topic", "widgets")
        again = await said("resend", "--attempt", known[0]["id"], "--receiver", known[0]["receiver"])
        neither = await said("resend")
        elsewhere = await said("resend", id_, "--source", "/elsewhere")
        await hook.until_events(3)

    header, *rows = [line.split("\t") for line in listed.stdout.splitlines()]
    assert header[:5] == ["id", "began", "receiver", "outcome", "status"]
    assert [row[3:5] for row in rows] == [["delivered", "200"], ["refused", "500"]]
    assert [each["status"] for each in json.loads(failed.stdout)["attempts"]] == [500]
    assert of_event.stdout.splitlines()[1:] == listed.stdout.splitlines()[1:2]
    assert resent.stdout == again.stdout == f"{id_}\n"
    assert (page["attempts"], page["scanned_until"]) == ([], int(known[0]["id"].partition("-")[0]))
    assert behind_others.stdout.splitlines()[1:] == listed.stdout.splitlines()[2:]
    assert (neither.returncode, elsewhere.returncode) == (2, 4)
    assert hook.ids == [id_] * 3
