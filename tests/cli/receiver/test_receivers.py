"""Receivers by command: named, listed, tested, paused and subscribed, and their secrets replaced."""

import asyncio
import json
import subprocess
from pathlib import Path

import standardwebhooks

from cli.commands import run
from conftest import Topology
from harness import ROOT_KEY, TestBus, a_bus
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
    assert unknown.stderr == "doubledecker: no subscriber named 'nobody'; `doubledecker receiver list` shows them\n"


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


async def test_every_command_takes_a_clients_name_for_its_subscriber(one: Topology):
    async with Receiver() as mail, a_bus(one, workers=0) as bus:
        client = await bus.token("mail")
        await bus.subscribe(client, mail.url, "nothing")
        [seen] = await bus.get("/subscribers")
        commands = ["receiver show", "receiver test", "receiver pause", "receiver resume", "receiver enable"]
        named = [await asked(bus, who, *command.split(), "mail") for who in (client, ROOT_KEY) for command in commands]
        chosen = [
            await asked(bus, ROOT_KEY, *command.split(), "--receiver", "mail")
            for command in ("dead list", "dead jobs", "dead redrive", "attempts")
        ]

    assert [answer.returncode for answer in (*named, *chosen)] == [0] * 14, [answer.stderr for answer in named]
    assert all(seen["subscriber"] in answer.stdout + answer.stderr for answer in named)


async def test_an_unknown_receiver_is_told_with_those_that_are_alike(one: Topology):
    async with Receiver() as mail, a_bus(one, workers=0) as bus:
        first, second = await bus.token("hooks"), await bus.token("hooks")
        for each in (first, second):
            await bus.subscribe(each, mail.url, "nothing")
        await asked(bus, first, "queue", "register", "jobs", "no:no:no")
        one_id, other_id = sorted(each["subscriber"] for each in await bus.get("/subscribers"))
        ambiguous = [
            await asked(bus, ROOT_KEY, *words.split())
            for words in ("receiver pause hooks", "receiver show hooks", "dead list --receiver hooks")
        ]
        misspelt = await asked(bus, ROOT_KEY, "attempts", "--receiver", "hoks")
        queues = [
            await asked(bus, first, *words.split())
            for words in ("receiver test @jobz", "dead purge --receiver @jobz", "resend x --receiver @jobz")
        ]
        pulled = await asked(bus, first, "receiver", "test", "@jobs")
        job = await asked(bus, first, "dead", "jobs", "--receiver", "@jobs", "--cancel", "x")
        own = await asked(bus, first, "receiver", "pause", "hooks")

    told = f"doubledecker: 2 subscribers are named 'hooks'; give an id: {one_id}, {other_id}\n"
    assert [(answer.returncode, answer.stderr) for answer in ambiguous] == [(4, told)] * 3
    assert misspelt.stderr.startswith("doubledecker: no subscriber named 'hoks'; did you mean hooks")
    told = "doubledecker: no queue named 'jobz'; did you mean jobs? `doubledecker queue list` shows them\n"
    assert [(answer.returncode, answer.stderr) for answer in queues] == [(4, told)] * 3
    assert "so nothing is sent; `doubledecker queue register jobs` can give it one" in pulled.stderr
    assert "no job 'x' on these letters; `doubledecker dead jobs` lists the last 20" in job.stderr
    assert own.returncode == 0


async def test_root_is_told_to_name_a_receiver(one: Topology):
    async with a_bus(one, workers=0) as bus:
        with_key = [
            await asked(bus, ROOT_KEY, *words.split())
            for words in ("receiver test", "receiver show", "attempts", "dead list", "resend x")
        ]
        as_root = await asyncio.to_thread(run, "dead", "show", "x", "--bus", bus.url, DOUBLEDECKER_ROOT_KEY=ROOT_KEY)

    for answer in (*with_key, as_root):
        assert answer.returncode == 2
        assert "root has no subscriber of its own: name a receiver (`doubledecker receiver list`" in answer.stderr
        assert "or pass its client's --token" in answer.stderr


async def test_a_client_subscribes_and_changes_what_is_given_alone(one: Topology, tmp_path: Path):
    headers, no_more = tmp_path / "headers", tmp_path / "none"
    headers.write_text('{"X-Key": "a"}')
    no_more.write_text("{}")
    async with Receiver() as mail, a_bus(one, workers=0) as bus:
        client = await bus.token("mail")
        none = [await asked(bus, client, *words.split()) for words in ("subscribe --max 3", "receiver test")]
        words = [
            "--max",
            "7",
            "--retry",
            "[1000, 2000]",
            "--headers",
            str(headers),
            "--ordered",
            "--format",
            "cloudevents-batch",
        ]
        made = await asked(bus, client, "subscribe", "orders", "bills", "--callback", mail.url, *words)
        [first] = await bus.get("/subscribers", client)
        changed = await asked(bus, client, "subscribe", "--concurrency", "2", "--headers", str(no_more), "--unordered")
        [second] = await bus.get("/subscribers", client)
        listed = await asked(bus, client, "receiver", "list")
        as_json = await asked(bus, client, "receiver", "list", "--json")
        ended = await asked(bus, client, "unsubscribe", "--yes")
        gone = await asked(bus, client, "unsubscribe", "--yes")

    assert [answer.returncode for answer in none] == [2, 4]
    assert "give at least one TOPIC, and --callback URL" in none[0].stderr
    assert "this client has no default subscription; make one with `doubledecker subscribe`" in none[1].stderr
    assert (made.returncode, changed.returncode, ended.returncode) == (0, 0, 0), made.stderr + changed.stderr
    assert made.stderr == f"{first['subscriber']} gets bills, orders at {mail.url}\n"
    assert first["retry"] == [1000, 2000]
    assert first["format"] == second["format"] == "cloudevents-batch"
    assert (first["max_events"], first["headers"], first["ordered"]) == (7, {"X-Key": "a"}, True)
    assert (second["max_events"], second["headers"], second["ordered"]) == (7, {}, False)
    assert (second["concurrency"], second["topics"], second["callback"]) == (2, ["bills", "orders"], mail.url)
    assert listed.stdout.splitlines()[1].split("\t")[:3] == [first["subscriber"], "healthy", "0"]
    assert json.loads(as_json.stdout)["subscribers"][0]["subscriber"] == first["subscriber"]
    assert ended.stderr.endswith(" gets nothing any more (0 waiting events, 0 dead letters deleted)\n")
    assert gone.returncode == 4


async def test_a_subscription_without_topics_is_changed_like_others(one: Topology):
    async with a_bus(one, workers=0) as bus:
        client = await bus.token("mail")
        await bus.subscribe(client, "https://mail.example/")
        changed = await asked(bus, client, "subscribe", "--max", "3")
        [seen] = await bus.get("/subscribers", client)

    assert changed.stderr == f"{seen['subscriber']} gets nothing at https://mail.example/\n"
    assert (seen["max_events"], seen["topics"]) == (3, [])


async def test_a_paused_receiver_is_shown_and_resumed(one: Topology):
    async with Receiver() as mail, a_bus(one, workers=0) as bus:
        client = await bus.token("mail")
        await asked(bus, client, "queue", "register", "hooks", "no:no:no", "--callback", mail.url)
        paused = await asked(bus, client, "receiver", "pause", "@hooks")
        listed = await asked(bus, client, "receiver", "list")
        shown = await asked(bus, client, "receiver", "show", "@hooks", "--json")
        resumed = await asked(bus, client, "receiver", "resume", "@hooks")

    assert paused.stderr == "@hooks is paused; what waits is kept until `doubledecker receiver resume`\n"
    assert listed.stdout.splitlines()[1].split("\t")[:2] == ["@hooks", "paused"]
    assert json.loads(shown.stdout)["paused"] is True
    assert resumed.stderr == "@hooks is sent what waits for it\n"
