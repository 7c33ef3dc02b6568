"""`POST /events?all=1`: everything in one write, or nothing at all."""

import pytest

from conftest import Topology
from harness import a_bus, an_event
from web.asking import ask, journal, waiting


@pytest.mark.parametrize("bad", [{"topic": "mine", "type": "no good"}, {"topic": "taken", "type": "paid"}, 7])
async def test_with_all_one_bad_event_refuses_all_and_nothing_is_written(topology: Topology, bad: object):
    async with a_bus(topology, workers=0) as bus:
        await bus.publish(await bus.token("other"), [an_event(0, topic="taken")])
        shop = await bus.token("shop")
        events = [
            {"topic": "mine", "type": "paid", "tenant": "a"},
            bad,
            {"topic": "mine", "type": "paid", "tenant": "b"},
        ]
        answer = await ask(bus, "POST", "/events?all=1", shop, json=events)

        assert answer.status == (403 if isinstance(bad, dict) and bad["topic"] == "taken" else 400)
        assert answer.detail == "1 of 3 events were refused, so none was published"
        assert [refused["index"] for refused in answer.json["refused"]] == [1]
        assert [event["topic"] for event in await journal(bus)] == ["taken"]
        assert [row["name"] for row in await bus.get("/topics")] == ["taken"]


async def test_with_all_good_events_are_published(topology: Topology):
    async with a_bus(topology, workers=0) as bus:
        events = [an_event(n, tenant=f"t{n}") for n in range(9)]
        answer = await ask(bus, "POST", "/events?all=1", await bus.token("shop"), json=events)

        assert answer.status == 202
        assert sorted(event["id"] for event in await journal(bus)) == sorted(answer.json["ids"])


async def test_with_all_what_does_not_fit_one_write_is_413_and_nothing_is_written(
    topology: Topology, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("doubledecker.store.events.WRITES_MAX", 10)
    async with a_bus(topology, workers=0) as bus:
        shop = await bus.token("shop")
        for name in ("a", "b"):
            await bus.subscribe(await bus.token(name), "https://mail.example/", "widgets")
        # One tenant is one partition: its four events take twelve places; the other's event would fit.
        events = [an_event(0, tenant="small"), *(an_event(n, tenant="large") for n in range(4))]
        refused = await ask(bus, "POST", "/events?all=1", shop, json=events, headers={"Idempotency-Key": "k"})
        topics = await bus.get("/topics")
        fitting = await ask(bus, "POST", "/events?all=1", shop, json=events[2:], headers={"Idempotency-Key": "k"})

        assert refused.status == 413
        assert "?all=1" in refused.detail
        assert topics == []
        assert fitting.status == 202
        assert sorted(event["id"] for event in await journal(bus)) == sorted(fitting.json["ids"])


async def test_without_all_what_does_not_fit_one_write_takes_several(
    topology: Topology, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("doubledecker.store.events.WRITES_MAX", 10)
    async with a_bus(topology, workers=0) as bus:
        for name in ("a", "b"):
            await bus.subscribe(await bus.token(name), "https://mail.example/", "widgets")
        ids = await bus.publish(await bus.token("shop"), [an_event(n) for n in range(40)])

        assert [event["id"] for event in await journal(bus)] == ids
        assert len(await waiting(bus)) == 80


@pytest.mark.parametrize("value", ["2", "true", "yes"])
async def test_all_is_0_or_1(one: Topology, value: str):
    async with a_bus(one, workers=0) as bus:
        answer = await ask(bus, "POST", f"/events?all={value}", await bus.token("shop"), json=an_event(1))

        assert answer.status == 400
        assert answer.detail == f"all is {value!r}; it must be 0 or 1"
