"""The Lua scripts: header and body agree, each loads on a real server, and a server that lost one is given it again."""

import ast
import re
from collections import Counter
from itertools import takewhile
from pathlib import Path

import pytest

from doubledecker.errors import BusAway, ScriptBroken
from doubledecker.store import jobs, scripts
from doubledecker.store.embedded import EmbeddedServer
from doubledecker.store.partitions import Partition, Partitions

SCRIPTS = [scripts.load(name) for name in scripts.all_names()]
KEYWORDS = frozenset(
    (
        *("and", "break", "do", "else", "elseif", "end", "false", "for", "function", "goto", "if", "in"),
        *("local", "nil", "not", "or", "repeat", "return", "then", "true", "until", "while"),
    )
)
GLOBALS = frozenset(
    (
        *("redis", "cjson", "cmsgpack", "struct", "table", "string", "math"),
        *("type", "tonumber", "tostring", "ipairs", "pairs", "unpack", "pcall"),
    )
)
# These are one atom each, and longer than any other (STYLE.md).
LONG = ("delivery_turn", "event_publish", "queue_pull")
BODY_LINES_MAX = 60

_TOKEN = re.compile(
    r"""(?P<comment>--[^\n]*)
      | (?P<string>"(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*')
      | (?P<number>\d[\w.]*)
      | (?P<name>[A-Za-z_]\w*)
      | (?P<mark>\.\.\.|\.\.|[=~<>]=|\S)""",
    re.VERBOSE,
)


def header_of(script: scripts.Script) -> list[str]:
    """The comment lines on top."""
    return list(takewhile(lambda line: line.startswith("--"), script.body.splitlines()))


def code_of(script: scripts.Script) -> str:
    """What follows the header."""
    return "\n".join(script.body.splitlines()[len(header_of(script)) :])


def whole_code_of(script: scripts.Script) -> str:
    """The same, after that of the parts which the script uses."""
    lines = [line for part in scripts.parts_of(script.body) for line in scripts.read(part).splitlines()]
    return "\n".join(line for line in lines if not line.startswith("--")) + "\n" + code_of(script)


def tokens_of(code: str) -> list[tuple[str, str]]:
    """Kind and text of every token that is not a comment."""
    found = ((match.lastgroup or "", match[0]) for match in _TOKEN.finditer(code))
    return [(kind, text) for kind, text in found if kind != "comment"]


def names_used(tokens: list[tuple[str, str]]) -> set[str]:
    """Identifiers that stand for a variable: not a keyword, not a field after `.` or `:`, not a key in a table."""
    used = set()
    open_marks = [""]
    texts = ["", *(text for _, text in tokens), ""]
    for (kind, text), before, after in zip(tokens, texts, texts[2:], strict=False):
        if text in {"(", "{", "["}:
            open_marks.append(text)
        elif text in {")", "}", "]"}:
            open_marks.pop()
        is_key = open_marks[-1] == "{" and before in {"{", ","} and after == "="
        if kind == "name" and text not in KEYWORDS and before not in {".", ":"} and not is_key:
            used.add(text)
    return used


def names_bound(tokens: list[tuple[str, str]]) -> set[str]:
    """Locals, functions, their parameters, and the variables of loops."""
    bound: set[str] = set()
    for i, (_, text) in enumerate(tokens):
        if text in {"local", "for"}:
            bound |= _names_from(tokens, i + 1)
        if text == "function":
            at = i + 1
            if tokens[at][0] == "name":
                bound.add(tokens[at][1])
                at += 1
            bound |= _names_from(tokens, at + 1)
    return bound


def _names_from(tokens: list[tuple[str, str]], at: int) -> set[str]:
    """A list of names with commas between them."""
    names = set()
    while tokens[at][0] == "name" and tokens[at][1] not in KEYWORDS:
        names.add(tokens[at][1])
        if tokens[at + 1][1] != ",":
            break
        at += 2
    return names


def test_the_tokenizer_tells_variables_from_all_else():
    tokens = tokens_of(
        'local a, b = f(1)  -- c\nfor i, v in ipairs(t) do a.field = "d" .. v end\n'
        "local function g(x, y) return not x and y:call({key = z, [w] = {other = 1}}) end"
    )

    assert names_used(tokens) == {"a", "b", "f", "i", "v", "ipairs", "t", "g", "x", "y", "z", "w"}
    assert names_bound(tokens) == {"a", "b", "i", "v", "g", "x", "y"}


def test_scripts_use_every_name_that_they_declare():
    unused = {
        script.name: set(script.header.names) - names_used(tokens_of(whole_code_of(script))) for script in SCRIPTS
    }

    assert {name: names for name, names in unused.items() if names} == {}


def test_scripts_use_no_name_that_they_do_not_declare():
    undeclared = {
        script.name: names_used(tokens) - names_bound(tokens) - GLOBALS - set(script.header.names)
        for script in SCRIPTS
        for tokens in [tokens_of(whole_code_of(script))]
    }

    assert {name: names for name, names in undeclared.items() if names} == {}


def test_scripts_declare_no_name_twice_and_none_that_lua_has():
    declared = {script.name: Counter([*script.header.names, *KEYWORDS, *GLOBALS]) for script in SCRIPTS}
    twice = {script: {name for name, count in names.items() if count > 1} for script, names in declared.items()}

    assert {script: names for script, names in twice.items() if names} == {}


def test_scripts_never_say_keys_or_argv():
    assert [each.name for each in SCRIPTS if {"KEYS", "ARGV"} & names_used(tokens_of(code_of(each)))] == []


def test_scripts_write_commands_in_capitals():
    called = [(each.name, word) for each in SCRIPTS for word in re.findall(r"redis\.call\(\s*\"(\w+)\"", code_of(each))]

    assert [(name, command) for name, command in called if command != command.upper()] == []


def test_scripts_open_with_a_sentence():
    headers = {script.name: header_of(script) for script in SCRIPTS}

    assert [
        name
        for name, header in headers.items()
        if not (re.fullmatch(r"-- [A-Z].*[.]", header[0]) and header[1] == "--")
    ] == []


def test_scripts_say_what_they_return():
    assert [script.name for script in SCRIPTS if not re.match(r"-- returns\s+\S", header_of(script)[-1])] == []


def test_scripts_have_a_body_of_a_page_at_most():
    lengths = {script.name: len(code_of(script).strip().splitlines()) for script in SCRIPTS}

    assert [name for name, lines in lengths.items() if lines > BODY_LINES_MAX and name not in LONG] == []


async def test_scripts_load_on_a_server(plain: Partitions, subtests: pytest.Subtests):
    for script in SCRIPTS:
        with subtests.test(script=script.name):
            assert await plain.home.command("SCRIPT", "LOAD", script.text) == script.sha.encode()


@pytest.mark.parametrize(
    "values",
    [
        {"slot": "s"},
        {"slot": "s", "job": b"j", "jb": b"j"},
        {"slot": "s", "jbo": b"j"},
        {"slot": "s", "job": ["a", "list"]},
    ],
    ids=["missing", "one too many", "misspelt", "of another kind"],
)
async def test_a_wrong_value_is_refused_before_anything_is_sent(values: dict[str, object]):
    with pytest.raises(TypeError):
        await _unsent().run(scripts.load("job_ack"), **values)


def test_small_writes_beside_scripts_work_also_when_memory_is_full():
    """A plain command that needs memory is refused then, so such writes go through `Partition.write`."""
    needing_memory = {"HSET", "HSETNX", "HINCRBY", "ZADD", "SADD", "RPUSH", "LPUSH", "LMOVE", "SET", "SETBIT", "XADD"}
    found = set()
    for path in sorted((Path(scripts.__file__).parents[1]).rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            is_plain = isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)
            if is_plain and node.func.attr in {"command", "commands", "block", "everywhere"}:
                words = {part.value for part in ast.walk(node) if isinstance(part, ast.Constant)}
                found |= {path.name} if words & needing_memory else set()

    # To begin a replay is to take something in.
    assert found == {"bulk.py"}


async def test_a_flushed_script_is_sent_again(partitions: Partitions):
    for partition in partitions.all:
        await partition.command("SCRIPT", "FLUSH")

        assert await jobs.scrub(partition, dead_ms=1) == await jobs.scrub(partition, dead_ms=1)
        assert await partition.command("SCRIPT", "EXISTS", scripts.load("job_scrub").sha) == [1]


async def test_a_restarted_server_is_given_its_scripts_again(data_dir: Path):
    server = await EmbeddedServer.start(data_dir)
    try:
        partitions = await Partitions.connect(server.url, namespace="rm:", count=1)
        before = await jobs.take(partitions.home, ["s"], process="p")
        await server.restart()
        await partitions.close()  # the connections ended with the server
        exists = await partitions.home.command("SCRIPT", "EXISTS", scripts.load("job_take").sha)

        assert exists == [0]
        assert await jobs.take(partitions.home, ["s"], process="p") == before
        await partitions.close()
    finally:
        await server.stop()


@pytest.mark.parametrize(
    "body",
    [
        "-- Do.\n-- arg job number\n",
        "-- Do.\n-- arg job  the job as it was taken\n",
        "-- Do.\n-- rest a text\n-- rest b text\n",
    ],
    ids=["unknown kind", "no kind", "two rests"],
)
def test_a_broken_header_is_refused(body: str):
    with pytest.raises(ScriptBroken):
        scripts.parse(body)


@pytest.mark.parametrize("line", ["-- key", "-- arg", "-- keys batch", "-- key batch", "-- rest"])
def test_a_declaration_without_name_or_form_is_refused(line: str):
    with pytest.raises(ScriptBroken):
        scripts.parse(f"-- Do.\n{line}\n")


def test_prose_that_begins_with_a_declaring_word_is_not_a_declaration():
    header = scripts.parse("-- Do.\n--\n-- Keys are many.\n-- now\n-- returns nothing\n")

    assert header.keys == ()
    assert header.reads_time


def test_a_family_makes_full_names_from_its_placeholders():
    text = scripts.load("job_take").text.splitlines()[1]

    assert "local function pending(slot) return prefix .. 'jobs:pending:aux:' .. slot end" in text


def _unsent() -> Partition:
    """A partition whose connections fail the test when they are used."""

    class Nowhere:
        async def call(self, *_: object) -> None:
            pytest.fail("something was sent")

    return Partition(Nowhere(), index=0, count=1, prefix="rm:")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("key", "script", "file"),
    [("jobs:scheduled:aux", "job_take", "job_take"), ("queue:state:q", "queue_purge", "queue_facets")],
    ids=["in the script", "in a part"],
)
async def test_an_error_names_the_file_and_its_line(plain: Partitions, key: str, script: str, file: str):
    await plain.home.command("SET", plain.home.key(key), "no such type")
    loaded = scripts.load(script)
    values: dict[str, scripts.Value] = dict.fromkeys(loaded.placeholders, "q")
    values |= {name: {"text": "q", "int": 1, "pack": ["x"]}[form] for name, form in loaded.header.args}

    with pytest.raises(BusAway) as caught:
        await plain.home.run(loaded, **values)
    named = re.search(r"WRONGTYPE.* on (\w+)\.lua:(\d+)", str(caught.value))
    assert named is not None, caught.value
    assert named[1] == file
    assert "redis.call(" in scripts.read(file).splitlines()[int(named[2]) - 1]


def test_a_part_declares_every_name_that_it_uses():
    folder = Path(scripts.__file__).parents[1] / "lua"
    parts = [path.stem for path in sorted(folder.glob("*.lua")) if path.read_text().startswith("-- part")]
    undeclared = {}
    for name in parts:
        texts = [scripts.read(each) for each in (*scripts.parts_of(scripts.read(name)), name)]
        declared = {each for text in texts for each in scripts.parse(text).names}
        bound = {each for text in texts for each in names_bound(tokens_of(text))}
        undeclared[name] = names_used(tokens_of(texts[-1])) - bound - declared - GLOBALS

    assert {name: names for name, names in undeclared.items() if names} == {}


def test_a_header_names_every_field_of_a_packed_argument_that_is_used():
    folder = Path(scripts.__file__).parents[1] / "lua"
    unnamed = {}
    for path in sorted(folder.glob("*.lua")):
        text = path.read_text()
        declared = {each: scripts.read(each) for each in (*scripts.parts_of(text), path.stem)}
        code = re.sub(r"--.*", "", text)
        arguments = [(home, *arg) for home in declared.values() for arg in scripts.parse(home).args]
        for home, name, form in arguments:
            fields = set(re.findall(rf"(?<![.\w]){name}\.([a-z_]+)", code)) if form == "pack" else set()
            headers = text.partition("\n\n")[0] + home.partition("\n\n")[0]
            unnamed[path.stem] = unnamed.get(path.stem, set()) | (fields - set(re.findall(r"\w+", headers)))

    assert {name: fields for name, fields in unnamed.items() if fields} == {}
