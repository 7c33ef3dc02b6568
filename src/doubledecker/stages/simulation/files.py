"""Scenarios from files.

A source is a file's name and text, not its path: it travels to other processes and machines, and is read there. A .py
file is run, as a module of its own, with its folder importable. Run only files that you trust, as with any program.
"""

import sys
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

from doubledecker.stages.errors import ScenarioInvalid, StagesError
from doubledecker.stages.simulation import declared, scenario, vocabulary
from doubledecker.stages.simulation.scenario import NAMES, Scenario


@dataclass(frozen=True)
class ScenarioFile:
    """A file that describes a scenario."""

    path: str
    text: str

    @property
    def stem(self) -> str:
        return Path(self.path).stem


def read(path: Path) -> ScenarioFile:
    """The file's text; raises ScenarioInvalid when it cannot be read, or is of another kind."""
    if path.suffix not in {".py", ".toml"}:
        raise ScenarioInvalid(f"{path} is neither a .py nor a .toml file")
    try:
        return ScenarioFile(str(path.resolve()), path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ScenarioInvalid(f"cannot read {path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise ScenarioInvalid(f"cannot read {path}: it is not text in UTF-8") from error


def load(source: ScenarioFile, *, needs_dependency: bool = True) -> Scenario:
    """The scenario that the file describes."""
    try:
        given = _run(source) if source.path.endswith(".py") else _parse(source.text)
        return scenario.of(given, stem=source.stem, needs_dependency=needs_dependency)
    except SystemExit as error:
        raise ScenarioInvalid(
            f"{Path(source.path).name}: it ends the program, instead of describing a chain"
        ) from error
    except Exception as error:
        # Whatever a user's file raises is told as a fault of the file.
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
        given["chains"] = _chains(given["chains"])
    if "dependency" in given:
        given["dependency"] = declared.dependency(given["dependency"], "dependency")
    if "traffic" in given:
        given["traffic"] = declared.one_of(vocabulary.TRAFFIC, given["traffic"], "traffic")
    if "keys" in given:
        given["keys"] = declared.one_of(vocabulary.KEYS, given["keys"], "keys")
    return given


def _chains(given: object) -> Mapping[str, object]:
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
