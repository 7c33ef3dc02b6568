"""What docs/filters.md shows of each operator is true."""

import json
import re
from pathlib import Path

from msgspec import Raw

from doubledecker.model import filter_syntax
from doubledecker.model.event import AcceptedEvent, encode
from doubledecker.model.event_filter import EventFacts

PAGE = (Path(__file__).parents[2] / "docs" / "filters.md").read_text()
ROWS = re.findall(r"^\| (.+?) \| `(\{.+?)` \| `(\{.*?)` \| `(\{.*?)` \|$", PAGE, re.MULTILINE)


def is_fitting(asked: str, shown: str) -> bool:
    given = json.loads(shown)
    if "data" in given:
        given["data"] = Raw(json.dumps(given["data"]).encode())
    event = AcceptedEvent(**{"topic": "orders", "type": "paid", "t": 1, "id": "o-1", **given})
    return filter_syntax.parse(json.loads(asked)).fits(EventFacts(event.kind, event.key, encode(event)))


def test_each_example_of_the_page_fits_and_does_not_as_the_page_says():
    found = {name: (is_fitting(asked, yes), is_fitting(asked, no)) for name, asked, yes, no in ROWS}

    table = PAGE.partition("| | filter |")[2].partition("\n\n")[0]
    assert len(found) == table.count("\n") - 1
    assert found == dict.fromkeys(found, (True, False))
