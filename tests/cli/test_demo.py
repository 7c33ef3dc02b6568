"""The demo: its subscribers get what its publisher sends, and it is the same clients when started again."""

import os
import signal
from pathlib import Path

import pytest

from cli.commands import Up, an_up, until


def sent(up: Up) -> dict[str, int]:
    return {row["subscriber"]: row["sent"] for row in up.status()["subscribers"]}


@pytest.mark.slow
def test_events_flow_to_all_four_receivers_and_again_after_the_demo_was_killed(data_dir: Path):
    with an_up(data_dir) as up:
        until(lambda: list(map(bool, sent(up).values())) == [True] * 4, within_s=40)
        before = sent(up)
        former = up.child("demo")
        os.kill(former, signal.SIGKILL)
        until(lambda: up.child("demo") not in {0, former})
        until(lambda: all(now > before[token] for token, now in sent(up).items()), within_s=60)
        after = sent(up)
        exit_code = up.end()

    named = {token if token.startswith("@") else token.rpartition("-")[0] for token in before}
    assert named == {"billing", "search", "mailer", "@partners"}
    assert after.keys() == before.keys()
    assert exit_code == 0
