"""House rules that no linter knows."""

import ast
import importlib
import json
import os
import re
import subprocess
import sys
from dataclasses import fields
from pathlib import Path

import click
import pytest

from doubledecker import __version__
from doubledecker.assembly.settings import ALIASES, Settings
from doubledecker.cli import cli
from doubledecker.model.quota import Quotas

ROOT = Path(__file__).parent.parent
SOURCES = sorted((ROOT / "src").rglob("*.py"))
TREES = {path: ast.parse(path.read_text()) for path in SOURCES}
LUA = sorted((ROOT / "src").rglob("*.lua"))
BANNED_NAMES = {"utils", "util", "helpers", "helper", "common", "base", "core", "manager", "misc"}
# What users import without the server: their classes may be called as the server's are (STYLE.md).
STANDALONE = {"client", "stages"}
# Folders of tests that cross packages.
ACROSS = {"faults", "flow", "laws", "typed", "upgrade"}
# Drawn by the commands and simulations that are tested with them.
UNTESTED = {"plots"}
PAGES = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]


def _short(path: Path) -> str:
    return str(path.relative_to(ROOT))


def test_a_file_opens_with_a_sentence():
    assert [_short(path) for path in SOURCES if not ast.get_docstring(TREES[path])] == []


def test_a_file_has_at_most_500_lines():
    assert [_short(path) for path in SOURCES if path.read_text().count("\n") > 500] == []


def test_functions_are_at_most_40_lines():
    functions = [
        (path, node)
        for path, tree in TREES.items()
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    ]

    assert [f"{_short(path)}: {f.name}" for path, f in functions if (f.end_lineno or 0) - f.lineno + 1 > 40] == []


def test_a_public_class_name_is_used_once_but_for_what_the_client_and_stages_export():
    homes: dict[str, list[str]] = {}
    for path, tree in TREES.items():
        package = path.relative_to(ROOT / "src").parts[1]
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                homes.setdefault(node.name, []).append(package)

    within = {name: found for name, found in homes.items() if len([p for p in found if p not in STANDALONE]) > 1}
    assert within == {}
    assert [name for name, found in homes.items() if found.count("client") > 1] == []


def test_a_folder_of_tests_is_named_for_the_package_that_it_tests():
    source, tests = ROOT / "src" / "doubledecker", ROOT / "tests"
    tested = {str(path.parent.relative_to(tests)) for path in tests.rglob("test_*.py")} - {"."} - ACROSS
    packages = {str(path.parent.relative_to(source)) for path in source.rglob("__init__.py")} - {"."}

    assert tested - packages == set()
    assert {name for name in packages if "/" not in name} - {name.partition("/")[0] for name in tested} == UNTESTED


def test_no_file_has_a_name_that_fits_any_code():
    assert [_short(path) for path in SOURCES if path.stem in BANNED_NAMES] == []


def test_no_folder_is_deeper_than_three():
    assert [_short(path) for path in SOURCES if len(path.relative_to(ROOT / "src").parts) > 4] == []


def test_a_broad_except_lives_only_at_the_edge_of_a_request_of_a_job_of_a_step_of_a_stage_and_of_a_users_code():
    # A stage counts whatever its work raises, and raises it on; a simulated caller writes down how its event ended.
    # A user's file may raise anything when it is run, and so may a user's handler.
    broad = [_short(path) for path in SOURCES if re.search(r"except (Base)?Exception\b|except:", path.read_text())]

    edges = [
        "client/drain.py",
        "client/slots.py",
        "pipeline/steps.py",
        "stages/simulation/scenario.py",
        "stages/simulation/simulate.py",
    ]
    edges += ["stages/stage.py"]
    edges += ["web/app.py", "worker/aux_jobs.py", "worker/deliver.py"]
    assert broad == [f"src/doubledecker/{edge}" for edge in edges]


def test_one_module_alone_connects_to_what_clients_name():
    # What clients call, what the demo and the command line call, and the server of the bus itself are the operator's.
    own = {"cli", "client", "stages", "store"}
    connects = r"\b(create_connection|sock_connect|open_connection|urlopen|ClientSession|HTTPConnection)\("
    found = [_short(path) for path in SOURCES if re.search(connects, path.read_text())]

    assert [path for path in found if path.split("/")[2] not in own] == ["src/doubledecker/delivery/http.py"]


def test_a_script_is_named_noun_verb():
    assert [_short(path) for path in LUA if not re.fullmatch(r"[a-z]+_[a-z_]+", path.stem)] == []


def test_every_setting_is_in_the_operations_page_with_its_default_and_alias():
    page = (ROOT / "docs" / "operations.md").read_text()
    rows = {row[0]: row[1:] for row in re.findall(r"^\| `(\w+)` \| (.*?) \| .*? \| (.*?) ?\|$", page, re.MULTILINE)}
    expected = {}
    for field in fields(Settings):
        default = str(field.default).lower() if isinstance(field.default, bool) else str(field.default)
        alias = ALIASES.get(field.name, "")
        expected[field.name] = (f"`{default}`" if default else "", f"`{alias}`" if alias else "")

    assert {name: (default.strip(), alias.strip()) for name, (default, alias) in rows.items()} == expected


def test_settings_stay_few():
    """Beside quotas, which are one table, and Routemaster's: a new one takes the place of one that nobody turns."""
    quotas = {field.name for field in fields(Quotas)}

    assert len([field for field in fields(Settings) if field.name not in quotas | ALIASES.keys()]) <= 46


def test_the_glossary_has_at_most_sixty_rows():
    rows = re.findall(r"^\| .+ \|$", (ROOT / "docs" / "glossary.md").read_text(), re.MULTILINE)

    assert len(rows) - 1 <= 60


def test_every_package_has_a_row_in_the_table_of_packages():
    table = (ROOT / "CONTRIBUTING.md").read_text().partition("| package |")[2].partition("\n\n")[0]
    source = ROOT / "src" / "doubledecker"

    assert {path.parent.name for path in source.glob("*/__init__.py")} - set(re.findall(r"`(\w+)`", table)) == set()


def test_a_module_with_one_importer_is_not_tiny():
    """It belongs to its importer; `pyspark_doubledecker` and files that are run as programs have none."""
    tiny = {path for path in SOURCES if path.name != "__init__.py" and path.read_text().count("\n") < 50}
    importers: dict[str, set[Path]] = {}
    for path, tree in TREES.items():
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom) and node.module:
                for name in (node.module, *(f"{node.module}.{alias.name}" for alias in node.names)):
                    importers.setdefault(name, set()).add(path)

    lonely = {path for path in tiny if len(importers.get(_module(path), ())) == 1}
    assert {_short(path) for path in lonely} == set()


def _module(path: Path) -> str:
    return ".".join(path.relative_to(ROOT / "src").with_suffix("").parts)


# Reached by nobody, or bounds and defaults of settings, which have a table of their own. Those of deliveries and jobs
# divide work over calls to Redis: what is beyond them comes with the next call.
NOT_IN_THE_TABLE = {
    "assembly.launch.PROCESSES_MAX",
    "model.event.DEPTH_MAX",
    "model.step.SILENT_MS_MAX",
    "store.dead_letters.SETTLED_MAX",
    "store.deliveries.BYTES_MAX",
    "store.deliveries.DUE_MAX",
    "store.deliveries.SETTLED_MAX",
    "store.embedded.SILENCE_S_MAX",
    "store.embedded.SOCKET_PATH_BYTES_MAX",
    "store.jobs.DUE_MAX",
    "store.nodes.ANSWER_S_MAX",
    "store.nodes.BLOCK_S_MAX",
    "store.registry.CHANGES_MAX",
    "store.locate.BATCHES_MAX",
    "store.locate.MESSAGES_MAX",
    "web.protocol.CONNECTIONS_MAX",
}
UNITS = {"": 1, "KiB": 1024, "MiB": 1_048_576, "ms": 1, "s": 1_000, "min": 60_000, "h": 3_600_000, "d": 86_400_000}


def test_every_bound_that_is_no_setting_is_in_the_operations_page_with_its_value():
    page = (ROOT / "docs" / "operations.md").read_text()
    section = page.partition("## Bounds that are no settings\n")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| .+ \| ([0-9 ]+?)(?: ([A-Za-z]+))? \| `([a-z_.]+)\.([A-Z_]+)` \|$", section, re.MULTILINE)
    written = {
        f"{module}.{name}": int(number.replace(" ", "")) * UNITS[unit] / (1_000 if name.endswith("_S_MAX") else 1)
        for number, unit, module, name in rows
    }

    assert len(rows) == section.count("\n| ") - 1
    assert written == {name: _constant(name) for name in written}
    assert _bounds() - set(written) == NOT_IN_THE_TABLE


def _bounds() -> set[str]:
    """The names of all bounds of the bus that other modules may see."""
    folders = ("assembly", "bus", "delivery", "model", "queues", "store", "web", "worker")
    return {
        f"{folder}.{path.stem}.{name}"
        for folder in folders
        for path in (ROOT / "src" / "doubledecker" / folder).glob("*.py")
        for line in re.findall(r"^([A-Z][A-Z_, ]*) = ", path.read_text(), re.MULTILINE)
        for name in line.split(", ")
        if name.endswith(("_MAX", "WINDOW_MS"))
    }


def _constant(name: str) -> float:
    module, _, constant = name.rpartition(".")
    value: float = getattr(importlib.import_module(f"doubledecker.{module}"), constant)
    return value


def test_links_between_documents_lead_somewhere():
    links = [(page, link) for page in PAGES for link in re.findall(r"\]\((?!https?://|#)([^)#]+)", page.read_text())]

    assert [f"{_short(page)}: {link}" for page, link in links if not (page.parent / link).exists()] == []


def test_files_that_documents_name_exist():
    """As the end of a path; a page may leave out the folders before it."""
    files = [f"/{path}" for path in _tree()]
    named = [(page, name) for page in PAGES for name in re.findall(r"`([\w/-]+\.(?:py|lua))`", page.read_text())]

    lost = [f"{_short(page)}: {name}" for page, name in named if not any(path.endswith(f"/{name}") for path in files)]
    assert [line for line in lost if not line.endswith("noun_verb.lua")] == []


def test_nothing_that_a_merge_leaves_behind_is_in_the_tree():
    assert [path for path in _tree() if path.endswith((".orig", ".rej", "~"))] == []


def _tree() -> list[str]:
    """The files of the tree, but not what tools leave in the root."""
    folders = ("src", "tests", "bench", "docs", "examples")
    return [_short(path) for folder in folders for path in (ROOT / folder).rglob("*") if path.is_file()]


def test_every_command_is_in_the_page_of_commands():
    def leaves(path: str, command: click.Command) -> list[str]:
        if not isinstance(command, click.Group):
            return [path]
        inner = {name: each for name, each in command.commands.items() if not each.hidden}
        return [leaf for name, each in inner.items() for leaf in leaves(f"{path} {name}".strip(), each)]

    rows = re.findall(r"^\| `([a-z -]+)` \| .+ \|$", (ROOT / "docs" / "cli.md").read_text(), re.MULTILINE)

    assert sorted(rows) == sorted(leaves("", cli))


def test_every_log_line_is_in_the_operations_page():
    page = (ROOT / "docs" / "operations.md").read_text()
    lines = {
        name
        for path in SOURCES
        for name in re.findall(r'_log\.(?:info|warning|error|exception)\(\s*"([a-z_.]+)"', path.read_text())
    }

    assert {name for name in lines if f"`{name}`" not in page} == set()


@pytest.mark.slow
def test_collecting_the_fast_tests_imports_neither_spark_nor_what_reads_the_lake():
    code = (
        "import sys, pytest; pytest.main(['--collect-only', '-m', 'not slow', '-p', 'no:xdist']); print(*sys.modules)"
    )
    printed = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, check=True, text=True).stdout
    collected, _, modules = printed.rpartition("\n\n")

    assert "tests/test_house.py" in collected
    assert {"pyspark", "pyarrow", "deltalake", "duckdb", "pandas", "polars"} & set(modules.split()) == set()


def test_uv_trusts_the_certificates_of_the_system():
    printed = subprocess.run(
        ["make", "-pn", "help"], cwd=ROOT, env={"PATH": os.environ["PATH"]}, capture_output=True, check=True
    )

    assert b"\nUV_SYSTEM_CERTS = true\n" in printed.stdout


def test_what_is_not_released_does_not_bear_the_version_of_a_release():
    """Messages tell older processes and data by their version, and operators compare it with what a process reports."""
    changes = (ROOT / "CHANGELOG.md").read_text()
    latest = re.findall(r"^## (.+)$", changes, re.MULTILINE)[0]
    released = re.findall(r"^## (\d\S+)", changes, re.MULTILINE)
    named = re.search(r'^version = "(.+)"$', (ROOT / "pyproject.toml").read_text(), re.MULTILINE)

    assert named is not None
    assert named[1] == __version__
    assert (__version__ in released) == (latest != "Unreleased")


def test_the_package_says_who_made_it_and_its_page_needs_nothing_beside_it():
    built = subprocess.run(
        [sys.executable, "-m", "hatchling", "metadata"], cwd=ROOT, capture_output=True, check=True, text=True
    )
    metadata = json.loads(built.stdout)

    assert {"authors", "classifiers", "keywords", "urls", "license", "readme"} <= {*metadata}
    assert re.findall(r"\]\((?!https://)", metadata["readme"]["text"]) == []
