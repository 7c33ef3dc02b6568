"""Settings by path, and grids of them.

retry.attempts=1..5            whole numbers, both ends included; 1..9..2 in steps of two
timeout=0.5,1,2                a stage without a setting means its first one: limit_s
bulkhead.queue.size_max=none   none is no bound
traffic.rate_per_s=50,100      the traffic, the keys, or the dependency at the chain's end
duration=60                    of the traffic
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from itertools import product
from typing import cast

from doubledecker.stages.chain import Chain
from doubledecker.stages.errors import ChainInvalid, ScenarioInvalid
from doubledecker.stages.linking import named
from doubledecker.stages.simulation.declared import unknown
from doubledecker.stages.simulation.scenario import Scenario
from doubledecker.stages.simulation.traffic import Keys, Traffic
from doubledecker.stages.stage import Stage

Value = float | bool | None
Settings = tuple[tuple[str, Value], ...]

_RANGE = re.compile(r"(-?\d{1,12})\.\.(-?\d{1,12})(?:\.\.(\d{1,12}))?")
_WORDS: dict[str, Value] = {"none": None, "true": True, "false": False}
# A grid larger than this is more likely a slip than a wish.
_VALUES_MAX = 10_000


@dataclass(frozen=True)
class Axis:
    """One setting and the values to try."""

    path: str
    values: tuple[Value, ...]


def parse(text: str) -> Axis:
    """`path=values`, as the top of this file tells."""
    path, equals, right = text.partition("=")
    if not equals or not path or not right:
        raise ScenarioInvalid(f"{text!r} is no setting; write it as retry.attempts=1..5 or timeout=0.5,1,2")
    values = [value for part in right.split(",") for value in _values(part.strip(), text)]
    return Axis(path.strip(), tuple(_few(values, text)))


def points(axes: Sequence[Axis]) -> list[Settings]:
    """Every combination, the last axis fastest."""
    paths = [axis.path for axis in axes]
    return [tuple(zip(paths, values, strict=True)) for values in product(*(axis.values for axis in axes))]


def apply(scenario: Scenario, chain: str, settings: Settings) -> Scenario:
    """The scenario with other settings of the named chain, of the traffic, the keys, or the duration."""
    for path, value in settings:
        scenario = _apply(scenario, chain, path, value)
    return scenario


def word(value: Value) -> str:
    """A value as it is written in a setting."""
    if value is None:
        return "none"
    return str(value).lower() if isinstance(value, bool) else f"{value:g}"


def _apply(scenario: Scenario, name: str, path: str, value: Value) -> Scenario:
    head, _, rest = path.partition(".")
    if path == "duration":
        return scenario.lasting(cast("float", value))
    names = rest.split(".") if rest else []
    if head == "traffic":
        return replace(scenario, traffic=cast("Traffic", _changed(scenario.traffic, names, value, path)))
    if head == "keys":
        return replace(scenario, keys=cast("Keys", _changed(scenario.keys, names, value, path)))
    changed = _change_stage(scenario.chain(name), head, rest, value, path)
    return replace(scenario, chains={**scenario.chains, name: changed})


def _change_stage(chain: Chain, head: str, rest: str, value: Value, path: str) -> Chain:
    stages = {named(stage): stage for stage in chain.stages}
    if head == "dependency" and "dependency" not in stages and chain.stages and chain.stages[-1].is_end:
        head = named(chain.stages[-1])
    if head not in stages:
        others = [*stages, "dependency", "traffic", "keys", "duration"]
        raise ScenarioInvalid(f"{path}: {unknown('stage', head, others)}")
    setting, *deeper = (rest or _first_setting(stages[head])).split(".")
    if deeper:
        value = _changed(_setting(stages[head], setting, path), deeper, value, path)  # type: ignore[assignment]
    else:
        _setting(stages[head], setting, path)
    return chain.change(head, **{setting: value})


def _changed(owner: object, names: list[str], value: object, path: str) -> object:
    """A copy of the owner with one of its settings, or one of a setting's own, changed."""
    if not names or not is_dataclass(owner) or isinstance(owner, type):
        raise ScenarioInvalid(f"{path}: name one of its settings: {', '.join(_settings(owner)) or 'it has none'}")
    name, *deeper = names
    inner = _setting(owner, name, path)
    try:
        return replace(owner, **{name: _changed(inner, deeper, value, path) if deeper else value})
    except ChainInvalid as error:
        raise ScenarioInvalid(f"{path}: {error}") from error


def _setting(owner: object, name: str, path: str) -> object:
    if name not in _settings(owner):
        raise ScenarioInvalid(f"{path}: {unknown('setting', name, _settings(owner))}")
    return cast("object", getattr(owner, name))


def _settings(owner: object) -> list[str]:
    if not is_dataclass(owner):
        return []
    return [field.name for field in fields(owner) if field.init and field.name != "name"]


def _first_setting(stage: Stage) -> str:
    return next((field.name for field in fields(stage) if field.init and not field.kw_only), "workers")


def _values(part: str, text: str) -> Sequence[Value]:
    if match := _RANGE.fullmatch(part):
        low, high, step = int(match[1]), int(match[2]), int(match[3] or 1)
        if low > high or step == 0:
            raise ScenarioInvalid(f"{text!r}: the range {part} is empty; write the smaller number first")
        return _few(range(low, high + 1, step), text)
    if part in _WORDS:
        return [_WORDS[part]]
    try:
        return [int(part)]
    except ValueError:
        pass
    try:
        return [float(part)]
    except ValueError:
        raise ScenarioInvalid(
            f"{text!r}: {part!r} is no value; write numbers, a range as 1..5, none, true or false"
        ) from None


def _few(values: Sequence[Value], text: str) -> Sequence[Value]:
    """The values, unless they are too many; a range is asked before it is made a list of."""
    if len(values) > _VALUES_MAX:
        raise ScenarioInvalid(f"{text!r} has {len(values)} values; at most {_VALUES_MAX} are tried")
    return values
