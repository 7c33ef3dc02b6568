"""A process that lands events in a lake without Spark and keeps its log short, until it is killed.

It says on standard output what it is about to do and what it has done, so that a test can kill it anywhere.
"""

import sys

from doubledecker.lake import arrow, rows, snapshots
from doubledecker.model.position import Position
from doubledecker.pipeline.lake import files, maintenance, tables, versions
from doubledecker.pipeline.land import landing
from doubledecker.store.journal import JournalEntry

LINE = b'{"topic":"orders","type":"create","t":%d,"id":"id-%d"}'
# An entry for each number, from here on.
BEGAN_MS = 1_794_740_000_000
ROUNDS_MAX = 100_000
# Now and then, so that a checkpoint is under way in a good part of the time.
COMMITS_MIN = 5
EVENTS = 3


def main(root: str) -> None:
    # So that commits are removed as soon as a checkpoint has what they say.
    tables.PROPERTIES["delta.logRetentionDuration"] = "interval 0 days"
    table = landing.table_of(root, "events")
    for _ in range(ROUNDS_MAX):
        seen = versions.of(table, partitions=1)
        first = max(0, snapshots.landed(seen, 1)[0].ms - BEGAN_MS + 1)
        numbers = range(first, first + EVENTS)
        entries = [JournalEntry(f"{BEGAN_MS + number}-0", (("p", LINE % (number, number)),)) for number in numbers]
        batch = arrow.to_batch(rows.layout("events"), entries, partition=0)
        say("landing")
        table.commit(seen, files.write(table, [batch]), snapshots.reaches({0: Position(BEGAN_MS + numbers[-1], 0)}))
        say(f"landed {numbers[-1]}")
        versions.shorten(table, commits_min=COMMITS_MIN)
        say("tended")
        small = versions.of(table).crowded(size_below=10**9, files_min=4)
        if small:
            versions.swap(table, small, list(maintenance._write_together(small, table=table)), is_new=False)
        say("joined")


def say(words: str) -> None:
    sys.stdout.write(words + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main(sys.argv[1])
