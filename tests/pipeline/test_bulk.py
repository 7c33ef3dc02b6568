"""Bulk delivery by the real step: real Spark, a real lake, real receivers."""

from collections import defaultdict
from pathlib import Path

from pyspark.sql import SparkSession

from bulk import Ground, a_ground
from conftest import Topology
from harness import an_event
from receiver import Receiver


def some_events(count: int, *, keys: int = 7, first: int = 0, topic: str = "orders") -> list[dict[str, object]]:
    return [an_event(n, topic, key=f"k{n % keys}", tenant=f"t{n % 3}", data=n) for n in range(first, first + count)]


def in_order(receiver: Receiver) -> bool:
    """Whether each key's events came in the order of acceptance, repeats aside."""
    seen: dict[tuple[object, object], list[int]] = defaultdict(list)
    for event in receiver.events:
        seen[event.get("tenant"), event["key"]].append(int(str(event["data"])))
    return all(numbers == sorted(numbers) for numbers in seen.values())


async def test_everything_is_delivered_once_in_order_by_key_and_in_batches_as_asked_for(
    spark: SparkSession, topology: Topology, tmp_path: Path
):
    async with Receiver() as mail, a_ground(spark, topology, tmp_path) as ground:
        await ground.subscribe("mail", mail.url, "orders", max=20)
        ids = []
        for first in range(0, 1000, 100):
            ids += await ground.publish(some_events(100, first=first))
        await ground.publish([an_event(0, "other")])
        before = await ground.seen("mail")
        await ground.deliver()
        after = await ground.seen("mail")

    assert sorted(mail.ids) == sorted(ids)
    assert in_order(mail)
    assert max(len(batch.events) for batch in mail.batches) == 20
    assert before["events"]["queued"] == 1000
    assert before["events"]["oldest"] > 0
    assert after["events"] == {"sent": 1000, "queued": 0, "oldest": 0}
    assert after["tier"] == "bulk"
    assert after["health"] == 100
    assert after["last_attempted_at"] is not None
