"""CloudEvents through the bus and back, whatever they hold: the same attributes and data, no error but a refusal."""

import base64
import contextlib
import json

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from doubledecker.errors import Refused
from doubledecker.model import cloud_event, moment
from doubledecker.model.event import AcceptedEvent, EventLimits, encode

NAMES = st.from_regex(r"[A-Za-z0-9_.-]{1,64}", fullmatch=True).filter(lambda name: name not in {".", ".."})
TEXT = st.text(st.characters(codec="utf-8", exclude_categories=("Cc", "Cs")), min_size=1, max_size=40)
MICROSECONDS = st.integers(0, 253_402_300_799_999_999)
CONTENT = st.one_of(
    st.fixed_dictionaries({"data": st.recursive(st.integers(-9, 9) | TEXT, st.lists, max_leaves=5)}),
    st.fixed_dictionaries({"data": TEXT, "datacontenttype": st.just("text/plain")}),
    st.fixed_dictionaries(
        {
            "data_base64": st.binary(min_size=1).map(lambda body: base64.b64encode(body).decode()),
            "datacontenttype": st.just("image/png"),
        }
    ),
    st.just({}),
)
EVENTS = st.builds(
    lambda required, more, own, content: {**own, **required, **more, **content},
    st.fixed_dictionaries(
        {
            "specversion": st.just("1.0"),
            "id": st.from_regex(r"[\x21-\x7e]{1,128}", fullmatch=True),
            "source": st.from_regex(r"/[a-z0-9/%]{0,20}", fullmatch=True).filter(lambda text: "%" not in text),
            "type": NAMES,
            "topic": st.just("orders"),
            "time": MICROSECONDS.map(lambda at: f"{moment.from_ms(at // 1000):%Y-%m-%dT%H:%M:%S}.{at % 1_000_000:06}Z"),
        }
    ),
    st.fixed_dictionaries(
        {}, optional={"subject": TEXT, "partitionkey": NAMES, "tenant": NAMES.filter(lambda name: name != "default")}
    ),
    st.dictionaries(st.from_regex(r"ext[a-z0-9]{1,9}", fullmatch=True), TEXT, max_size=3),
    CONTENT,
)


def stored(offered: cloud_event.OfferedCloudEvent) -> AcceptedEvent:
    """As the bus keeps it and reads it again."""
    event = cloud_event.accept(offered, now_ms=7, limits=EventLimits())
    return msgspec.json.decode(encode(event), type=AcceptedEvent)


@given(EVENTS)
def test_a_cloudevent_comes_back_whole_in_json_and_through_headers(event: dict[str, object]):
    kept = stored(cloud_event.parse_structured(json.dumps(event).encode(), topic=None))
    in_json = json.loads(cloud_event.to_json(kept))
    binary = cloud_event.to_binary(kept)
    headers = [(name.encode(), value.encode("ascii")) for name, value in binary.headers.items()]
    again = stored(cloud_event.parse_binary(headers, binary.content_type, binary.body, topic=None))

    whole = {"datacontenttype": "application/json", **event} if "data" in event else event
    assert in_json == whole
    assert json.loads(cloud_event.to_json(again)) == whole


@given(
    st.dictionaries(
        st.sampled_from(["specversion", "id", "source", "type", "time", "tenant", "data_base64", "a", "B"]),
        st.one_of(st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False), st.text(), st.lists(st.none())),
    ),
    st.binary(),
)
def test_whatever_is_sent_is_taken_or_refused(members: dict[str, object], body: bytes):
    plain = {"specversion": "1.0", "id": "a", "source": "/a", "type": "paid", "topic": "orders"}
    with contextlib.suppress(Refused):
        stored(cloud_event.parse_structured(json.dumps({**plain, **members}).encode(), topic=None))
    headers = [(b"ce-" + name.encode(), value.encode()) for name, value in plain.items()]
    for name in (b"ce-subject", b"ce-time", b"ce-x"):
        with contextlib.suppress(Refused):
            stored(cloud_event.parse_binary([*headers, (name, body)], "text/plain", body, topic=None))
