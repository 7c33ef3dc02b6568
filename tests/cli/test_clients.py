"""Tokens, publishing and status against a running bus."""

import json
from dataclasses import fields
from pathlib import Path

import pytest

from cli.commands import Up, run
from doubledecker.model.quota import Quotas


def token(bus: Up, *arguments: str, stdin: str = ""):
    return run("token", *arguments, "--bus", bus.url, "--data", str(bus.data), stdin=stdin)


def topic(bus: Up, *arguments: str, stdin: str = ""):
    return run("topic", *arguments, "--bus", bus.url, "--data", str(bus.data), stdin=stdin)


def ids(bus: Up) -> list[str]:
    return [row["id"] for row in json.loads(token(bus, "list", "--json").stdout)]


def a_secret(bus: Up, name: str) -> str:
    return token(bus, "create", name).stdout.strip()


def test_a_token_is_made_listed_and_revoked(bus: Up):
    created = token(bus, "create", "letters")
    secret, id_ = created.stdout.strip(), created.stderr.split()[1].rstrip(".")
    listed = token(bus, "list").stdout.splitlines()
    revoked = token(bus, "revoke", id_, "--yes")

    assert secret.startswith("letters--")
    assert listed[0] == "id\tname\tcreated\tformer secret\tlast used\texpires\tlimits\tdescription"
    assert any(line.startswith(f"{id_}\tletters\t") for line in listed)
    assert secret not in "".join(listed)
    assert (revoked.returncode, revoked.stdout) == (0, "")
    assert id_ not in ids(bus)


def test_a_portal_token_is_printed_and_has_its_tenants_subscriptions(bus: Up):
    by = ("--bus", bus.url, "--data", str(bus.data))
    made = token(bus, "portal", "acme", "--token", a_secret(bus, "portals"), "--expires-in", "60")
    listed = run("subscription", "list", "--json", "--token", made.stdout.strip(), *by)

    assert made.stderr.startswith("For the subscriptions of tenant acme of portals-")
    assert (listed.returncode, json.loads(listed.stdout)) == (0, [])


def test_what_a_token_may_do_is_given_shown_and_changed(bus: Up):
    limits = ("--action", "publish", "--action", "stream", "--topic", "o*", "--tenant", "acme")
    made = token(bus, "create", "scoped", *limits, "--description", "Why", "--expires-in", "3600")
    id_ = made.stderr.split()[1].rstrip(".")
    [before] = [line for line in token(bus, "list").stdout.splitlines() if line.startswith(id_)]
    updated = token(bus, "update", id_, "--topic", "orders")
    unlimited = token(bus, "update", id_, "--unlimited")
    [after] = [row for row in json.loads(token(bus, "list", "--json").stdout) if row["id"] == id_]

    assert before.endswith("\tpublish, stream; topics o*; tenants acme\tWhy")
    assert updated.stderr == f"Updated {id_}: topics orders\n"
    assert unlimited.stderr == f"Updated {id_}: all that a client may\n"
    assert (after["scopes"], after["description"]) == ({"actions": None, "topics": None, "tenants": None}, "Why")


def test_the_bus_of_a_folder_is_found_by_all_commands_alike(bus: Up, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Tokens were made at the default address, wherever the folder's bus was."""
    created = run("token", "create", "found", "--data", str(bus.data))
    (tmp_path / ".data").symlink_to(bus.data)
    monkeypatch.chdir(tmp_path)
    listed = run("token", "list")
    published = run("publish", "found", "create", "--token", created.stdout.strip())
    queues = run("queue", "list")

    assert created.stdout.startswith("found--"), created.stderr
    assert "\tfound\t" in listed.stdout, listed.stderr
    assert (published.returncode, queues.returncode) == (0, 0), published.stderr + queues.stderr


def test_a_token_is_rotated_and_its_former_secret_shown_to_work(bus: Up):
    made = token(bus, "create", "turned")
    id_ = made.stderr.split()[1].rstrip(".")
    rotated = token(bus, "rotate", id_, "--overlap-s", "3600")
    during = run("publish", "turned", "create", "--token", made.stdout.strip(), "--bus", bus.url)
    listed = next(line for line in token(bus, "list").stdout.splitlines() if line.startswith(id_))
    ended = token(bus, "rotate", id_, "--overlap-s", "0")
    after = [
        run("publish", "turned", "create", "--token", each.stdout.strip(), "--bus", bus.url) for each in (made, ended)
    ]

    assert rotated.stdout.startswith("turned--")
    assert f"Rotated {id_}. Its former secret works until " in rotated.stderr
    assert "until 2" in listed
    assert "no longer works" in ended.stderr
    assert (during.returncode, [answer.returncode for answer in after]) == (0, [4, 0])


def test_a_topic_is_listed_given_and_deleted(bus: Up):
    first, second = a_secret(bus, "giver"), a_secret(bus, "heir")
    heir = next(each for each in ids(bus) if each.startswith("heir-"))
    run("publish", "gifts", "create", "--token", first, "--bus", bus.url)
    given = topic(bus, "give", "gifts", heir)
    by_heir = run("publish", "gifts", "create", "--token", second, "--bus", bus.url)
    listed = topic(bus, "list").stdout.splitlines()
    kept = topic(bus, "delete", "gifts", stdin="n\n")
    deleted = topic(bus, "delete", "gifts", "--yes")
    wrong = topic(bus, "give", "gifts", heir)
    gone = topic(bus, "delete", "gifts", stdin="y\n")

    assert (given.returncode, by_heir.returncode, deleted.returncode) == (0, 0, 0), given.stderr
    assert f"gifts\their\t{heir}\t2\t0\t" in listed
    assert (kept.returncode, "Delete topic gifts? 0 subscriptions to it end" in kept.stderr) == (1, True)
    assert (wrong.returncode, wrong.stderr) == (4, "doubledecker: no topic named 'gifts'\n")
    assert (gone.returncode, gone.stderr) == (
        4,
        "doubledecker: no topic named 'gifts'; `doubledecker topic list` shows them\n",
    )


def test_a_topic_is_shared_described_and_shown(bus: Up):
    owner = a_secret(bus, "sharer")
    a_secret(bus, "sharee")
    sharer, sharee = (next(id_ for id_ in ids(bus) if id_.startswith(name)) for name in ("sharer-", "sharee-"))
    made = topic(bus, "set", "shared", "--publisher", sharee, "--description", "For both", "--token", owner)
    shown = topic(bus, "show", "shared").stdout
    emptied = topic(bus, "set", "shared", "--no-publishers")
    as_json = json.loads(topic(bus, "show", "shared", "--json").stdout)
    wrong = topic(bus, "set", "shared")

    assert (made.returncode, made.stderr) == (0, f"{sharer} and 1 other client may publish on shared\n")
    assert f"owner\tsharer, {sharer}\npublishers\t{sharee}\n" in shown
    assert emptied.stderr == f"{sharer} may publish on shared\n"
    assert (as_json["description"], as_json["publishers"]) == ("For both", [])
    assert (wrong.returncode, "say what to set" in wrong.stderr) == (2, True)


def test_revoking_asks_first(bus: Up):
    a_secret(bus, "asked")
    id_ = next(each for each in ids(bus) if each.startswith("asked-"))
    refused = token(bus, "revoke", id_, stdin="n\n")
    kept = id_ in ids(bus)
    accepted = token(bus, "revoke", id_, stdin="y\n")

    assert (refused.returncode, kept, accepted.returncode) == (1, True, 0)
    assert f"Revoke 1 token, {id_}?" in refused.stderr
    assert id_ not in ids(bus)


def test_a_token_is_named_by_its_id_or_by_a_name_that_it_alone_has(bus: Up):
    for name in ("single", "twin", "twin"):
        a_secret(bus, name)
    alone = token(bus, "update", "single", "--action", "publish")
    several = token(bus, "revoke", "--yes", "twin")

    assert alone.returncode == 0
    assert alone.stderr.startswith("Updated single-")
    assert several.returncode == 4
    assert several.stderr.startswith("doubledecker: 2 clients are named 'twin'; give an id: twin-")


def test_an_admin_makes_tokens_with_its_own(bus: Up):
    admin = token(bus, "create", "ops", "--action", "admin").stdout.strip()
    made = token(bus, "create", "team", "--token", admin)
    refused = token(bus, "create", "other", "--token", made.stdout.strip())

    assert made.returncode == 0
    assert (refused.returncode, "admin" in refused.stderr) == (4, True)


@pytest.mark.parametrize("words", [["revoke", "--yes"], ["rotate"]])
def test_an_unknown_token_is_neither_revoked_nor_rotated_nor_shown(bus: Up, words: list[str]):
    """It may be a secret that was taken for the id."""
    answer = token(bus, *words, a_secret(bus, "mistaken"))

    assert answer.returncode == 4
    assert answer.stderr == (
        "doubledecker: no client has this id or name, and a secret is neither: `doubledecker token list` shows both\n"
    )


def test_an_owner_deletes_its_topic_with_its_own_token(bus: Up):
    secret, heir = a_secret(bus, "author"), a_secret(bus, "reader")
    run("subscribe", "novels", "--callback", "https://x.example/", "--token", heir, "--bus", bus.url)
    run("publish", "novels", "create", "--token", secret, "--bus", bus.url)
    counted = topic(bus, "delete", "novels", stdin="n\n")
    foreign = topic(bus, "delete", "novels", "--yes", "--token", heir)
    unsure = topic(bus, "delete", "novels", "--token", secret, stdin="n\n")
    deleted = topic(bus, "delete", "novels", "--yes", "--token", secret)

    assert "Delete topic novels? 1 subscription to it ends, and any client" in counted.stderr
    assert (foreign.returncode, deleted.returncode) == (4, 0), deleted.stderr
    assert "Delete topic novels? The subscriptions to it end, and any client" in unsure.stderr


def test_a_name_that_is_not_allowed_is_refused(bus: Up):
    answer = token(bus, "create", "No Name")

    assert answer.returncode == 4
    assert answer.stderr.startswith("doubledecker: name is 'No Name'; it must match")


def test_an_event_is_published_and_its_id_printed(bus: Up):
    before = bus.status()["published"]
    fields = ["--url", "https://example.org/1", "--payload", '{"total": 3}', "--tenant", "acme", "--key", "order-1"]
    secret = a_secret(bus, "shop")
    answer = run("publish", "orders", "create", *fields, "--token", secret, "--bus", bus.url)
    by_environment = run("publish", "orders", "create", BUS_URL=bus.url, BUS_TOKEN=secret)
    register = ("queue", "register", "owned", ".*:own:.*", "--bus", bus.url, "--token", secret)
    assert run(*register).returncode == 0
    own = ("--id", "order-1", "--timestamp", "1763185600000")
    named = run("publish", "own", "create", *own, "--token", secret, "--bus", bus.url)
    pulled = run("queue", "pull", "owned", "--wait-ms", "5000", "--bus", bus.url, "--token", secret)

    assert (named.returncode, named.stdout) == (0, "order-1\n")
    assert json.loads(pulled.stdout).items() >= {"id": "order-1", "t": 1763185600000}.items()
    assert (answer.returncode, by_environment.returncode) == (0, 0), answer.stderr + by_environment.stderr
    assert len(answer.stdout.split()) == 1
    # Notices about receivers of other tests, which share the bus, are published too.
    assert bus.status()["published"] >= before + 3


@pytest.mark.parametrize(
    ("arguments", "exit_code", "said"),
    [
        (["orders", "create"], 2, "say who publishes with --token"),
        (["orders", "create", "--token", "x", "--payload", "{"], 2, "--payload is not JSON"),
        (["orders", "create", "--token", "x", "--data", "[3]"], 2, "what the event carries is its --payload"),
        (["orders", "create", "--token", "x", "--bus", "nowhere"], 2, "it must be a URL like"),
        (["orders", "create", "--token", "wrong"], 4, "does not know this key"),
    ],
)
def test_a_publish_that_cannot_be_says_why(bus: Up, arguments: list[str], exit_code: int, said: str):
    answer = run("publish", *arguments, BUS_URL=bus.url)

    assert answer.returncode == exit_code
    assert said in answer.stderr
    assert answer.stdout == ""
    assert "Traceback" not in answer.stderr


def test_status_shows_the_bus_as_json_and_as_lines(bus: Up):
    wanted = {"topics": ["shown"], "callback": "https://shown.example/", "uuid": "u"}
    assert bus.post("/subscription", a_secret(bus, "shown"), wanted) == 204
    shown = bus.status()
    lines = run("status", "--data", str(bus.data)).stdout.splitlines()
    by_url = run("status", "--url", (bus.data / "redis.url").read_text().strip(), "--json")

    assert shown["worker_slots"] > 0
    assert [each["topics"] for each in shown["subscribers"] if each["subscriber"].startswith("shown-")] == [["shown"]]
    assert any(line.startswith("published\t") for line in lines)
    assert json.loads(by_url.stdout).keys() == shown.keys()


def test_status_shows_every_bound_with_what_is_used_of_it(bus: Up):
    assert bus.post("/events", a_secret(bus, "ann"), [{"topic": "bounded", "type": "create"}]) == 202
    shown = bus.status()
    lines = [line.split("\t") for line in run("status", "--data", str(bus.data)).stdout.splitlines()]
    titles, most = next((line, lines[at + 1]) for at, line in enumerate(lines) if line[0] == "client")

    bounds = {field.name for field in fields(Quotas)} | {"address_connections_max"}
    [used] = [client["quotas"] for client in shown["clients"] if client["client"].startswith("ann-")]
    assert set(shown["bounds"]) == set(used) | set(shown["quotas"]) == bounds
    assert used["client_topics_max"] == {"used": 1, "max": 1000}
    # The table has the bounds in its first row, and those of all clients stand above.
    assert len(titles) == len(most) == 1 + len(used)
    assert titles[6:10] == ["filter steps", "subscriptions", "subscribed", "streams"]
    assert (most[0], most[1]) == ("at most", "1,000")
    assert {"pattern steps", "connections of an address"} <= {line[0] for line in lines}


def test_a_subscription_is_given_a_filter_and_gets_all_events_again(bus: Up):
    secret = a_secret(bus, "picky")
    asked = ("--token", secret, "--bus", bus.url)
    made = run("subscribe", "novels", "--callback", "https://x.example/", "--filter", '{"key": ["a"]}', *asked)
    shown = run("receiver", "show", *asked)
    again = run("subscribe", "--max", "5", *asked)
    kept = run("receiver", "show", *asked)
    ended = run("subscribe", "--no-filter", *asked)
    after = run("receiver", "show", *asked)

    assert [each.returncode for each in (made, again, ended)] == [0, 0, 0], (made.stderr, again.stderr, ended.stderr)
    assert ['{"key": ["a"]}' in each.stdout for each in (shown, kept, after)] == [True, True, False]
