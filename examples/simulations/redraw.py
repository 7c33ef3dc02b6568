"""Run the rehearsals that docs/simulations.md tells of, and write their numbers and plots there: `make plots`.

The page has a comment for each, `<!-- simulate FILE … --plot NAME.svg -->`; what stands between it and `<!-- end -->`
is replaced by what the command finds.
"""

import json
import re
import shlex
import subprocess
import sys
from pathlib import Path

from doubledecker.stages import Estimate

HERE = Path(__file__).parent
PAGE = HERE.parents[1] / "docs" / "simulations.md"
PLOTS = PAGE.parent / "simulations"
_BLOCK = re.compile(r"<!-- simulate (.+?) -->\n.*?<!-- end -->", re.DOTALL)
_SHOWN = ("success", "latency_p50", "latency_p95", "latency_p99", "calls_per_event")
_SHOWN_OF_GRID = ("success", "latency_p95", "calls_per_event")


def redrawn(page: str, plots: Path) -> str:
    """The page with what its rehearsals find now; their plots are written into the folder."""
    return _BLOCK.sub(lambda block: f"<!-- simulate {block[1]} -->\n{_table(block[1], plots)}\n<!-- end -->", page)


def _table(arguments: str, plots: Path) -> str:
    words = [str(plots / word) if word.endswith(".svg") else word for word in shlex.split(arguments)]
    command = [sys.executable, "-m", "doubledecker", "simulate", *words, "--json"]
    answer = subprocess.run(command, cwd=HERE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, check=True)  # noqa: S603 - our own
    found = json.loads(answer.stdout)
    return _of_grid(found["grid"]) if "grid" in found else _of_chains(found["chains"])


def _of_chains(chains: dict[str, dict[str, dict[str, dict[str, float]]]]) -> str:
    rows = [[_words(name), *(_estimate(one["callers"][name]) for one in chains.values())] for name in _SHOWN]
    return _markdown(["", *chains], rows)


def _of_grid(grid: list[dict[str, dict[str, object]]]) -> str:
    rows = [
        [*map(str, point["settings"].values()), *(_estimate(point["callers"][name]) for name in _SHOWN_OF_GRID)]
        for point in grid
    ]
    return _markdown([*grid[0]["settings"], *map(_words, _SHOWN_OF_GRID)], rows)


def _markdown(head: list[str], rows: list[list[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _words(name: str) -> str:
    return name.replace("_", " ") + (", s" if name.startswith("latency") else "")


def _estimate(found: object) -> str:
    assert isinstance(found, dict)
    return str(Estimate(found["mean"], found["margin"]))


if __name__ == "__main__":
    PLOTS.mkdir(exist_ok=True)
    PAGE.write_text(redrawn(PAGE.read_text(), PLOTS))
