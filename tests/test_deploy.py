"""What is under deploy/, the Dockerfile and compose.yaml: checked by the linters of each, and against the product."""

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any

import click
import pytest
import yaml
from click.testing import CliRunner

from doubledecker.assembly import settings_file
from doubledecker.assembly.settings import PREFIX, Settings
from doubledecker.cli import cli

ROOT = Path(__file__).parents[1]
DEPLOY = ROOT / "deploy"
MANIFESTS = sorted((DEPLOY / "kubernetes").glob("[!k]*.yaml"))
UNITS = sorted((DEPLOY / "systemd").glob("*.service"))
ALERTS = DEPLOY / "prometheus" / "alerts.yaml"
GRAFANA = DEPLOY / "grafana" / "doubledecker.json"
SETTINGS = {PREFIX + field.name.upper() for field in fields(Settings)} | {settings_file.VARIABLE}


def documents(path: Path) -> list[dict[str, Any]]:
    return list(yaml.safe_load_all(path.read_text()))


def linted(command: str, *arguments: object) -> subprocess.CompletedProcess[str]:
    path = Path(sys.executable).with_name(command)
    return subprocess.run([path, *map(str, arguments)], capture_output=True, text=True, check=False, timeout=60)


@pytest.mark.parametrize(
    ("linter", "arguments"),
    [
        ("hadolint", ["Dockerfile"]),
        ("check-jsonschema", ["--builtin-schema", "vendor.compose-spec", "compose.yaml"]),
        *(("kubernetes-validate", ["--strict", str(path.relative_to(ROOT))]) for path in MANIFESTS),
    ],
)
def test_linters_find_nothing(linter: str, arguments: list[str]):
    ended = linted(linter, *(ROOT / each if (ROOT / each).exists() else each for each in arguments))

    assert ended.returncode == 0, ended.stdout + ended.stderr


@pytest.mark.skipif(not shutil.which("systemd-analyze"), reason="systemd is not installed")
@pytest.mark.parametrize("unit", UNITS, ids=lambda path: path.name)
def test_systemd_takes_the_units(unit: Path, tmp_path: Path):
    path = tmp_path / unit.name.replace("@", "@web")
    path.write_text(unit.read_text().replace("/opt/doubledecker/bin/doubledecker", "/bin/true"))
    command = ["systemd-analyze", "verify", "--man=no", path]

    ended = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)

    assert [line for line in ended.stderr.splitlines() if unit.stem.partition("@")[0] in line] == []


@pytest.mark.skipif(not shutil.which("promtool"), reason="promtool is not installed")
def test_each_alert_fires_when_it_should():
    command = ["promtool", "test", "rules", str(DEPLOY / "prometheus" / "alerts.test.yaml")]

    ended = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)

    assert ended.returncode == 0, ended.stdout + ended.stderr


def test_every_metric_that_alerts_and_dashboards_name_exists():
    table = (ROOT / "docs" / "operations.md").read_text().partition("## Telemetry\n")[2].partition("\n## ")[0]
    exist = set(re.findall(r"`(doubledecker_[a-z_]+)", table))
    texts = [ALERTS.read_text(), GRAFANA.read_text()]
    named = {name for text in texts for name in re.findall(r"doubledecker_[a-z_]+(?=[{)\[ >]|$)", text)}

    assert len(named) > 15
    assert {name.removesuffix("_bucket") for name in named} - exist == set()


def test_every_alert_has_its_section_in_the_runbook():
    rules = [rule for group in documents(ALERTS)[0]["groups"] for rule in group["rules"]]
    page = (ROOT / "docs" / "runbook.md").read_text()
    sections = {
        re.sub(r"[^a-z ]", "", line.lower()).replace(" ", "-") for line in re.findall(r"^## (.+)$", page, re.MULTILINE)
    }

    assert {rule["annotations"]["runbook"].partition("#")[2] for rule in rules} - sections == set()


def test_panels_do_not_overlap():
    taken: set[tuple[int, int]] = set()
    for panel in json.loads(GRAFANA.read_text())["panels"]:
        at = panel["gridPos"]
        cells = {(x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])}
        assert not taken & cells, panel["title"]
        assert at["x"] + at["w"] <= 24
        taken |= cells


def test_every_setting_that_is_set_exists():
    texts = [(ROOT / "Dockerfile").read_text(), (ROOT / "compose.yaml").read_text()]
    texts += [path.read_text() for path in (*MANIFESTS, *UNITS)]
    named = {name for text in texts for name in re.findall(rf"\b{PREFIX}[A-Z_]+\b", text)}

    assert len(named) > 5
    assert named - SETTINGS == set()


def test_the_file_of_settings_is_valid(tmp_path: Path):
    environment: dict[str, str] = {}
    (tmp_path / settings_file.NAME).write_text((DEPLOY / "systemd" / "doubledecker.toml").read_text())

    settings_file.load(environment, tmp_path)

    assert environment["DOUBLEDECKER_WEB_PROCESSES"] == "0"


def commands() -> Iterator[list[str]]:
    """What containers and units run."""
    for service in documents(ROOT / "compose.yaml")[0]["services"].values():
        if "build" in service:
            yield service.get("command", ["web"])
    for manifest in MANIFESTS:
        for document in documents(manifest):
            for container in document.get("spec", {}).get("template", {}).get("spec", {}).get("containers", []):
                if "doubledecker" in container["image"]:
                    yield container["args"]
    for unit in UNITS:
        [line] = re.findall(r"^ExecStart=\S+/doubledecker (.+)$", unit.read_text(), re.MULTILINE)
        yield line.replace("%i", "worker").split()


def test_every_command_that_is_run_exists():
    run = list(commands())

    assert len(run) > 6
    for arguments in run:
        assert CliRunner().invoke(cli, [*arguments, "--help"]).exit_code == 0, arguments


def test_what_the_images_copy_is_not_ignored():
    kept = {line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")}
    copied = re.findall(r"^COPY (?!--from)(.+) \S+$", (ROOT / "Dockerfile").read_text(), re.MULTILINE)

    named = {each for line in copied for each in line.split()}
    assert {each for each in named if each not in kept and each.split("/")[0] not in kept} == set()


@pytest.mark.parametrize("page", ["runbook.md", "production.md"])
def test_every_command_and_option_that_a_page_names_exists(page: str):
    run = re.findall(r"`doubledecker ([a-z][^`]*)`", (ROOT / "docs" / page).read_text())

    assert len(run) > 2
    for line in run:
        command, words = cli, line.split()
        while words and isinstance(command, click.Group):
            assert words[0] in command.commands, line
            command = command.commands[words.pop(0)]
        known = {option for each in command.params for option in each.opts}
        assert {word for word in words if word.startswith("--")} - known == set(), line
