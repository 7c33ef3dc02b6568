"""Events that the lake gives back: the very bytes that the bus accepted."""

import pytest
from msgspec import Raw

from doubledecker.lake import arrow, rows
from doubledecker.model.event import AcceptedEvent, encode
from doubledecker.pipeline.lake import stored_events
from doubledecker.store.journal import JournalEntry

pytestmark = pytest.mark.slow

KEPT = Raw(b'{"source":"/shop","datacontenttype":"image/png","note":"\xc3\xa4","data_base64":true}')
EVENTS = [
    AcceptedEvent("orders", "paid", t=7, id="a"),
    AcceptedEvent("orders", "paid", "https://shop.example/1", 7, Raw(b'{"n":[1]}'), "b", "acme", "k", replay="r"),
    AcceptedEvent("orders", "paid", t=7, data=Raw(b'"AP8="'), id="c", cloudevent=KEPT, replay="r", replay_of="a"),
]


def test_an_event_is_the_same_bytes_again_also_one_that_came_as_a_cloudevent():
    lines = [encode(event) for event in EVENTS]
    entry = JournalEntry("1794740000000-0", (("shop", b"\n".join(lines)),))
    batch = arrow.to_batch(rows.layout("events"), [entry], partition=0)

    assert [encode(event) for event in stored_events.events(batch)] == lines
