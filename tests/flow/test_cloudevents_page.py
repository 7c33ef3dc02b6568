"""What docs/cloudevents.md shows is true."""

import json
import re
from pathlib import Path

from conftest import Topology
from harness import a_bus
from web.asking import ask, journal

PAGE = (Path(__file__).parents[2] / "docs" / "cloudevents.md").read_text()


async def test_the_event_that_the_page_sends_is_stored_as_it_shows(one: Topology):
    [sent] = re.findall(r"^\{\"specversion.*\}(?='$)", PAGE, re.MULTILINE)
    shown = json.loads(re.findall(r"```json\n(.*)\n```", PAGE)[0])
    said = {"Content-Type": "application/cloudevents+json"}
    async with a_bus(one, workers=0) as bus:
        answer = await ask(bus, "POST", "/events", await bus.token("shop"), body=sent.encode(), headers=said)
        [event] = await journal(bus)

    assert answer.status == 202
    assert {**event, "t": shown["t"]} == shown
    assert list(event) == list(shown)
