"""Where an event is in Redis just now."""

import msgspec

from doubledecker.store import locate
from doubledecker.store.locate import Location
from doubledecker.store.partitions import Partitions
from queues.pulling import a_queue, push, quiet_rings


async def test_a_message_in_a_consumers_hands_is_found_with_its_attempts(plain: Partitions):
    queue, rings = a_queue(), quiet_rings(plain)
    await push(plain, queue, ["ann"])
    [message] = (await rings.pull(queue, most=1)).messages

    found = await locate.find(plain.home, msgspec.json.decode(message.event)["id"])

    assert found == [Location("queue", queue.name, message.id, attempts=1)]
