"""Migrate a store, slowly, in a process of its own that a test may kill."""

import asyncio
import sys
from functools import partial

from doubledecker.store import migration
from doubledecker.store.partitions import Partitions


async def main(url: str, count: int) -> None:
    migration._PIECE_BATCHES, migration._PAGE, migration._LINE_PIECE, migration._LEASE_S = 1, 10, 5, 0.5
    migrate = partial(migration.run, dead_s=0.1)
    await (await Partitions.connect(url, namespace="rm:", count=count, migrate=migrate)).close()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], int(sys.argv[2])))
