"""`doubledecker subscription …`: what a client has beside its default subscription."""

import asyncio
import subprocess

from cli.commands import run as command
from conftest import Topology
from harness import ROOT_KEY, TestBus, a_bus
from receiver import Receiver


async def _asked(bus: TestBus, secret: str, *words: str) -> subprocess.CompletedProcess[str]:
    return await asyncio.to_thread(command, *words, "--bus", bus.url, "--token", secret)


async def test_a_subscription_is_put_patched_named_given_and_deleted(one: Topology):
    async with Receiver() as mail, a_bus(one, workers=0) as bus:
        client, other = await bus.token("client"), await bus.token("other")
        ids = {row["name"]: row["token"] for row in await bus.get("/api_tokens")}

        async def run(*words: str, secret: str = client) -> subprocess.CompletedProcess[str]:
            return await _asked(bus, secret, "subscription", *words)

        put = await run("put", "mail", "orders", "--callback", mail.url, "--max", "7")
        patched = await run("patch", "mail", "orders", "bills", "--reset", "max")
        nothing = await run("patch", "mail")
        listed = await run("list", "--topic", "bills")
        tested = await _asked(bus, client, "receiver", "test", "client/mail")
        shown = await run("show", "mail")
        given = await run("give", f"{ids['client']}/mail", ids["other"], secret=ROOT_KEY)
        deleted = await run("delete", "mail", "--yes", secret=other)

    assert put.stdout.startswith("whsec_")
    assert patched.stderr == f"{ids['client']}/mail gets bills, orders at {mail.url}\n"
    assert nothing.returncode == 2
    assert f"{ids['client']}/mail" in listed.stdout
    assert "delivered 200" in tested.stderr
    assert "100 events" in shown.stdout
    assert (given.returncode, deleted.returncode) == (0, 0)
    assert "gets nothing any more" in deleted.stderr
