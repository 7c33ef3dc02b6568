"""A scenario: what a rehearsal needs, as a file says it.

A `.py` file says it with names, a `.toml` file with keys, the same ones:

    chain          the stages, outermost first; or `chains`, several by name
    dependency     the simulated dependency that stands inside every chain that has none
    traffic        when events arrive             keys          which keys they ask for
    duration       of the traffic, in seconds     sample_every  seconds between two looks, for plots
    replications   how many runs                  seed          what their chance begins from
    title          for plots
"""

import sys
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from types import ModuleType
from typing import cast

from doubledecker.stages import limits
from doubledecker.stages.chain import Chain
from doubledecker.stages.errors import ScenarioInvalid, SettingInvalid, StagesError
from doubledecker.stages.limits import Limit
from doubledecker.stages.simulation import declared
from doubledecker.stages.simulation.declared import unknown
from doubledecker.stages.simulation.traffic import Keys, Poisson, Traffic
from doubledecker.stages.stage import Stage
from doubledecker.stages.techniques.simulated import Simulated

NAMES = (
    "chain",
    "chains",
    "dependency",
    "traffic",
    "keys",
    "duration",
    "sample_every",
    "replications",
    "seed",
    "title",
)
# Enough points for a plot to show what happens, few enough to be quick.
_LOOKS = 100


@dataclass(frozen=True)
class Scenario:
    """Everything that a rehearsal needs."""

    title: str
    chains: Mapping[str, Chain]
    traffic: Traffic
    duration: float
    seed: int
    replications: int
    keys: Keys | None
    sample_every: float

    def __post_init__(self) -> None:
        limits.check(
            self,
            duration=limits.FINITE_ABOVE_ZERO,
            seed=limits.a(int),
            replications=limits.ONE_OR_MORE,
            traffic=limits.with_method("arrivals", "traffic, such as Poisson(100)"),
            keys=limits.or_none(limits.with_method("draw", "keys, such as UniformKeys(100)")),
            sample_every=limits.FINITE_ABOVE_ZERO,
            title=limits.a(str),
        )

    def chain(self, name: str) -> Chain:
        if name not in self.chains:
            raise ScenarioInvalid(unknown("chain", name, list(self.chains)))
        return self.chains[name]

    def lasting(self, duration: float) -> "Scenario":
        """The same for another time, with as many looks."""
        limits.check_argument("scenario", "duration", duration, limits.FINITE_ABOVE_ZERO)
        return replace(self, duration=duration, sample_every=self.sample_every * duration / self.duration)

    def against(self, traffic: Traffic, dependency: Simulated, *, duration: float) -> "Scenario":
        """The same chains with other traffic, and another dependency at their end."""
        chains = {name: _outside(chain) | dependency for name, chain in self.chains.items()}
        return replace(self.lasting(duration), chains=chains, traffic=traffic, keys=None)


def of(given: Mapping[str, object], *, stem: str, needs_dependency: bool = True) -> Scenario:
    """A scenario from what a file says; without a dependency only where traffic and dependency come from a record."""
    if {"chain", "chains"} <= set(given):
        raise ScenarioInvalid("it has both `chain` and `chains`; give one of them")
    chains = _chains(given, stem)
    dependency = given.get("dependency")
    if dependency is not None and not (isinstance(dependency, Stage) and dependency.is_end):
        raise SettingInvalid("scenario", "dependency", dependency, "a dependency, such as Simulated(LogNormal(0.05))")
    if isinstance(dependency, Stage):
        chains = {name: chain if _ends(chain) else chain | dependency for name, chain in chains.items()}
    lacking = [name for name, chain in chains.items() if not _ends(chain)]
    if lacking and needs_dependency:
        raise ScenarioInvalid(
            f"{lacking[0]} has no dependency at its end; add `dependency`, such as Simulated(LogNormal(0.05), 0.99)"
        )
    duration = given.get("duration", 60.0)
    _check(given, "duration", duration, limits.FINITE_ABOVE_ZERO)
    return Scenario(
        title=cast("str", given.get("title", stem.replace("_", " "))),
        chains=chains,
        traffic=cast("Traffic", given.get("traffic", Poisson(50.0))),
        duration=cast("float", duration),
        seed=cast("int", given.get("seed", 0)),
        replications=cast("int", given.get("replications", 5)),
        keys=cast("Keys | None", given.get("keys")),
        sample_every=cast("float", given.get("sample_every", cast("float", duration) / _LOOKS)),
    )


def _check(given: Mapping[str, object], name: str, seen: object, limit: Limit) -> None:
    if name in given:
        limits.check_argument("scenario", name, seen, limit)


def _chains(given: Mapping[str, object], stem: str) -> dict[str, Chain]:
    if "chain" in given:
        return {stem: _chain(given["chain"], "chain")}
    chains = given.get("chains")
    if not isinstance(chains, Mapping) or not chains:
        raise ScenarioInvalid("it has no chain; define `chain`, or `chains` with a name for each")
    return {str(name): _chain(one, f"chains[{name!r}]") for name, one in chains.items()}


def _chain(given: object, where: str) -> Chain:
    if isinstance(given, Stage):
        return Chain((given,))
    if not isinstance(given, Chain):
        raise SettingInvalid("scenario", where, given, "a chain, such as Retry(3) | Timeout(1.0)")
    return given


def _ends(chain: Chain) -> bool:
    """A dependency stands at its end, or at that of every branch of a stage that branches."""
    return bool(chain.stages) and (chain.stages[-1].is_end or _branches_end(chain.stages[-1]))


def _branches_end(stage: Stage) -> bool:
    branches = stage.branches.values()
    return bool(branches) and all(_ends(branch) for branch in branches)


def _outside(chain: Chain) -> Chain:
    """The chain without a dependency of its own."""
    return Chain(tuple(stage for stage in chain.stages if not stage.is_end))


# Scenarios from files.
#
# A source is a file's name and text, not its path: it travels to other processes and machines, and is read there. A .py
# file is run, as a module of its own, with its folder importable. Run only files that you trust, as with any program.


@dataclass(frozen=True)
class ScenarioFile:
    """A file that describes a scenario."""

    path: str
    text: str

    @property
    def stem(self) -> str:
        return Path(self.path).stem


def read_file(path: Path) -> ScenarioFile:
    """The file's text; raises ScenarioInvalid when it cannot be read, or is of another kind."""
    if path.suffix not in {".py", ".toml"}:
        raise ScenarioInvalid(f"{path} is neither a .py nor a .toml file")
    try:
        return ScenarioFile(str(path.resolve()), path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ScenarioInvalid(f"cannot read {path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise ScenarioInvalid(f"cannot read {path}: it is not text in UTF-8") from error


def load_file(source: ScenarioFile, *, needs_dependency: bool = True) -> Scenario:
    """The scenario that the file describes."""
    try:
        given = _run(source) if source.path.endswith(".py") else _parse(source.text)
        return of(given, stem=source.stem, needs_dependency=needs_dependency)
    except SystemExit as error:
        raise ScenarioInvalid(
            f"{Path(source.path).name}: it ends the program, instead of describing a chain"
        ) from error
    except Exception as error:
        # Whatever a user's file raises is reported as a fault of the file.
        place = f", line {line}" if (line := _line(source, error)) else ""
        words = str(error) if isinstance(error, _OURS) else f"{type(error).__name__}: {error}"
        raise ScenarioInvalid(f"{Path(source.path).name}{place}: {words}") from error


_OURS = (StagesError, tomllib.TOMLDecodeError)


def _run(source: ScenarioFile) -> Mapping[str, object]:
    folder = str(Path(source.path).parent)
    module = ModuleType(f"scenario_{source.stem}")
    module.__file__ = source.path
    sys.modules[module.__name__] = module  # dataclasses of the file look for their module
    sys.path.insert(0, folder)
    try:
        exec(compile(source.text, source.path, "exec"), module.__dict__)  # noqa: S102 - a program that the user asked to run
    finally:
        sys.path.remove(folder)
    return {name: given for name, given in vars(module).items() if name in NAMES}


def _parse(text: str) -> Mapping[str, object]:
    given: dict[str, object] = dict(tomllib.loads(text))
    for name in given:
        if name not in NAMES:
            raise ScenarioInvalid(declared.unknown("key", name, NAMES))
    if "chain" in given:
        given["chain"] = declared.chain(given["chain"], "chain")
    if "chains" in given:
        given["chains"] = _chains_of_file(given["chains"])
    if "dependency" in given:
        given["dependency"] = declared.dependency(given["dependency"], "dependency")
    if "traffic" in given:
        given["traffic"] = declared.one_of(declared.TRAFFIC, given["traffic"], "traffic")
    if "keys" in given:
        given["keys"] = declared.one_of(declared.KEYS, given["keys"], "keys")
    return given


def _chains_of_file(given: object) -> Mapping[str, object]:
    if not isinstance(given, dict):
        raise ScenarioInvalid(f"chains is {given!r}; it must be a table: [[chains.NAME]] for each stage")
    return {name: declared.chain(one, f"chains.{name}") for name, one in given.items()}


def _line(source: ScenarioFile, error: Exception) -> int | None:
    """Where in the user's file it went wrong, if it was there."""
    if isinstance(error, SyntaxError):
        return error.lineno
    traceback, line = error.__traceback__, None
    while traceback is not None:
        if traceback.tb_frame.f_code.co_filename == source.path:
            line = traceback.tb_lineno
        traceback = traceback.tb_next
    return line
