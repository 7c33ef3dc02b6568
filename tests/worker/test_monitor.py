"""Metric adapters, each by what comes out of it."""

import json

import pytest

from doubledecker.bus.overview import Overview, ServerMemory
from doubledecker.worker.monitor import Monitor, PrintAdapter

VIEW = Overview(
    at=0,
    subscribers=(),
    counters={},
    jobs={("main", "index"): 3, ("main", "instant"): 2},
    slots_alive=8,
    memory=(ServerMemory("a", 10, 0, "ok"), ServerMemory("b", 20, 0, "ok")),
    journal_bytes={},
    oldest_at=None,
)


def test_the_print_adapter_writes_one_line_of_json_a_run(capsys: pytest.CaptureFixture[str]):
    Monitor([PrintAdapter()]).send(VIEW, {"events.published:topic=widgets": 7})

    [line] = capsys.readouterr().out.splitlines()
    printed = json.loads(line)
    assert printed["counters"] == {"events.published:topic=widgets": 7}
    assert printed["gauges"]["jobs.count:queue=main,state=total"] == 3
    assert printed["gauges"]["redis.bytes_used"] == 30
    assert printed["gauges"]["worker.slots"] == 8
