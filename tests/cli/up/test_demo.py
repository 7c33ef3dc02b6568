"""The demo: its subscribers get what its publisher sends, and it is the same clients when started again."""

import os
import signal
from pathlib import Path

import pytest

from cli.commands import Up, an_up, run, until

RECEIVERS = {"demo-billing", "demo-search", "demo-mailer", "demo-ledger", "demo-legacy", "@demo-partners"}
BROKEN = "demo-legacy"


def sent(up: Up) -> dict[str, int]:
    """How many events each receiver took, but for the one that takes none."""
    rows = up.status()["subscribers"]
    return {row["subscriber"]: row["sent"] for row in rows if not row["subscriber"].startswith(BROKEN)}


def receivers(up: Up) -> list[str]:
    return [row["subscriber"] for row in up.status()["subscribers"]]


@pytest.mark.slow
def test_events_flow_to_all_receivers_and_again_after_the_demo_was_killed(data_dir: Path):
    with an_up(data_dir) as up:
        until(lambda: list(map(bool, sent(up).values())) == [True] * (len(RECEIVERS) - 1), within_s=40)
        before = sent(up)
        former = up.child("demo")
        os.kill(former, signal.SIGKILL)
        until(lambda: up.child("demo") not in {0, former})
        until(lambda: all(now > before[token] for token, now in sent(up).items()), within_s=60)
        after = sent(up)
        exit_code = up.end()

    named = {token if token.startswith("@") else token.rpartition("-")[0] for token in before}
    assert named == RECEIVERS - {BROKEN}
    assert after.keys() == before.keys()
    assert exit_code == 0


@pytest.mark.slow
def test_there_is_something_of_all_to_see(data_dir: Path):
    with an_up(data_dir) as up:
        # Events that it does not take come by chance, one or two in a minute.
        until(lambda: any(row["dead"] for row in up.status()["subscribers"]), within_s=180)
        rows = {row["subscriber"].rpartition("-")[0]: row for row in up.status()["subscribers"]}

    assert rows["demo-legacy"]["failures"] > 0
    assert rows["demo-billing"]["health"] == 100


@pytest.mark.slow
def test_a_demo_that_stopped_leaves_no_receiver_behind(data_dir: Path):
    with an_up(data_dir) as up:
        until(lambda: len(receivers(up)) == len(RECEIVERS), within_s=40)
        up.end()

    # Without this the next start would look for what a killed demo left.
    (data_dir / "demo").unlink()
    with an_up(data_dir, "--no-demo") as up:
        assert receivers(up) == []


@pytest.mark.slow
def test_what_a_killed_demo_left_is_removed_by_the_next_start_without_one(data_dir: Path):
    with an_up(data_dir) as up:
        until(lambda: len(receivers(up)) == len(RECEIVERS), within_s=40)
        up.end(signal.SIGKILL)

    with an_up(data_dir, "--no-demo") as up:
        until(lambda: receivers(up) == [])
        until(lambda: not (data_dir / "demo").exists())


@pytest.mark.slow
def test_a_newcomer_may_use_the_names_of_the_readme_beside_a_demo(data_dir: Path):
    with an_up(data_dir) as up:
        until(lambda: len(receivers(up)) == len(RECEIVERS), within_s=40)
        shop = run("token", "create", "shop", "--bus", up.url, "--data", str(data_dir)).stdout.strip()

        assert up.post("/events", shop, [{"topic": "orders", "type": "paid"}]) == 202
