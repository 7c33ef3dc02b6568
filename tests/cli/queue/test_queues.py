"""Queues by command: registered, shown, pulled from, ruled; and nothing destroyed without a count and a question."""

import json

import pytest

from cli.commands import Up, run, run_on_a_terminal


def queue(bus: Up, *arguments: str, stdin: str = "", **changes: str):
    return run("queue", *arguments, "--bus", bus.url, "--data", str(bus.data), stdin=stdin, **changes)


def shown(bus: Up, name: str) -> dict:
    return json.loads(queue(bus, "show", name, "--json").stdout)


@pytest.fixture(scope="module")
def shop(bus: Up) -> str:
    """A client that publishes."""
    return run("token", "create", "shop", "--bus", bus.url, "--data", str(bus.data)).stdout.strip()


@pytest.fixture
def jobs(bus: Up, shop: str, request: pytest.FixtureRequest) -> str:
    """A queue of its own for each test, with two messages of acme and one of zeta."""
    name = request.node.name.partition("[")[0][-60:]
    topic = f"topic_{abs(hash(name))}".translate(str.maketrans("0123456789", "abcdefghij"))
    assert queue(bus, "register", name, f".*:{topic}:.*", "--attempts-max", "1").returncode == 0
    for number, tenant in enumerate(("acme", "acme", "zeta")):
        data = json.dumps({"n": number})
        answer = run("publish", topic, "run", "--tenant", tenant, "--payload", data, "--token", shop, "--bus", bus.url)
        assert answer.returncode == 0, answer.stderr
    return name


def test_a_queue_is_registered_listed_and_shown(bus: Up, jobs: str):
    listed = queue(bus, "list").stdout.splitlines()
    page = queue(bus, "show", jobs).stdout.splitlines()

    assert listed[0] == "queue\towner\twaiting\tin flight\tdelayed\tdead\tpushing\tpatterns"
    assert any(line.startswith(f"{jobs}\troot\t3\t0\t0\t0\tno\t") for line in listed)
    assert "waiting\t3" in page
    assert "attempts\t1" in page
    [acme] = [line.split("\t") for line in page if line.startswith("acme\t")]
    assert acme[1:3] == ["2", "0"]
    assert acme[4:] == ["50.0%", "█" * 10, "weight 1"]
    assert [row["name"] for row in json.loads(queue(bus, "list", "--json").stdout) if row["name"] == jobs] == [jobs]


def test_messages_are_pulled_and_acked(bus: Up, jobs: str):
    first = queue(bus, "pull", jobs)
    second = queue(bus, "pull", jobs, "--max", "5", "--ack", "--json")
    nothing = queue(bus, "pull", jobs)

    assert json.loads(first.stdout)["data"] == {"n": 0}
    assert sorted(json.loads(line)["event"]["data"]["n"] for line in second.stdout.splitlines()) == [1, 2]
    assert second.stderr == "Acked 2\n"
    assert (nothing.returncode, nothing.stderr) == (0, "There is nothing to pull\n")
    assert (shown(bus, jobs)["in_flight"], shown(bus, jobs)["counters"]["acked"]) == (1, 2)


@pytest.mark.slow
def test_a_pull_waits_for_longer_than_other_answers_may_take(bus: Up):
    """It was given up after 10 s, as if there were no bus."""
    assert queue(bus, "register", "quiet", "none:none:none").returncode == 0
    waited = queue(bus, "pull", "quiet", "--wait-ms", "10500")

    assert (waited.returncode, waited.stderr) == (0, "There is nothing to pull\n")


def test_a_look_takes_nothing(bus: Up, jobs: str):
    seen = queue(bus, "peek", jobs, "--tenant", "acme")
    cut = queue(bus, "peek", jobs, "--tenant", "acme", "--limit", "1", "--json")
    nothing = queue(bus, "peek", jobs)

    assert [json.loads(line)["data"]["n"] for line in seen.stdout.splitlines()] == [0, 1]
    assert [json.loads(line)["tenant"] for line in cut.stdout.splitlines()] == ["acme"]
    assert (nothing.returncode, nothing.stderr) == (0, f"Nothing of default waits in {jobs}\n")
    assert shown(bus, jobs)["waiting"] == 3


def test_a_queue_is_registered_with_a_filter_which_is_shown(bus: Up):
    words = ["--filter", '{"data": {"total": [{"numeric": [">", 100]}]}}']
    made = queue(bus, "register", "filtered", "none:none:none", *words)
    shown = queue(bus, "show", "filtered")
    wrong = queue(bus, "register", "filtered", "none:none:none", "--filter", "total > 100")
    null = queue(bus, "register", "filtered", "none:none:none", "--filter", "null")
    refused = queue(bus, "register", "filtered", "none:none:none", "--filter", '{"total": [100]}')

    assert made.returncode == 0
    assert '{"data":{"total":[{"numeric":[">",100]}]}}' in shown.stdout
    assert wrong.returncode == 2
    assert "--filter is not JSON" in wrong.stderr
    assert "--filter is null; it must be a JSON object" in null.stderr
    assert "it may have tenant, type, key, topic, data and $or" in refused.stderr


def test_a_queue_with_a_callback_is_registered_in_full(bus: Up):
    asked = {"callback": "https://mail.example/", "uuid": "key", "timeout": 50}
    asked |= {"max": 7, "max_bytes": 99, "concurrency": 2}
    words = [word for name, value in asked.items() for word in (f"--{name.replace('_', '-')}", str(value))]
    made = queue(bus, "register", "pushed", "none:none:none", *words)

    assert made.returncode == 0, made.stderr
    assert made.stderr.endswith("; pushed to https://mail.example/\nIts signing secret is shown this once:\n")
    assert made.stdout.startswith("whsec_")
    assert shown(bus, "pushed").items() >= asked.items()
    page = queue(bus, "show", "pushed").stdout
    assert "pushed to\thttps://mail.example/\nits health\thealthy 100, 0 failures in a row\n" in page


def test_a_callback_is_not_lost_without_a_word(bus: Up):
    words = ("register", "forgotten", "none:none:none")
    queue(bus, *words, "--callback", "https://mail.example/")
    paused = run("receiver", "pause", "@forgotten", "--bus", bus.url, "--data", str(bus.data))
    listed = queue(bus, "list").stdout
    refused = [queue(bus, *words, *option) for option in (("--max", "10"), ("--retry", "[1]"), ("--uuid", "u"))]
    kept = shown(bus, "forgotten")
    removed = queue(bus, *words)

    assert paused.returncode == 0, paused.stderr
    assert "\tpaused\tnone:none:none\n" in listed
    assert [answer.returncode for answer in refused] == [2] * 3
    assert "--max is for a queue with a callback: pass --callback URL too" in refused[0].stderr
    assert kept["callback"] == "https://mail.example/"
    assert removed.stderr.endswith("It had the callback https://mail.example/, which is removed, with its secret\n")


def test_a_facet_is_ruled_and_freed(bus: Up, jobs: str):
    ruled = queue(bus, "facet", jobs, "acme", "--weight", "3", "--concurrency", "2", "--rate", "5", "--pause")
    seen = queue(bus, "facet", jobs, "acme").stdout.splitlines()[1]
    freed = queue(bus, "facet", jobs, "acme", "--concurrency", "none", "--rate", "none", "--resume")

    assert ruled.stderr == f"acme in {jobs}: weight 3, at most 2 at a time, at most 5 a second, paused\n"
    assert seen.endswith("weight 3, at most 2 at a time, at most 5 a second, paused")
    assert freed.stderr == f"acme in {jobs}: weight 3\n"


def test_what_version_0_1_0_had_for_dead_letters_of_a_queue_still_works(bus: Up, jobs: str):
    _kill_one(bus, jobs)
    listed = queue(bus, "dead", jobs)
    refused = queue(bus, "redrive", jobs, stdin="n\n")
    redriven = queue(bus, "redrive", jobs, "--tenant", "acme", stdin="y\n")
    _kill_one(bus, jobs)
    purged = queue(bus, "purge", jobs, "--dead", "--yes")
    none = queue(bus, "purge", jobs, "--dead")
    shown = run("queue", "--help").stdout

    assert listed.stdout.splitlines()[1].split("\t")[3:5] == ["acme", "attempts"]
    assert refused.returncode == 1
    assert "Redrive 1 dead letter?" in refused.stderr
    assert redriven.stderr.endswith("Redriven: 1\n")
    assert purged.stderr == "Purged: 1\n"
    assert none.stderr == "There are no such dead letters\n"
    assert "dead" not in shown
    assert "redrive" not in shown


def test_dead_letters_are_listed_by_their_event(bus: Up, jobs: str):
    _kill_one(bus, jobs)
    _kill_one(bus, jobs)
    own = ("--receiver", f"@{jobs}", "--bus", bus.url, "--data", str(bus.data))
    titles, first, second = [line.split("\t") for line in run("dead", "list", *own).stdout.splitlines()]
    of_event = run("dead", "list", "--event", second[1], *own)
    none = run("dead", "list", "--event", "nothing", *own)

    assert titles[:3] == ["id", "event", "topic"]
    assert of_event.stdout.splitlines()[1:] == ["\t".join(second)]
    assert first[1] != second[1]
    assert none.stderr == "0 of 0 dead letters\n"


def test_dead_letters_that_are_not_there_are_an_error(bus: Up, jobs: str):
    _kill_one(bus, jobs)
    own = ("--receiver", f"@{jobs}", "--bus", bus.url, "--data", str(bus.data), "--yes")
    id_ = run("dead", "list", *own[:-1]).stdout.splitlines()[1].split("\t")[0]
    answers = [run("dead", action, "0-nosuch", *own) for action in ("redrive", "purge")]
    some = run("dead", "purge", "0-nosuch", id_, *own)

    told = "doubledecker: no dead letter '0-nosuch'; `doubledecker dead list` shows them\n"
    assert [(answer.returncode, answer.stderr) for answer in answers] == [(4, told)] * 2
    assert (some.returncode, some.stderr) == (0, "Purged: 1; 1 not found\n")


def test_dead_letters_of_any_receiver_are_chosen_counted_and_settled(bus: Up, jobs: str):
    def dead(*arguments: str, stdin: str = ""):
        return run("dead", *arguments, "--receiver", f"@{jobs}", "--bus", bus.url, "--data", str(bus.data), stdin=stdin)

    _kill_one(bus, jobs)
    titles, row = dead("list", "--reason", "attempts").stdout.splitlines()
    other = dead("list", "--tenant", "nobody")
    letter = json.loads(dead("show", row.split("\t")[0]).stdout)
    refused = dead("redrive", stdin="n\n")
    redriven = dead("redrive", "--tenant", "acme", stdin="y\n")
    _kill_one(bus, jobs)
    purged = dead("purge", "--rate", "100", "--yes")
    none = dead("purge")

    assert titles.split("\t")[:5] == ["id", "event", "topic", "tenant", "reason"]
    assert row.split("\t")[3:5] == ["acme", "attempts"]
    assert other.stderr == "0 of 0 dead letters\n"
    assert (letter["why"], letter["event"]["tenant"]) == ("no such customer", "acme")
    assert refused.returncode == 1
    assert "Redrive 1 dead letter?" in refused.stderr
    assert redriven.stderr.endswith("Redriven: 1\n")
    assert purged.stderr.endswith("done: 1 of 1\n")
    assert "purge\tdone\t1 of 1" in dead("jobs").stdout
    assert "'nan' is no number; it is 0.01 to 10000 a second" in dead("purge", "--rate", "nan", "--yes").stderr
    assert none.stderr == "There are no such dead letters\n"


def test_a_row_stays_a_row_whatever_a_consumer_wrote(bus: Up, jobs: str):
    _kill_one(bus, jobs, why="two\nlines\tand \x1b]0;a title\x07 \u009b31m")
    own = ("--receiver", f"@{jobs}", "--data", str(bus.data))
    [_, row] = run("dead", "list", *own).stdout.splitlines()
    shown = run_on_a_terminal("dead", "list", *own)

    assert row.split("\t")[9:] == ["two�lines�and �]0;a title� �31m"]
    assert "two�lines�an" in " ".join(shown.split())
    assert "\x1b]0" not in shown


def test_json_commands_no_terminal_and_means_the_same(bus: Up, jobs: str):
    why = "\u009b2J\x7f\u2066 ünïcödé \U000e0001 \U0001f68b"
    _kill_one(bus, jobs, why=why)
    own = ("--receiver", f"@{jobs}", "--bus", bus.url, "--data", str(bus.data))
    listed = run("dead", "list", "--json", *own).stdout
    shown = run("dead", "show", json.loads(listed)["id"], *own).stdout

    assert [json.loads(text)["why"] for text in (listed, shown)] == [why, why]
    for text in (listed, shown):
        assert text.replace("\n", "").isprintable()
        assert r"\u009b2J\u007f\u2066 ünïcödé \udb40\udc01 🚋" in text


def _kill_one(bus: Up, name: str, why: str = "no such customer") -> None:
    """With a single attempt, a message that is given back is dead."""
    [row] = [json.loads(line) for line in queue(bus, "pull", name, "--json").stdout.splitlines()]
    body = {"messages": [{"id": row["id"], "attempt": row["attempt"]}], "why": why}
    assert bus.post(f"/queues/{name}/nack", bus.root_key, body) == 200


def test_purging_and_deleting_say_how_much_and_ask(bus: Up, jobs: str):
    kept = queue(bus, "purge", jobs, "--tenant", "acme", stdin="n\n")
    purged = queue(bus, "purge", jobs, "--tenant", "acme", "--yes")
    asked = queue(bus, "delete", jobs, stdin="n\n")
    deleted = queue(bus, "delete", jobs, "--yes")
    gone = queue(bus, "show", jobs)

    assert (kept.returncode, purged.returncode) == (1, 0)
    assert f"Destroy 2 waiting messages of acme in {jobs}?" in kept.stderr
    assert purged.stderr == f"2 waiting messages of acme in {jobs} destroyed\n"
    assert "(1 waiting, 0 in flight, 0 delayed, 0 dead)?" in asked.stderr
    assert deleted.stderr == f"Deleted {jobs} (1 waiting, 0 in flight, 0 delayed, 0 dead)\n"
    assert gone.returncode == 4
    assert gone.stderr.startswith(f"doubledecker: no queue named '{jobs}'; ")
    assert gone.stderr.endswith("`doubledecker queue list` shows them\n")


def test_a_client_sees_its_own_queues_alone(bus: Up, jobs: str, shop: str):
    mine = queue(bus, "list", BUS_TOKEN=shop)
    foreign = queue(bus, "show", jobs, "--token", shop)

    assert mine.stdout.splitlines() == ["queue\towner\twaiting\tin flight\tdelayed\tdead\tpushing\tpatterns"]
    assert (foreign.returncode, "belongs to another client" in foreign.stderr) == (4, True)


@pytest.mark.parametrize(
    ("arguments", "exit_code", "said"),
    [
        (["register", "x"], 2, "Missing argument"),
        (["register", "x", "(a"], 4, "missing )"),
        (["register", "No Name", "a"], 4, "a name must match"),
        (["register", "x", "a", "--lease-ms", "1"], 4, "from 100 to"),
        (["facet", "x", "t", "--rate", "fast"], 2, "it must be a number from 0.001 to 1000000, or none for no bound"),
        (["facet", "x", "t", "--rate", "nan"], 2, "--rate is 'nan'; it must be a number from 0.001 to 1000000"),
        (["facet", "x", "t", "--rate", "inf"], 2, "--rate is 'inf'; it must be a number"),
        (["facet", "x", "t", "--weight", "nan"], 2, "--weight is 'nan'; it must be a number from 0.01 to 1000\n"),
        (["facet", "x", "t", "--weight", "none"], 2, "--weight is 'none'; it must be a number"),
        (["facet", "x", "t", "--concurrency", "2.5"], 2, "it must be a whole number from 1 to 100000, or none"),
        (["facet", "x", "t", "--concurrency", "9" * 5000], 2, "it must be a whole number from 1 to"),
        (["pull", "x", "--max", "0"], 2, "1<=x<=200"),
        (["delete", "x", "--yes"], 4, "no queue named 'x'"),
    ],
)
def test_what_cannot_be_says_why(bus: Up, arguments: list[str], exit_code: int, said: str):
    answer = queue(bus, *arguments)

    assert answer.returncode == exit_code
    assert said in answer.stderr
    assert "Traceback" not in answer.stderr
