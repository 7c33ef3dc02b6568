"""Snapshots as Prometheus reads them: the same numbers, and the same laws."""

import asyncio
from random import Random

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from doubledecker.stages import Bound, Breaker, Bulkhead, Chain, Exponential, Fifo, Simulated, Timeout
from doubledecker.stages.prometheus import StagesCollector
from stages.rehearsal import a_call, bind, ending, virtually

CHAIN = Breaker(calls_min=1) | Bulkhead(workers=2, queue=Fifo(3)) | Timeout(1.5)


def read(**chains: Bound) -> dict[tuple[str, ...], float]:
    """Every sample by its name and the values of its labels."""
    registry = CollectorRegistry()
    registry.register(StagesCollector(chains))
    text = generate_latest(registry).decode()
    return {
        (sample.name, *sample.labels.values()): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def test_every_column_of_a_snapshot_is_a_metric_and_the_laws_hold():
    async def main() -> None:
        bound = bind(CHAIN)
        calls = [asyncio.create_task(ending(bound.run(a_call(takes_s)))) for takes_s in (1, 1, 1, 2, 1, 9, 9, 9)]
        await asyncio.sleep(1.2)
        calls[4].cancel()
        await asyncio.sleep(0)

        found = read(mail=bound)

        for one in bound.snapshots():
            at = {
                column: found[f"stage_{column}{suffix}", "mail", one.stage]
                for column, suffix in [("queued", ""), ("working", ""), *((name, "_total") for name in TOTALS)]
            }
            assert at == {column: getattr(one, column) for column in at}
            assert at["arrived"] == at["rejected"] + at["started"] + at["queued"] + at["cancelled_in_queue"]
            assert at["started"] == at["succeeded"] + at["failed"] + at["cancelled"] + at["working"]
        assert found["stage_rejected_total", "mail", "bulkhead"] == 3
        assert found["stage_cancelled_in_queue_total", "mail", "bulkhead"] == 1
        assert found["stage_workers", "mail", "bulkhead"] == 2
        assert found["stage_state", "mail", "breaker", "closed"] == 1
        for call in calls:
            call.cancel()

    virtually(main())


TOTALS = ("arrived", "rejected", "cancelled_in_queue", "started", "succeeded", "failed", "cancelled")


def test_a_histogram_counts_exactly_how_many_stay_under_each_bound():
    took: list[float] = []

    class Noted(Exponential):
        def draw(self, random: Random) -> float:
            took.append(super().draw(random))
            return took[-1]

    async def main() -> None:
        bound = bind(Chain() | Simulated(Noted(0.05)))
        for _ in range(2_000):
            await bound.run(a_call())

        found = read(one=bound)

        for power in range(-13, 7):
            under = found["stage_work_time_seconds_bucket", "one", str(2.0**power), "simulated"]
            # A time is the difference of two moments, and may be off by a rounding: none here is that near a bound.
            assert under == sum(each <= 2.0**power for each in took), power
        assert found["stage_work_time_seconds_count", "one", "simulated"] == 2_000
        assert found["stage_work_time_seconds_bucket", "one", "+Inf", "simulated"] == 2_000
        assert found["stage_work_time_seconds_sum", "one", "simulated"] == pytest.approx(sum(took))

    virtually(main())


def test_chains_are_told_apart_by_their_names_and_may_come_and_go():
    async def main() -> None:
        chains = {"a": bind(Bulkhead()), "b": bind(Bulkhead())}
        await chains["b"].run(a_call())
        assert [read(**chains)["stage_arrived_total", name, "bulkhead"] for name in chains] == [0, 1]

        del chains["a"]
        assert ("stage_arrived_total", "a", "bulkhead") not in read(**chains)

    virtually(main())
