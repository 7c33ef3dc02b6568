"""What docs/cloudevents.md shows is true."""

import json
import re
from pathlib import Path

from cloud_receiver import CloudReceiver
from conftest import Topology
from harness import a_bus
from web.asking import ask, journal

PAGE = (Path(__file__).parents[2] / "docs" / "cloudevents.md").read_text()


async def test_the_event_that_the_page_sends_is_stored_and_posted_as_it_shows(one: Topology):
    [sent] = re.findall(r"^\{\"specversion.*\}(?='$)", PAGE, re.MULTILINE)
    posted, stored = (json.loads(shown) for shown in re.findall(r"```json\n(.*)\n```", PAGE))
    said = {"Content-Type": "application/cloudevents+json"}
    event = json.dumps({**json.loads(sent), "time": posted[0]["time"]}).encode()
    async with CloudReceiver() as receiver, a_bus(one) as bus:
        await bus.subscribe(await bus.token("s"), receiver.url, "orders", format="cloudevents-batch", timeout=0)
        answer = await ask(bus, "POST", "/events", await bus.token("shop"), body=event, headers=said)
        await receiver.until(lambda: len(receiver.taken) == 1)
        [found] = await journal(bus)

    assert answer.status == 202
    assert (found, list(found)) == (stored, list(stored))
    [came] = json.loads(receiver.taken[0].body)
    assert ([came], list(came)) == (posted, list(posted[0]))
