"""All commands alike: their help, what was typed wrongly, a bus that is away, and JSON; one row for each command."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import click
import pytest

from cli.commands import Up, run
from doubledecker.cli import cli
from doubledecker.store import machine


@dataclass(frozen=True)
class Row:
    """What a command is given, `by` which way it finds its bus, and whether it `prints` JSON on one that runs."""

    words: str = ""
    by: str = "http"
    prints: bool = False
    # What it exits with when its bus is away.
    away: int = 3


# {queue}, {client} and {letter} are things of the bus. Without `by` nothing has to run.
ROWS: Mapping[str, Row] = {
    "attempts": Row("--receiver @{queue}", prints=True),
    "audit": Row(prints=True),
    "completion": Row("bash", by=""),
    "dashboard": Row(by="redis"),
    "dead jobs": Row("--receiver @{queue}", prints=True),
    "dead list": Row("--receiver @{queue}", prints=True),
    "dead purge": Row("--receiver @{queue}"),
    "dead redrive": Row("--receiver @{queue}"),
    "dead show": Row("{letter} --receiver @{queue}", prints=True),
    # It is there to say so, among other things.
    "doctor": Row(prints=True, away=1),
    "erase": Row("--tenant none", by="redis"),
    "events search": Row(by="redis", prints=True),
    "events show": Row("none", by="redis", prints=True),
    "listen": Row("--forward-to http://127.0.0.1:1"),
    # What Spark runs, and those that wait for Redis, have tests of their own.
    "pipeline package": Row("", by=""),
    "pipeline run": Row(by=""),
    "pipeline sources": Row(by="", prints=True),
    "pipeline status": Row(by="redis", prints=True),
    "publish": Row("orders create --token x"),
    "pull": Row("{queue}", prints=True),
    "queue delete": Row("{queue}"),
    "queue facet": Row("{queue} acme", prints=True),
    "queue list": Row(prints=True),
    "queue peek": Row("{queue}", prints=True),
    "queue pull": Row("{queue}", prints=True),
    "queue purge": Row("{queue}"),
    "queue register": Row("other .*:none:.*"),
    "queue show": Row("{queue}", prints=True),
    "receiver enable": Row("@{queue}"),
    "receiver list": Row(prints=True),
    "receiver pause": Row("@{queue}"),
    "receiver resume": Row("@{queue}"),
    "receiver rotate-secret": Row("@{queue}"),
    "receiver show": Row("@{queue}", prints=True),
    "receiver test": Row("@{queue}"),
    "replay": Row("--from 2026-01-01 --receiver none", by="redis"),
    "replays": Row(by="redis", prints=True),
    # It reads a lake, and so do its own tests.
    "report": Row(by=""),
    "resend": Row("none --receiver @{queue}"),
    "simulate": Row(by=""),
    "status": Row(by="redis", prints=True),
    "subscribe": Row("orders --callback https://example.org --token x"),
    "subscription delete": Row("none --token x"),
    "subscription give": Row("none/none none"),
    "subscription list": Row(prints=True),
    "subscription patch": Row("none --max 5 --token x"),
    "subscription put": Row("none orders --callback https://example.org --token x"),
    # It needs a subscription; its own tests have one.
    "subscription show": Row("none --token x"),
    "tail": Row("--count 1 --from earliest *:{queue}:*", prints=True),
    "token create": Row("shop"),
    "token list": Row(prints=True),
    "token portal": Row("acme --token x"),
    "token revoke": Row("none"),
    "token rotate": Row("none"),
    "token update": Row("none --description text"),
    "top": Row(by="redis", prints=True),
    "topic delete": Row("none"),
    "topic give": Row("none none"),
    "topic list": Row(prints=True),
    "topic set": Row("none --description text"),
    "topic show": Row("{queue}", prints=True),
    "unsubscribe": Row("--token x"),
    "up": Row(by=""),
    "watch": Row(by=""),
    "web": Row(by=""),
    "worker": Row(by=""),
}
AWAY = [name for name, row in ROWS.items() if row.by]
PRINTING = [name for name, row in ROWS.items() if row.prints]


def leaves(command: click.Command, path: str = "") -> Iterator[tuple[str, click.Command]]:
    if isinstance(command, click.Group):
        for name, each in command.commands.items():
            if not each.hidden:
                yield from leaves(each, f"{path} {name}".strip())
    else:
        yield path, command


COMMANDS = dict(leaves(cli))


def options(name: str) -> set[str]:
    return {text for parameter in COMMANDS[name].params for text in parameter.opts}


def test_each_command_has_a_row():
    assert COMMANDS.keys() == ROWS.keys()


def test_a_read_prints_json_and_what_destroys_can_be_tried():
    destroy = {"dead purge", "dead redrive", "erase", "queue delete", "queue purge", "replay", "token revoke"}
    destroy |= {"subscription delete", "topic delete", "unsubscribe"}

    assert [name for name, row in ROWS.items() if row.prints and "--json" not in options(name)] == []
    assert {name for name in COMMANDS if options(name) >= {"--yes", "--dry-run"}} == destroy
    assert {name for name in COMMANDS if "--yes" in options(name)} == destroy


def test_data_is_a_folder_in_all_commands():
    found = [p for command in COMMANDS.values() for p in command.params if "--data" in p.opts]

    assert {(type(each.type), each.type.file_okay) for each in found} == {(click.Path, False)}


@pytest.mark.parametrize("name", COMMANDS)
def test_help_is_told_and_nonsense_is_refused(name: str):
    with_help = run(*name.split(), "--help")
    with_nonsense = run(*name.split(), "--no-such-option")

    assert (with_help.returncode, with_help.stderr) == (0, "")
    assert with_help.stdout.startswith(f"Usage: doubledecker {name} ")
    assert (with_nonsense.returncode, with_nonsense.stdout) == (2, "")
    assert f"Try 'doubledecker {name} --help' for help." in with_nonsense.stderr


@pytest.mark.parametrize("name", AWAY)
def test_a_bus_that_is_away_is_a_sentence_with_what_to_do(name: str):
    row, port = ROWS[name], machine.free_port()
    words = row.words.format(queue="none", client="none", letter="none").split()
    url = {"DOUBLEDECKER_REDIS_URL": f"redis://127.0.0.1:{port}/0", "DOUBLEDECKER_ROOT_KEY": "key"}
    where = ["--bus", f"http://127.0.0.1:{port}"] if row.by == "http" else []
    answer = run(*name.split(), *words, *where, **url)

    assert answer.returncode == row.away, answer.stderr
    if row.away == 3:
        assert answer.stdout == ""
        [line] = answer.stderr.splitlines()[-1:]
        assert line.startswith("doubledecker: ")
        assert "; start one with `doubledecker up`, or pass" in line


@pytest.fixture(scope="module")
def known(bus: Up) -> dict[str, str]:
    """A queue with two events, a dead letter among them."""
    where, queue = ["--data", str(bus.data)], "even"
    secret = run("token", "create", "even", *where).stdout.strip()
    register = ["--callback", "https://example.org/", "--token", secret, *where]
    assert run("queue", "register", queue, f".*:{queue}:.*", *register).returncode == 0
    assert run("receiver", "pause", f"@{queue}", *where).returncode == 0
    assert bus.post("/events", secret, [{"topic": queue, "type": "run"}] * 5) == 202
    pulled = json.loads(run("queue", "pull", queue, "--json", "--wait-ms", "5000", *where).stdout)
    nack = {"messages": [{"id": pulled["id"], "attempt": pulled["attempt"]}], "reject": True}
    assert bus.post(f"/queues/{queue}/nack", secret, nack) == 200
    [letter] = [json.loads(run("dead", "list", "--receiver", f"@{queue}", "--json", *where).stdout)]
    return {"queue": queue, "client": "even", "letter": letter["id"]}


@pytest.mark.parametrize("name", PRINTING)
def test_json_is_json(name: str, bus: Up, known: dict[str, str]):
    words = ROWS[name].words.format(**known).split()
    answer = run(*name.split(), *words, "--json", "--data", str(bus.data))

    assert answer.returncode == 0, answer.stderr
    lines = answer.stdout.splitlines()
    # One document, or one a line.
    parsed = [json.loads(answer.stdout)] if name == "dead show" else [json.loads(line) for line in lines]
    assert parsed
    assert "\x1b" not in answer.stdout


@pytest.mark.parametrize("name", ["queue purge", "queue delete", "dead purge", "dead redrive"])
def test_a_dry_run_says_how_much_it_is_and_changes_nothing(name: str, bus: Up, known: dict[str, str]):
    where = ["--data", str(bus.data)]
    before = json.loads(run("queue", "show", known["queue"], "--json", *where).stdout)
    answer = run(*name.split(), *ROWS[name].words.format(**known).split(), "--dry-run", "--yes", *where)
    after = json.loads(run("queue", "show", known["queue"], "--json", *where).stdout)

    assert (answer.returncode, answer.stdout) == (0, "")
    assert answer.stderr.endswith("Not now: this is a dry run\n")
    assert [before[field] for field in ("waiting", "dead")] == [after[field] for field in ("waiting", "dead")]
    assert before["dead"] == 1
