"""How Spark finds the format `doubledecker` by itself: it looks into every package whose name begins like this one's.

So `spark.read.format("doubledecker")` needs no import and no registration, wherever Doubledecker is installed.
"""

import contextlib

# Who has Spark, but not all of `doubledecker[spark]`, keeps their other formats: an error here would hide them too.
with contextlib.suppress(ImportError):
    from doubledecker.pipeline.spark_format.connector import BusSource as DefaultSource

__all__ = ["DefaultSource"]
