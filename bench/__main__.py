"""`python -m bench`: measure, print the tables and, after a full run, write docs/benchmarks.md.

With `--against COMMIT` the product's parts of that commit and of this tree are measured in turns, and compared.
"""

import argparse
import asyncio
import sys
import time
from collections import defaultdict
from pathlib import Path

from bench import (
    against,
    bulk,
    comparison,
    drain,
    extras,
    floors,
    ingest,
    lake,
    latency,
    machine,
    memory,
    neighbours,
    peers,
    pipeline,
    processes,
    queues,
    report,
    simulation,
    stages,
    subscribers,
)
from bench.against import NotComparable, PartFailed
from bench.comparison import Comparison
from bench.scale import COMPARING, FULL, QUICK, Scale

_PAGE = Path(__file__).parent.parent / "docs" / "benchmarks.md"
# In this order, so that a part and its floor are measured close to one another.
_PARTS = {
    "floors": floors.measure,
    "ingest": ingest.measure,
    "drain": drain.measure,
    "extras": extras.measure,
    "subscribers": subscribers.measure,
    "processes": processes.measure,
    "bulk": bulk.measure,
    "pipeline": pipeline.measure,
    "lake": lake.measure,
    "latency": latency.measure,
    "neighbours": neighbours.measure,
    "memory": memory.measure,
    "queues": queues.measure,
    "peers": peers.measure,
    "stages": stages.measure,
    "simulation": simulation.measure,
}

# What takes longest comes last, and gets fewer repetitions when time is short. Peers and simulations compare the
# product with others, not with itself.
_SLOWEST = ["bulk", "lake", "pipeline"]
_COMPARED = [name for name in _PARTS if name not in {*_SLOWEST, "peers", "simulation"}] + _SLOWEST


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="one short repetition; writes nothing")
    parser.add_argument("--only", action="append", choices=_PARTS, help="measure this part alone; writes nothing")
    parser.add_argument("--against", metavar="COMMIT", help="measure this commit too, in turns, and compare")
    asked = parser.parse_args()
    is_kept = not (asked.quick or asked.only)
    if asked.against is None:
        asyncio.run(_run(QUICK if asked.quick else FULL, asked.only or list(_PARTS), is_kept=is_kept))
        return
    try:
        scale = QUICK if asked.quick else COMPARING
        asyncio.run(_compare(asked.against, scale, asked.only or _COMPARED, is_kept=is_kept))
    except (NotComparable, PartFailed) as error:
        sys.exit(f"python -m bench: {error}")


async def _run(scale: Scale, names: list[str], *, is_kept: bool) -> None:
    source = machine.source_digest()
    facts = await machine.facts()
    samples = await _measure(scale, names)
    print(report.tables(samples))
    if _is_writable(source, is_kept=is_kept):
        section = comparison.kept(_PAGE.read_text()) if _PAGE.exists() else ""
        _write(comparison.replaced(report.page(samples, facts, repetitions=scale.repetitions), section))


async def _compare(reference: str, scale: Scale, names: list[str], *, is_kept: bool) -> None:
    before, after = against.checked_out(reference), against.this_tree()
    source = machine.source_digest()
    known = await machine.facts()
    found = await against.compare(before, after, names, scale)
    facts = {name: known[name] for name in ("date", "processor", "load before the run", "Python", "Valkey")}
    facts |= {"before": before.name, "after": f"{after.name}, digest {source}"}
    if found.by_its_own:
        facts["before, by its own benchmark"] = ", ".join(found.by_its_own)
    if found.failed:
        facts["left out of a repetition, having failed"] = ", ".join(found.failed)
    compared = Comparison(found.before, found.after, found.shared)
    section = compared.section(before.name, facts, repetitions=scale.repetitions)
    print(section)
    if _is_writable(source, is_kept=is_kept):
        _write(comparison.replaced(_PAGE.read_text(), section))


def _is_writable(source: str, *, is_kept: bool) -> bool:
    """Whether the figures are of one program, and of a whole run."""
    is_same = machine.source_digest() == source
    if not is_same:
        # Each repetition starts the processes anew, so its figures may be of another program than the last one's.
        _say("the source changed during the run: its figures belong to no version")
    if is_kept and not is_same:
        sys.exit("nothing was written")
    return is_kept


def _write(text: str) -> None:
    _PAGE.write_text(text)
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
