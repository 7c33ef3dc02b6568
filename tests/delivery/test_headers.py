"""What an attempt sends beside the body: credentials, own headers, a trace, and signatures that others verify."""

import pytest
import standardwebhooks
import svix

from doubledecker import clock
from doubledecker.delivery import headers
from doubledecker.delivery.attempt import Dialer, DialLimits
from doubledecker.delivery.deliver import DeliveryLoad
from doubledecker.delivery.formats import FormattedRequest
from doubledecker.model import signing
from doubledecker.model.dial_guard import DialGuard
from doubledecker.model.subscriber import Subscriber
from receiver import Batch, Receiver

BODY = b'[{"topic":"orders","type":"noop","id":"1","data":"\xc3\xbc"}]'
TRACE, OTHER = f"00-{'a' * 32}-{'b' * 16}-01", f"00-{'c' * 32}-{'d' * 16}-01"


async def sent(receiver: Subscriber, mail: Receiver, body: bytes = BODY, message: str = "msg-1") -> Batch:
    """What arrives of one attempt."""
    dialer = Dialer(DialLimits(guard=DialGuard(is_private_allowed=True)))
    try:
        outcome = await dialer.attempt(receiver, FormattedRequest(body), message=message)
    finally:
        await dialer.close()
    assert outcome.is_delivered, outcome
    return mail.batches[-1]


async def test_one_that_never_asked_for_a_secret_gets_the_very_headers_of_the_original():
    async with Receiver() as mail:
        batch = await sent(Subscriber("t", mail.url, "u"), mail)

    assert list(batch.headers) == [
        *("Host", "User-Agent", "Accept", "Accept-Encoding", "Authorization", "Content-Type", "Content-Length")
    ]
    assert (batch.uuid, batch.content_type, batch.body) == ("u", "application/json", BODY)


@pytest.mark.parametrize("size", [10, 1_000_000], ids=["short", "digested beside the loop"])
async def test_libraries_of_others_verify_what_each_secret_signed(size: int):
    keys = signing.rotate(signing.make(0), overlap_s=60, now_ms=clock.now_ms())
    body = b'[{"id":"%b"}]' % (b"x" * size)
    async with Receiver() as mail:
        batch = await sent(Subscriber("t", mail.url, "u", signing=keys), mail, body)

    assert batch.headers["webhook-id"] == "msg-1"
    assert batch.headers["webhook-signature"].count("v1,") == 2
    for secret in (keys.secret, keys.former[0].secret):
        # Each raises unless it finds its own.
        standardwebhooks.Webhook(secret).verify(batch.body, batch.headers)
        svix.Webhook(secret).verify(batch.body, batch.headers)
    with pytest.raises(standardwebhooks.WebhookVerificationError):
        standardwebhooks.Webhook(signing.make(0).secret).verify(batch.body, batch.headers)
    with pytest.raises(svix.WebhookVerificationError):
        svix.Webhook(keys.secret).verify(batch.body + b" ", batch.headers)
    assert batch.uuid == "u"


async def test_own_headers_go_along_after_ours():
    async with Receiver() as mail:
        wanted = Subscriber("t", mail.url, "u", headers=(("X-Key", "s3cret"), ("Cookie", "a=b")))
        batch = await sent(wanted, mail)

    assert (batch.headers["X-Key"], batch.headers["Cookie"]) == ("s3cret", "a=b")
    assert (batch.uuid, batch.content_type) == ("u", "application/json")


def a_load(*parts: bytes, batch: str = "b") -> DeliveryLoad:
    return DeliveryLoad(Subscriber("t", "https://a.example/", "u"), batch, parts, 1, 0, 0, 0, 0)


def traced(trace: str | None, data: str = "{}") -> bytes:
    more = f',"traceparent":"{trace}"' if trace else ""
    return f'{{"topic":"t","type":"x","data":{data}{more}}}'.encode()


@pytest.mark.parametrize(
    ("parts", "expected"),
    [
        ([traced(TRACE)], TRACE),
        ([traced(None)], ""),
        ([traced(TRACE), traced(TRACE)], TRACE),
        ([traced(TRACE) + b"\n" + traced(TRACE), traced(TRACE)], TRACE),
        ([traced(TRACE) + b"\n" + traced(OTHER)], ""),
        ([traced(TRACE), traced(None)], ""),
        ([traced(None) + b"\n" + traced(TRACE)], ""),
        # In the data it is the publisher's own affair.
        ([traced(None, f'{{"traceparent":"{TRACE}"}}')], ""),
        ([traced(TRACE, f'{{"traceparent":"{OTHER}"}}')], TRACE),
        ([traced("not-one")], ""),
    ],
)
def test_a_trace_is_a_batchs_when_it_is_that_of_all_its_events(parts: list[bytes], expected: str):
    load = a_load(*parts)

    assert headers.traced({}, load.parts[0], load.body).get("traceparent", "") == expected


def test_parts_of_a_batch_are_messages_of_their_own_and_no_id_has_a_dot():
    ids = [a_load(b"{}", batch=name).message_id for name in ("b", "b.0", "b.01", "b.1")]

    assert ids == ["b", "b-0", "b-01", "b-1"]
