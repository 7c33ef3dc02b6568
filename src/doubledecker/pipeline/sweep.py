"""Rehearsals on Spark: the runs of `doubledecker simulate --spark`, spread over the executors.

A run carries its file's text and its numbers, and a replication's chance comes from those alone: what comes back is, to
the last digit, what this machine's own cores would have given.
"""

import os
from collections.abc import Iterable, Sequence

from doubledecker.assembly import settings as reading
from doubledecker.pipeline import session
from doubledecker.pipeline.session import SessionPlan
from doubledecker.stages.errors import ChainInvalid, StagesError
from doubledecker.stages.simulation import runs
from doubledecker.stages.simulation.report import Replication
from doubledecker.stages.simulation.runs import Run


def run(wanted: Sequence[Run]) -> Iterable[Replication]:
    """A runner: all runs as tasks of one job, on `DOUBLEDECKER_SPARK_MASTER`; Spark is stopped afterwards."""
    spark = session.open_session(SessionPlan.by(reading.read(os.environ), name="doubledecker simulate"))
    try:
        # A task a run: they take long enough, and differ in length, so that small tasks keep all executors busy.
        found = spark.sparkContext.parallelize(wanted, len(wanted)).map(_carry_out).collect()
    finally:
        session.close(spark)
    for one in found:
        if isinstance(one, str):
            raise ChainInvalid(one)
        yield one


def _carry_out(wanted: Run) -> Replication | str:
    """On an executor; an error goes back as its words, since Spark would wrap it in a trace of its own."""
    try:
        return runs.carry_out(wanted)
    except StagesError as error:
        return str(error)
