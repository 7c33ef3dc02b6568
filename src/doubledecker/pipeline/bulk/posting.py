"""Posting: a DataFrame of events goes to one receiver, in order by key, from Spark's tasks.

Rows are divided into shards (model/position.py); a shard is whole in one task, in the order of acceptance. How far
each has come is in a ledger in Redis, written with every batch. So a job may be cut short anywhere, and repeated: what
is in the ledger is passed over, and at most the batches that were on their way are posted twice.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as columns

from doubledecker.lake import arrow
from doubledecker.model.position import SHARDS, Checkpoint, Position, Shard
from doubledecker.pipeline.bulk import batches, post_task
from doubledecker.pipeline.bulk.batches import Posting
from doubledecker.pipeline.bulk.post_task import SHARD_REPORT
from doubledecker.pipeline.lake import frames


@dataclass(frozen=True)
class Posted:
    """What one job did: events delivered, where each shard that had any stands, and why which stopped early."""

    events: int
    stood: Mapping[Shard, Checkpoint]
    stopped: Mapping[Shard, str]


def post(frame: DataFrame, posting: Posting, *, tasks: int) -> Posted:
    """Post the rows of a DataFrame with the columns of the lake's events, as far as one round comes.

    Raises nothing for what the receiver does. Repeat it while shards stopped; `remaining` spares what is done.
    """
    shaped = (
        frame.select(*batches.COLUMNS, _shard().alias("shard"))
        .repartition(tasks, "partition", "shard")
        .sortWithinPartitions(*frames.order())
    )
    # What comes back is a line about each shard; the events themselves never leave their task.
    reports = shaped.mapInArrow(partial(post_task.post_rows, posting=posting), arrow.ddl(SHARD_REPORT)).collect()
    named = [(Shard(each.partition, each.shard), each) for each in reports]
    return Posted(
        events=sum(each.events for _, each in named),
        stood={shard: Checkpoint.read(each.checkpoint) for shard, each in named},
        stopped={shard: each.why for shard, each in named if each.why},
    )


def remaining(
    frame: DataFrame, checkpoints: Mapping[Shard, Checkpoint], upto: Mapping[Shard, Position] | None = None
) -> DataFrame:
    """The rows of these shards that lie beyond where each stands, and up to a place if one is given."""
    index = columns.col("partition") * SHARDS + _shard()
    kept = frame.where(index.isin([_index(shard) for shard in checkpoints]))
    kept = kept.where(_place() > _at(index, {shard: checkpoint.place for shard, checkpoint in checkpoints.items()}))
    return kept if upto is None else kept.where(_place() <= _at(index, upto))


def beginning(frame: DataFrame, topic: str, places: Sequence[Position]) -> DataFrame:
    """Without the rows of a topic up to where it begins in each partition."""
    for partition, place in enumerate(places):
        is_before = (
            (columns.col("topic") == topic) & (columns.col("partition") == partition) & (_place() <= _struct(place))
        )
        frame = frame.where(~is_before)
    return frame


def _shard() -> Column:
    """The number of a row's shard; as it is kept in ledgers, it must be the same for ever."""
    return columns.pmod(columns.crc32(columns.coalesce("key", "entry")), columns.lit(SHARDS)).cast("int")


def _place() -> Column:
    """A row's place, as one value that can be compared."""
    return columns.struct(columns.unix_millis("at"), frames.number(), (columns.col("line") + 1).cast("long"))


def _struct(place: Position) -> Column:
    return columns.struct(*(columns.lit(number).cast("long") for number in (place.ms, place.seq, place.lines)))


def _at(index: Column, places: Mapping[Shard, Position]) -> Column:
    pairs = [word for shard, place in places.items() for word in (columns.lit(_index(shard)), _struct(place))]
    return columns.element_at(columns.create_map(*pairs), index)


def _index(shard: Shard) -> int:
    return shard.partition * SHARDS + shard.number
