"""`python -m bench`: measure, print the tables and, after a full run, write docs/benchmarks.md."""

import argparse
import asyncio
import sys
import time
from collections import defaultdict
from pathlib import Path

from bench import (
    bulk,
    drain,
    floors,
    ingest,
    lake,
    latency,
    machine,
    memory,
    peers,
    pipeline,
    queues,
    report,
    simulation,
    stages,
)
from bench.scale import FULL, QUICK, Scale

_PAGE = Path(__file__).parent.parent / "docs" / "benchmarks.md"
# In this order, so that a part and its floor are measured close to one another.
_PARTS = {
    "floors": floors.measure,
    "ingest": ingest.measure,
    "drain": drain.measure,
    "bulk": bulk.measure,
    "pipeline": pipeline.measure,
    "lake": lake.measure,
    "latency": latency.measure,
    "memory": memory.measure,
    "queues": queues.measure,
    "peers": peers.measure,
    "stages": stages.measure,
    "simulation": simulation.measure,
}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="one short repetition; writes nothing")
    parser.add_argument("--only", action="append", choices=_PARTS, help="measure this part alone; writes nothing")
    asked = parser.parse_args()
    asyncio.run(
        _run(QUICK if asked.quick else FULL, asked.only or list(_PARTS), is_kept=not (asked.quick or asked.only))
    )


async def _run(scale: Scale, names: list[str], *, is_kept: bool) -> None:
    source = machine.source_digest()
    facts = await machine.facts()
    samples = await _measure(scale, names)
    print(report.tables(samples))
    is_same = machine.source_digest() == source
    if not is_same:
        # Each repetition starts the processes anew, so its figures may be of another program than the last one's.
        _say("the source changed during the run: its figures belong to no version")
    if is_kept and not is_same:
        sys.exit("nothing was written")
    if is_kept:
        _PAGE.write_text(report.page(samples, facts, repetitions=scale.repetitions))
        _say(f"wrote {_PAGE.parent.name}/{_PAGE.name}")


async def _measure(scale: Scale, names: list[str]) -> dict[str, list[float]]:
    samples: dict[str, list[float]] = defaultdict(list)
    for repetition in range(1, scale.repetitions + 1):
        for name in names:
            started_s = time.monotonic()
            for key, value in (await _PARTS[name](scale)).items():
                samples[key].append(value)
            _say(f"{repetition}/{scale.repetitions} {name}: {time.monotonic() - started_s:.0f} s")
    return samples


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
