"""The history of the bus: what each look adds to its rings."""

from dataclasses import replace

import msgspec
import pytest

from doubledecker.bus import history, telemetry
from doubledecker.bus.overview import Overview
from doubledecker.store import history as rings
from doubledecker.store.history import RINGS
from doubledecker.store.journal import Age
from doubledecker.store.partitions import Partitions

SECONDS, TENS, _ = RINGS
AT_MS = 1_800_000_000_000
QUICK, SLOW = (telemetry.counter("latency.batches.last_attempt", le=le) for le in ("10", "500"))


def a_view(after_ms: int, **counters: int) -> Overview:
    view = Overview(AT_MS + after_ms, (), {}, {}, 1, (), {}, None)
    names = {"published": "events.published:topic=a", "quick": QUICK, "slow": SLOW}
    return replace(
        view,
        counters={names[name]: count for name, count in counters.items()},
        journal_ages={"events": Age(0, 40)},
        oldest_at=AT_MS + after_ms - 700,
    )


async def look(partitions: Partitions, view: Overview) -> bool:
    """What the chore does, with a view of the bus that is made up."""
    return await history.add(partitions.home, view, await rings.head(partitions.home), took_ms=0)


async def test_a_sample_is_what_grew_since_the_look_before(plain: Partitions):
    await look(plain, a_view(0, published=100, quick=5))
    await look(plain, a_view(1_000, published=350, quick=8, slow=1))

    [sample] = await history.read(plain, SECONDS, from_s=AT_MS // 1000, to_s=AT_MS // 1000 + 1)
    assert (sample.at_s, sample.span_s, sample.published, sample.batches) == (AT_MS // 1000 + 1, 1.0, 250.0, 4)
    assert (sample.oldest_ms, sample.lag_ms) == (700, 40)
    assert history.latency_ms([sample], 0.5) == pytest.approx(5 + 5 * 2 / 3, abs=0.01)
    assert 200 < (history.latency_ms([sample], 0.99) or 0) <= 500


async def test_a_sample_of_a_longer_step_grows_until_its_time_is_over(plain: Partitions):
    for second in range(12):
        await look(plain, a_view(second * 1_000, published=second * second))

    first, last = await history.read(plain, TENS, from_s=AT_MS // 1000, to_s=AT_MS // 1000 + 11)
    assert (first.span_s, first.published) == (9.0, 9.0)
    assert (last.span_s, last.published) == (2.0, (121 - 81) / 2)


async def test_a_ring_goes_round_and_what_is_older_than_it_is_not_shown(plain: Partitions):
    for second in (0, 1, 2, SECONDS.samples + 1):
        await look(plain, a_view(second * 1_000, published=second))
    end_s = AT_MS // 1000 + SECONDS.samples + 1

    found = await history.read(plain, SECONDS, from_s=end_s - SECONDS.span_s + 1, to_s=end_s)
    assert [sample.at_s - AT_MS // 1000 for sample in found] == [2, SECONDS.samples + 1]


async def test_of_two_that_look_at_once_one_is_counted(plain: Partitions):
    await look(plain, a_view(0, published=100))
    kept = await rings.head(plain.home)
    both = [await history.add(plain.home, a_view(ms, published=300), kept, took_ms=0) for ms in (1_000, 1_010)]

    assert both == [True, False]
    [sample] = await history.read(plain, SECONDS, from_s=AT_MS // 1000, to_s=AT_MS // 1000 + 1)
    assert sample.published == 200.0


OTHER = msgspec.msgpack.encode([AT_MS - 1_000, 0, [1, 2], [[AT_MS // 1000, AT_MS, [1, 2], [0] * 4]] * 3])


@pytest.mark.parametrize("head", [b"not ours", OTHER])
async def test_counters_that_begin_anew_and_a_head_of_another_version_are_no_reason_to_stop(
    plain: Partitions, head: bytes
):
    await plain.home.command("SET", plain.home.key("history"), head)
    await look(plain, a_view(0, published=100))
    await look(plain, a_view(1_000, published=7))

    [sample] = await history.read(plain, SECONDS, from_s=AT_MS // 1000, to_s=AT_MS // 1000 + 1)
    assert sample.published == 0.0
