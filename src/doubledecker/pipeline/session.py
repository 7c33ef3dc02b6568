"""The Spark session: started with a Java that fits, quiet, and on this machine's loopback unless a cluster is named.

On a cluster our code goes along to the executors, so that they run the same version. A program that spark-submit
started has its Java, its master and, by `--py-files`, our code already.

Of Spark's own settings, ours are the weakest: `SessionPlan.more`, which users give, wins over them, and spark-submit
over both.
"""

import contextlib
import logging
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path

from py4j.protocol import Py4JError
from pyspark import SparkConf, SparkContext
from pyspark.errors import PySparkException
from pyspark.logger import PySparkLogger
from pyspark.sql import SparkSession

from doubledecker.assembly.settings import Settings
from doubledecker.assembly.spark_conf import NEEDED
from doubledecker.errors import SparkUnfit
from doubledecker.pipeline import java, package

_LOCAL = "local"
# How a program knows that spark-submit started it.
_SUBMITTED = "PYSPARK_GATEWAY_PORT"
_NAME = "spark.app.name"
_JAVA_OPTIONS = "spark.driver.extraJavaOptions"
# PySpark logs what it then raises as well; the code that catches it reports it, once.
_LOGGED_TWICE = ("SQLQueryContextLogger", "DataFrameQueryContextLogger")


@dataclass(frozen=True)
class SessionPlan:
    """Where Spark runs; `more` overrides or adds any of Spark's own settings."""

    master: str = "local[*]"
    name: str = "doubledecker"
    driver_memory: str = "1g"
    more: dict[str, str] = field(default_factory=dict)

    @classmethod
    def by(cls, settings: Settings, name: str = "doubledecker") -> "SessionPlan":
        """By the settings."""
        return cls(settings.spark_master, name, more=settings.spark_options)


def open_session(plan: SessionPlan) -> SparkSession:
    """Start Spark in this process, or take the session that it already has."""
    for name in _LOGGED_TWICE:
        PySparkLogger.getLogger(name).setLevel(logging.CRITICAL)
    # Executors must run a Python that has what our package needs.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    builder = SparkSession.Builder()
    is_submitted = _SUBMITTED in os.environ
    if not is_submitted:
        os.environ["JAVA_HOME"] = str(java.find_home(os.environ))
        builder = builder.master(plan.master)
    for name, value in conf_of(plan, _submitted_conf() if is_submitted else {}).items():
        builder = builder.config(name, value)
    try:
        spark = builder.getOrCreate()
    except (PySparkException, RuntimeError) as error:
        home = os.environ.get("JAVA_HOME")
        raise SparkUnfit(f"Spark did not start on {plan.master!r} with the Java in {home}: {error}") from error
    if not is_submitted and not plan.master.startswith(_LOCAL):
        _send_along(spark)
    return spark


def conf_of(plan: SessionPlan, submitted: Mapping[str, str]) -> dict[str, str]:
    """The settings of Spark that this process makes, given those that spark-submit made, if it started us."""
    own = {} if submitted else _own_java(plan)
    conf = {_NAME: plan.name, **_defaults(), **own, **plan.more}
    if _JAVA_OPTIONS in own and _JAVA_OPTIONS in plan.more:
        conf[_JAVA_OPTIONS] = f"{own[_JAVA_OPTIONS]} {plan.more[_JAVA_OPTIONS]}"
    return {name: value for name, value in conf.items() if name not in submitted} | NEEDED


def activate(spark: SparkSession) -> None:
    """Make it this thread's session; in a thread that has none, Spark does not find formats written in Python."""
    jvm = spark._jvm  # noqa: SLF001 - PySpark does so only inside other calls
    assert jvm is not None
    jvm.org.apache.spark.sql.classic.SparkSession.setActiveSession(spark._jsparkSession)  # noqa: SLF001 - the same


def cores(spark: SparkSession) -> int:
    """How many tasks run side by side, over all executors."""
    return max(1, spark.sparkContext.defaultParallelism)


def is_alive(spark: SparkSession) -> bool:
    """Whether the JVM answers and its Spark context is not stopped; also for a JVM that spark-submit started."""
    context = spark.sparkContext
    process = getattr(context._gateway, "proc", None)  # noqa: SLF001 - Spark has no other way
    if process is not None and process.poll() is not None:
        return False
    try:
        return not context._jsc.sc().isStopped()  # noqa: SLF001 - the same
    except (Py4JError, OSError, AttributeError):
        # A JVM that is gone refuses connections; a context that was stopped here has no Java part any more.
        return False


def close(spark: SparkSession) -> None:
    """Stop Spark at once, also in the middle of a job, and quietly."""
    # Spark logs every task that does not survive this as an error, with traces; here it is on purpose.
    with contextlib.suppress(Py4JError, OSError, AttributeError):
        spark.sparkContext.setLogLevel("OFF")
    spark.stop()


def _send_along(spark: SparkSession) -> None:
    # Executors fetch it when they begin, so it must stay for as long as Spark does: in Spark's own folder.
    folder = Path(str(spark.sparkContext._temp_dir))  # noqa: SLF001 - PySpark has no other name for it
    spark.sparkContext.addPyFile(str(package.write_zip(folder)))


def _submitted_conf() -> dict[str, str]:
    """What spark-submit was given, by `--conf`, by its own options or in `spark-defaults.conf`."""
    SparkContext._ensure_initialized()  # noqa: SLF001 - connects to the JVM that spark-submit started
    printed = dict(SparkConf().getAll())
    # A program that was given no name has that of its file, which nobody chose.
    if printed.get(_NAME) == Path(sys.argv[0]).name:
        del printed[_NAME]
    return printed


def _defaults() -> dict[str, str]:
    return {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.execution.arrow.pyspark.enabled": "true",
        "spark.sql.execution.pyspark.udf.simplifiedTraceback.enabled": "true",
    }


def _own_java(plan: SessionPlan) -> dict[str, str]:
    """For a JVM that this process starts."""
    quiet = Path(str(resources.files("doubledecker.pipeline").joinpath("log4j2.properties")))
    conf = {
        "spark.driver.memory": plan.driver_memory,
        _JAVA_OPTIONS: f"-Dlog4j2.configurationFile={quiet.as_uri()}",
    }
    if plan.master.startswith(_LOCAL):
        conf |= {
            "spark.driver.host": "127.0.0.1",
            "spark.driver.bindAddress": "127.0.0.1",
            # One a core: the default of 200 is for a cluster, and costs seconds here.
            "spark.sql.shuffle.partitions": str(os.cpu_count() or 2),
        }
    return conf
