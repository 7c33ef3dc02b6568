"""Another commit of this repository, checked out and installed beside this tree, and both measured in turns.

A part is measured in a child by the interpreter of the tree that it measures, so that the product and the libraries it
uses are that tree's own, Valkey's settings included. The benchmark's code is this tree's for both. Where it does not
fit the older product, whose insides it may know by other names, the older tree's own benchmark is taken for that part;
where that does not measure the part either, there is nothing to compare with.
"""

import asyncio
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from bench.scale import Scale
from doubledecker.store import die_with_parent

ROOT = Path(__file__).parent.parent
_TURN = Path(__file__).with_name("turn.py")
_TURN_S_MAX = 900.0
_ERROR = re.compile(r"[\w.]*(Error|Exception)\b")
_MISFIT = re.compile(r"(ImportError|ModuleNotFoundError|AttributeError|TypeError)\b")
# What runs by itself, so that it is measured once for both trees.
_SHARED = frozenset({"floors", "peers"})


@dataclass(frozen=True)
class Tree:
    """A version of the product: what to call it, its files, and the interpreter that it is installed in."""

    name: str
    root: Path
    python: str


@dataclass
class Compared:
    """The figures of both trees, repetition by repetition, and of what was measured once for both."""

    before: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    after: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    shared: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    # Whose benchmark measures a part of the older tree; None is nobody's.
    benches: dict[str, Path | None] = field(default_factory=dict)
    # Parts that failed in a repetition, which is left out for both trees.
    failed: list[str] = field(default_factory=list)

    @property
    def by_its_own(self) -> list[str]:
        """Parts that the older tree's own benchmark measured there."""
        return [name for name, bench in self.benches.items() if bench not in {None, ROOT}]


class NotComparable(Exception):
    """There is no such commit, or it cannot be installed."""


class PartFailed(Exception):
    """A part could not be measured; says why, by what it wrote to stderr."""

    def __init__(self, written: str) -> None:
        lines = [line.strip() for line in written.splitlines() if line.strip()]
        # That a child ended says less than the error that ended it, which is above.
        telling = [line for line in lines if _ERROR.match(line)]
        super().__init__((telling or lines or ["it wrote nothing"])[-1])
        # The benchmark names what this product does not have: another try would fail too.
        self.is_misfit = any(_MISFIT.match(line) for line in lines)


def this_tree() -> Tree:
    return Tree(_described(), ROOT, sys.executable)


def checked_out(reference: str) -> Tree:
    """The tree of a commit, installed from its own lock files; one that was installed before is used again."""
    commit = _git("rev-parse", "--verify", "--quiet", "--end-of-options", f"{reference}^{{commit}}")
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "doubledecker-bench" / commit[:12]
    ready = cache / "ready"
    if not ready.exists():
        shutil.rmtree(cache, ignore_errors=True)
        _extract(commit, cache / "tree")
        _install(cache / "tree", cache / "environment")
        ready.touch()
    version = _version(cache / "tree")
    return Tree(f"{commit[:7]} ({version})", cache / "tree", str(cache / "environment" / "bin" / "python"))


async def compare(before: Tree, after: Tree, names: Sequence[str], scale: Scale) -> Compared:
    """Measure every part of both trees, in turns; who begins changes with every repetition."""
    found, began_s = Compared(), time.monotonic()
    took_s: dict[str, float] = {}
    for repetition in range(scale.repetitions):
        for name in names:
            turn_s = time.monotonic()
            if not scale.is_time_for(elapsed_s=turn_s - began_s, last_s=took_s.get(name)):
                _say(f"{repetition + 1}/{scale.repetitions} {name}: left out, the time is short")
                continue
            if name in _SHARED:
                _add(found.shared, await _figures(after, name, scale))
            else:
                await _pair(found, (before, after), name, scale, is_swapped=repetition % 2 == 1)
            took_s[name] = time.monotonic() - turn_s
            _say(f"{repetition + 1}/{scale.repetitions} {name}: {took_s[name]:.0f} s")
    return found


async def _pair(found: Compared, trees: tuple[Tree, Tree], name: str, scale: Scale, *, is_swapped: bool) -> None:
    before, after = trees
    try:
        if is_swapped:
            new = await _figures(after, name, scale)
            old = await _former(found, before, name, scale)
        else:
            old = await _former(found, before, name, scale)
            new = await _figures(after, name, scale)
    except PartFailed as error:
        # Of both, so that the figures of a repetition stay beside one another; the other parts are worth having.
        _say(f"{name} is left out of this repetition: {error}")
        found.failed.append(name)
        return
    _add(found.after, new)
    _add(found.before, old)


async def _former(found: Compared, before: Tree, name: str, scale: Scale) -> dict[str, float]:
    """The older tree's figures: by this tree's benchmark, else by its own, else none; the first time decides."""
    if name in found.benches:
        bench = found.benches[name]
        return await _figures(before, name, scale, bench=bench) if bench else {}
    for bench in (ROOT, before.root):
        try:
            figures = await _figures(before, name, scale, bench=bench)
        except PartFailed as error:
            whose = "this benchmark" if bench == ROOT else "its own"
            _say(f"{name} of {before.name} cannot be measured by {whose}: {error}")
        else:
            found.benches[name] = bench
            return figures
    found.benches[name] = None
    return {}


async def _figures(tree: Tree, name: str, scale: Scale, *, bench: Path = ROOT) -> dict[str, float]:
    """What a child measures, or a second one: a busy machine may be too slow once."""
    try:
        return await _measured(tree, name, scale, bench)
    except PartFailed as error:
        if error.is_misfit:
            raise
        _say(f"{name} of {tree.name} failed ({error}); once more")
        return await _measured(tree, name, scale, bench)


async def _measured(tree: Tree, name: str, scale: Scale, bench: Path) -> dict[str, float]:
    """The benchmark's code is that of the tree `bench`."""
    command = [tree.python, "-P", str(_TURN), name, json.dumps(asdict(scale))]
    with tempfile.TemporaryFile() as errors:
        process = await asyncio.create_subprocess_exec(
            *die_with_parent.wrapped(command),
            cwd=bench,
            env={**os.environ, "PYTHONPATH": str(bench)},
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=errors,
        )
        try:
            async with asyncio.timeout(_TURN_S_MAX):
                printed, _ = await process.communicate()
        finally:
            if process.returncode is None:
                process.terminate()
                await process.wait()
        if process.returncode != 0:
            errors.seek(0)
            raise PartFailed(errors.read().decode(errors="replace"))
    figures: dict[str, float] = json.loads(printed.splitlines()[-1])
    return figures


def _add(samples: dict[str, list[float]], figures: Mapping[str, float]) -> None:
    for key, value in figures.items():
        samples[key].append(value)


def _described() -> str:
    """This tree's commit, and whether it has changes besides."""
    changed = _git("status", "--porcelain", "--", "src")
    return f"{_git('rev-parse', 'HEAD')[:7]}{' with changes' if changed else ''} ({_version(ROOT)})"


def _version(root: Path) -> str:
    lines = (root / "pyproject.toml").read_text().splitlines()
    return next(line.partition('"')[2].rstrip('"') for line in lines if line.startswith("version = "))


def _git(*words: str) -> str:
    done = subprocess.run(["git", "-C", str(ROOT), *words], capture_output=True, text=True, check=False)
    if done.returncode:
        raise NotComparable(f"git {' '.join(words)}: {done.stderr.strip() or 'there is no such commit'}")
    return done.stdout.strip()


def _extract(commit: str, folder: Path) -> None:
    folder.mkdir(parents=True)
    archive = subprocess.run(["git", "-C", str(ROOT), "archive", commit], capture_output=True, check=True)
    subprocess.run(["tar", "--extract", "--directory", str(folder)], input=archive.stdout, check=True)


def _install(tree: Path, environment: Path) -> None:
    """As the Makefile does it."""
    _say(f"installing {tree.parent.name}, once")
    uv, python = str(Path(sys.executable).with_name("uv")), str(environment / "bin" / "python")
    trusting = {"UV_SYSTEM_CERTS": "true", **os.environ}
    # The interpreter is named, or uv would change the environment that it runs in: ours.
    for words in (
        ["venv", "--quiet", "--python", sys.executable, str(environment)],
        ["pip", "sync", "--python", python, "--quiet", "--require-hashes", "requirements/dev.txt"],
        ["pip", "install", "--python", python, "--quiet", "--no-deps", "--no-build-isolation", "--editable", "."],
    ):
        done = subprocess.run([uv, *words], cwd=tree, env=trusting, capture_output=True, text=True, check=False)
        if done.returncode:
            raise NotComparable(f"uv {' '.join(words[:2])} in {tree}: {done.stderr.strip()[-500:]}")


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
