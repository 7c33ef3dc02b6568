"""Replays and erasures by the client: asked for, looked at, cancelled; no pipeline runs, so they wait."""

import pytest

from conftest import Topology
from doubledecker.client import AsyncBus, Conflict, Forbidden, NotFound
from harness import ROOT_KEY, a_bus


async def test_a_replay_is_begun_shown_and_cancelled(one: Topology):
    async with a_bus(one, workers=0) as place, AsyncBus(place.url, await place.token("mail")) as bus:
        await bus.subscribe(["orders"], "https://mail.example/")
        begun = await bus.replays().begin(to_subscriber="mail", topic="orders", start="2026-11-01T00:00:00Z", rate=7)
        shown = await bus.replays().show(begun.id)
        listed = await bus.replays().list()
        cancelled = await bus.replays().cancel(begun.id)
        with pytest.raises(Conflict):
            await bus.replays().cancel(begun.id)
        with pytest.raises(NotFound):
            await bus.replays().show("no-such")

    assert (begun.state, begun.rate, begun.topic, begun.start) == ("waiting", 7, "orders", "2026-11-01T00:00:00+00:00")
    assert begun.to_subscriber is not None
    assert (shown.id, [each.id for each in listed]) == (begun.id, [begun.id])
    assert (begun.is_over, cancelled.state, cancelled.is_over) == (False, "cancelled", True)


async def test_an_erasure_is_root_s(one: Topology):
    async with a_bus(one, workers=0) as place, AsyncBus(place.url, ROOT_KEY) as root:
        begun = await root.erasures().begin(tenant="acme", dry_run=True)
        shown, [listed] = await root.erasures().show(begun.id), await root.erasures().list()
        async with AsyncBus(place.url, await place.token("mail")) as mail:
            with pytest.raises(Forbidden):
                await mail.erasures().begin(tenant="acme")

    assert (begun.tenant, begun.dry_run, begun.erased, begun.state) == ("acme", True, 0, "waiting")
    assert shown.id == listed.id == begun.id
