"""The layout of the data: its format, and over how many partitions it is spread.

It is a hash outside all partitions, `layout`, with the fields

    format      how keys are named and what they hold; 0.1.0 wrote none, which is format 1
    count       how many partitions there are
    partitions  the same in format 1; from format 2 on it is 0, so that a process of 0.1.0, which compares it with its
                settings, refuses to start on data that it would misread

A process refuses a newer format than its own. Data of an older one is migrated first (store/migration.py). What is
migrated says so in each partition, too: a server that crashed may have lost its last second, and others have not.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from redis.driver_info import DriverInfo

from doubledecker.errors import ServerUnfit
from doubledecker.store.scripts import Packable

FORMAT = 2
# What stands in the place of a partition's version of the registry, where a process of format 1 expects a number.
UNDER_WAY, DONE = f"migrating to format {FORMAT}", f"format {FORMAT}"
# How our connections are called in the server's list of clients: those of older versions are without the format.
DRIVER = DriverInfo().add_upstream_driver("doubledecker-format", str(FORMAT))


@dataclass(frozen=True)
class DataLayout:
    """How data is laid out; some of what was migrated may be in the older format again, after a crash."""

    format: int
    count: int
    was_migrated: bool

    def check(self, count: int) -> None:
        """Raise ServerUnfit for data that a process with these settings cannot use, nor migrate."""
        if self.format > FORMAT:
            raise ServerUnfit(
                f"this data has format {self.format}, which a newer version wrote, and this one knows {FORMAT} at "
                "most; start the newer version, or restore a copy of the data from before it"
            )
        if self.count != count:
            # Events would be out of reach.
            raise ServerUnfit(
                f"this data has {self.count} partitions, the settings say {count}; "
                "see docs/operations.md on how to change the number"
            )


def read(fields: Mapping[str, str], versions: Iterable[bytes | None]) -> DataLayout:
    """The layout by these fields, and by the version in each partition: one that never was of format 1 has none."""
    partitions = int(fields.get("partitions", 0))
    is_migrated = all(version is None or version == DONE.encode() for version in versions)
    format_ = int(fields.get("format", 1))
    count = int(fields.get("count", partitions))
    return DataLayout(format_ if is_migrated or format_ != FORMAT else 1, count, was_migrated=format_ == FORMAT)


def closing(count: int) -> list[Packable]:
    """The fields that keep processes of 0.1.0 from starting."""
    return ["count", count, "partitions", 0]


def fresh(count: int) -> list[Packable]:
    """The fields of data in our format."""
    return [*closing(count), "format", FORMAT]
