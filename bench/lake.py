"""The lake's upkeep: what a round costs as the log grows to a million commits, and the table to 200 000 files.

Each size is measured in a child of its own, so that its memory is its own too (bench/lake_loop.py).
"""

import json

from bench import children
from bench.scale import Scale

_FEW, _MANY_COMMITS, _MANY_FILES = 1_000, 1_000_000, 200_000
# Filling the largest takes a few seconds, delta-rs loads it in as many.
_PATIENCE_S = 300.0


async def measure(scale: Scale) -> dict[str, float]:
    rounds = max(100, scale.jobs // 10)
    small = await _measured(_FEW, _FEW, rounds)
    old = await _measured(_MANY_COMMITS, _FEW, rounds)
    large = await _measured(_FEW, _MANY_FILES, rounds)
    both = await _measured(_MANY_COMMITS, _MANY_FILES, rounds)
    found = {"small": small, "old": old, "large": large, "both": both}
    figures = {f"lake.{name}.{key}": value for name, each in found.items() for key, value in each.items()}
    ratios = {f"lake.{name}.times": found[name]["round_ms"] / small["round_ms"] for name in ("old", "large", "both")}
    return {**figures, **ratios}


async def _measured(commits: int, files: int, rounds: int) -> dict[str, float]:
    words = ("bench.lake_loop", str(commits), str(files), str(rounds))
    async with children.started(*words) as loop:
        figures: dict[str, float] = json.loads(await loop.line(within_s=_PATIENCE_S))
    return figures
