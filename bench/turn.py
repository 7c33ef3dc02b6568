"""One measurement of one part, printed as JSON; run as a child by the interpreter of the tree that it measures.

It is run by its path, and takes `bench` from PYTHONPATH: this tree's, or the other's (bench/against.py).
"""

import asyncio
import dataclasses
import importlib
import json
import sys


def main() -> None:
    part, bounds = importlib.import_module(f"bench.{sys.argv[1]}"), json.loads(sys.argv[2])
    scale = importlib.import_module("bench.scale").Scale
    known = {field.name for field in dataclasses.fields(scale)}
    figures = asyncio.run(part.measure(scale(**{name: bounds[name] for name in known & {*bounds}})))
    print(json.dumps(figures), flush=True)


if __name__ == "__main__":
    main()
