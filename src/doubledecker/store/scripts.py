"""Lua scripts: one file an atomic step, whose header names its keys and arguments.

A header line becomes a local of the script, so a body never uses KEYS or ARGV:

    -- key  instant   jobs:instant:<queue>  list  a key of this partition; <queue> is filled in by the caller
    -- keys batch     batch:<bid>           list  a family: the body calls batch(bid) for a key's full name
    -- arg  limit     int                         a number; `text` is taken as it is, `pack` is MessagePack
    -- rest messages  text                        all further arguments, as a table
    -- now                                        milliseconds by the server's clock (tests shift it)
    -- deny-oom                                   the server refuses it whole when its memory is full
    -- uses queue_facets                          what that part declares and defines is here too, and what it uses
    -- returns …

A file whose first word is `part` is no step by itself, only used by others.

Scripts run also when the server is at its `maxmemory`, so that what frees memory works then: pulling, settling,
delivering, deleting. Those that take something in are marked `deny-oom`, and refused before they begin. (Without flags
the server would refuse a script at its first command that needs memory, unless another had written before.)

A caller gives values by name; a missing or an unknown one raises before anything is sent.
"""

import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache, reduce
from importlib import resources

import msgspec

from doubledecker.errors import ScriptBroken

Packable = str | int | float | None | Sequence["Packable"] | Mapping[str, "Packable"]
Value = str | bytes | int | Sequence[Packable] | Mapping[str, Packable]
Encoded = str | bytes | int

_HEADER = re.compile(r"--\s?(?P<word>keys|key|arg|rest|now)\b(?:\s+(?P<name>[a-z_]+)\s+(?P<form>\S+))?")
_DENY_OOM = re.compile(r"^-- deny-oom$", re.MULTILINE)
_USES = re.compile(r"^-- uses (?P<part>[a-z_]+)$", re.MULTILINE)
_PLACEHOLDER = re.compile(r"<([a-z_]+)>")
_READ = {"int": "tonumber(ARGV[{}])", "text": "ARGV[{}]", "pack": "cmsgpack.unpack(ARGV[{}])"}
# How an error names the line of a script's text: `WRONGTYPE … on @user_script:12.`
_LINE = re.compile(r"@?user_script:(\d+)")
# The shebang and the prelude, one line each, stand before the files.
_OWN_LINES = 2
_NOW = "local now; do local t = redis.call('TIME'); now = t[1] * 1000 + math.floor(t[2] / 1000) + ARGV[{}] end"


@dataclass(frozen=True)
class Header:
    """What a script declares, in order."""

    keys: tuple[tuple[str, str], ...]
    families: tuple[tuple[str, str], ...]
    args: tuple[tuple[str, str], ...]
    rest: str | None
    reads_time: bool

    @property
    def names(self) -> tuple[str, ...]:
        """Every local the body may use."""
        named = [name for pairs in (self.keys, self.families, self.args) for name, _ in pairs]
        return (*named, *([self.rest] if self.rest else []), *(["now"] if self.reads_time else []))


@dataclass(frozen=True)
class Script:
    """A script ready to be called: its text as the server gets it, and how to lay out a call."""

    name: str
    header: Header
    body: str
    text: str
    sha: str
    placeholders: frozenset[str]
    wanted: frozenset[str]
    # The files that the text is made of, in order, and how many lines each has.
    files: tuple[tuple[str, int], ...]

    def located(self, message: str) -> str:
        """The server's error, with a file and its line in place of the line of the whole text: `queue_pull.lua:12`."""
        return _LINE.sub(lambda found: self._line(int(found[1])), message)

    def _line(self, number: int) -> str:
        at = number - _OWN_LINES
        for name, count in self.files:
            if 0 < at <= count:
                return f"{name}.lua:{at}"
            at -= count
        return f"the prelude of {self.name}.lua"

    def keys(self, values: Mapping[str, Value], *, prefix: str) -> list[Encoded]:
        """What follows the digest in EVALSHA: the number of keys, and their names."""
        keys = [prefix + _fill(template, values) for _, template in self.header.keys] or [prefix]
        return [len(keys), *keys]

    def arguments(
        self, values: Mapping[str, Value], rest: Sequence[Encoded], *, prefix: str, shift_ms: int
    ) -> list[Encoded]:
        """What follows the keys; raises TypeError unless the values are those that the script takes."""
        header = self.header
        if values.keys() != self.wanted:
            raise TypeError(f"{self.name}.lua takes {sorted(self.wanted)}, not {sorted(values)}")
        arguments: list[Encoded] = [prefix] if header.families else []
        if header.reads_time:
            arguments.append(shift_ms)
        arguments += [_encode(values[name], form) for name, form in header.args]
        arguments += rest
        return arguments


@cache
def load(name: str) -> Script:
    """Read `lua/<name>.lua` and bind what its header declares, and those of the parts it uses."""
    body = read(name)
    files = [(part, read(part)) for part in parts_of(body)] + [(name, body)]
    header = reduce(_joined, map(parse, (text for _, text in files)))
    flags = "" if _DENY_OOM.search(body) else " flags=allow-oom"
    text = f"#!lua{flags}\n" + _prelude(header) + "".join(text for _, text in files)
    placeholders = frozenset(p for _, template in header.keys for p in _PLACEHOLDER.findall(template))
    # SHA-1 is how EVALSHA names a script; nothing is protected by it.
    sha = hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest()
    wanted = placeholders.union(name for name, _ in header.args)
    lines = tuple((file, text.count("\n")) for file, text in files)
    return Script(name, header, body, text, sha, placeholders, wanted, lines)


def read(name: str) -> str:
    """The text of `lua/<name>.lua`."""
    return resources.files("doubledecker").joinpath("lua", f"{name}.lua").read_text()


def parts_of(body: str) -> list[str]:
    """The parts that a script uses, and those that these use: each once, and before what uses it."""
    found = (name for part in _USES.findall(body) for name in (*parts_of(read(part)), part))
    return list(dict.fromkeys(found))


def all_names() -> list[str]:
    """The names of all scripts there are; parts are none."""
    folder = resources.files("doubledecker").joinpath("lua")
    names = sorted(entry.name.removesuffix(".lua") for entry in folder.iterdir() if entry.name.endswith(".lua"))
    return [name for name in names if not read(name).startswith("-- part")]


def parse(body: str) -> Header:
    """What the comment lines on top of a script declare."""
    found: dict[str, list[tuple[str, str]]] = {"key": [], "keys": [], "arg": [], "rest": [], "now": []}
    for line in body.splitlines():
        if not line.startswith("--"):
            break
        match = _HEADER.match(line)
        if match and not match["name"] and match["word"] != "now":
            raise ScriptBroken(f"a declaration has a name and a form: {line!r}")
        if match:
            found[match["word"]].append((match["name"] or "", match["form"] or ""))
    for name, form in found["arg"]:
        if form not in _READ:
            raise ScriptBroken(f"argument {name} is of kind {form!r}; there are {sorted(_READ)}")
    if len(found["rest"]) > 1:
        raise ScriptBroken("a script has at most one `rest`")
    return Header(
        keys=tuple(found["key"]),
        families=tuple(found["keys"]),
        args=tuple(found["arg"]),
        rest=found["rest"][0][0] if found["rest"] else None,
        reads_time=bool(found["now"]),
    )


def _joined(part: Header, own: Header) -> Header:
    return Header(
        keys=part.keys + own.keys,
        families=part.families + own.families,
        args=part.args + own.args,
        rest=own.rest,
        reads_time=part.reads_time or own.reads_time,
    )


def _prelude(header: Header) -> str:
    """One line of locals, so that an error's line is found again (`Script.located`)."""
    lines = [f"local {name} = KEYS[{i}]" for i, (name, _) in enumerate(header.keys, 1)]
    at = 1
    if header.families:
        lines.append(f"local prefix = ARGV[{at}]")
        lines.extend(_family(name, template) for name, template in header.families)
        at += 1
    if header.reads_time:
        lines.append(_NOW.format(at))
        at += 1
    for name, form in header.args:
        lines.append(f"local {name} = {_READ[form].format(at)}")
        at += 1
    if header.rest:
        lines.append(f"local {header.rest} = {{unpack(ARGV, {at})}}")
    return "; ".join(lines) + "\n"


def _family(name: str, template: str) -> str:
    """A Lua function from the template's placeholders to a full key name."""
    parameters = ", ".join(_PLACEHOLDER.findall(template))
    pieces = _PLACEHOLDER.split(template)
    quoted = [piece if i % 2 else f"'{piece}'" for i, piece in enumerate(pieces) if i % 2 or piece]
    return f"local function {name}({parameters}) return prefix .. {' .. '.join(quoted)} end"


def _fill(template: str, values: Mapping[str, Value]) -> str:
    return _PLACEHOLDER.sub(lambda found: str(values[found[1]]), template) if "<" in template else template


def _encode(value: Value, form: str) -> Encoded:
    if form == "pack":
        return msgspec.msgpack.encode(value)
    if isinstance(value, str | bytes | int):
        return value
    raise TypeError(f"{value!r} is for an argument of kind `pack`, not {form!r}")
