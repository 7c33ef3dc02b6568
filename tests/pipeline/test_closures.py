"""What Spark sends to its tasks holds no secret that they do not need."""

import pytest
from pyspark import cloudpickle

from doubledecker.assembly.settings import Settings
from doubledecker.model.replay import Replay
from doubledecker.model.signing import FormerSecret, SigningKeys
from doubledecker.model.subscriber import Subscriber
from doubledecker.pipeline.bulk.batches import Posting
from doubledecker.pipeline.replay.resend_task import Work
from doubledecker.pipeline.spark_format.publish_task import TaskWork
from doubledecker.pipeline.spark_format.writer import BusWriter, SinkPlan

pytestmark = pytest.mark.slow

SETTINGS = Settings(root_key="the-root-key", spark_conf="spark.hadoop.fs.s3a.secret.key=the-secret")


@pytest.mark.parametrize(
    "sent",
    [
        BusWriter(SinkPlan(SETTINGS, "shop", "w", 0, "", "")),
        TaskWork(SETTINGS, "shop", "query", 0, 0),
        Posting(SETTINGS, Subscriber("shop", "https://example.org/", uuid="x"), "ledger"),
        Work(SETTINGS, "id", Replay("queue", "late", 0, 1, 1)),
    ],
    ids=lambda sent: type(sent).__name__,
)
def test_the_root_key_does_not_travel_in_closures(sent: object):
    packed = cloudpickle.dumps(lambda: sent)

    assert b"redis://127.0.0.1" in packed
    assert b"the-root-key" not in packed
    assert b"the-secret" not in packed


def test_what_a_receiver_is_called_with_does_not_travel_either():
    keys = SigningKeys("whsec_hidden", 1, (FormerSecret("whsec_former", 2),))
    receiver = Subscriber("shop", "https://example.org/", "the-uuid", headers=(("X-Key", "the-value"),), signing=keys)
    sent = Posting(SETTINGS, receiver, "ledger")
    packed = cloudpickle.dumps(lambda: sent)

    assert b"https://example.org/" in packed
    for secret in (b"whsec_", b"the-uuid", b"the-value"):
        assert secret not in packed
    assert cloudpickle.loads(packed)().subscriber == receiver.bare
