"""A file of settings: the environment wins, by any of a setting's names, and what is wrong names the file."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from doubledecker.assembly import settings, settings_file
from doubledecker.errors import SettingInvalid


def _loaded(folder: Path, text: str, **environment: str) -> settings.Settings:
    (folder / settings_file.NAME).write_text(text)
    settings_file.load(environment, folder)
    return settings.read(environment)


def test_each_kind_of_value_is_taken(tmp_path: Path):
    read = _loaded(
        tmp_path,
        'port = 8080\nbody_s_max = 2.5\nprivate_callbacks = true\ncallback_allow = ["10.1.0.0/16", "hooks.internal"]\n',
    )

    assert (read.port, read.body_s_max, read.private_callbacks) == (8080, 2.5, True)
    assert read.callback_allow == "10.1.0.0/16,hooks.internal"


def test_the_environment_wins_by_each_name_of_a_setting(tmp_path: Path):
    text = 'port = 1\nredis_url = "redis://file:1/0"\nnamespace = "file:"\n'

    read = _loaded(tmp_path, text, DOUBLEDECKER_PORT="2", ROUTEMASTER_REDIS_URL="redis://env:1/0")

    assert (read.port, read.redis_url, read.namespace) == (2, "redis://env:1/0", "file:")


def test_a_file_elsewhere_is_named_by_a_variable(tmp_path: Path):
    (tmp_path / "bus.toml").write_text("port = 8080")
    environment = {settings_file.VARIABLE: "bus.toml"}

    settings_file.load(environment, tmp_path)

    assert settings.read(environment).port == 8080


def test_without_a_file_nothing_changes(tmp_path: Path):
    environment: dict[str, str] = {}

    settings_file.load(environment, tmp_path)

    assert environment == {}


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("prot = 1", "did you mean DOUBLEDECKER_PORT?"),
        ('port = "http"', "DOUBLEDECKER_PORT is 'http'; it must be a whole number"),
        ("partitions = 0", "the least is 1"),
        ("[web]\nport = 1", "web is {'port': 1}; it must be text, a number"),
        ("port =", "is not TOML"),
        ('root_key = "\udcff"', "is not TOML"),
    ],
)
def test_what_is_wrong_names_the_file(tmp_path: Path, text: str, says: str):
    path = tmp_path / settings_file.NAME
    path.write_bytes(text.encode(errors="surrogateescape"))

    with pytest.raises(SettingInvalid, match=f"{re.escape(str(path))}.*{re.escape(says)}"):
        settings_file.load({}, tmp_path)


def test_a_file_that_is_named_must_be_there(tmp_path: Path):
    with pytest.raises(SettingInvalid, match=r"cannot read the settings file .*gone\.toml: No such file"):
        settings_file.load({settings_file.VARIABLE: "gone.toml"}, tmp_path)


def test_commands_read_the_file_of_the_working_directory(tmp_path: Path):
    (tmp_path / settings_file.NAME).write_text("partitions = 0")
    command = [sys.executable, "-m", "doubledecker", "web"]

    ended = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=60)

    assert ended.returncode == 1
    assert "doubledecker.toml: DOUBLEDECKER_PARTITIONS is 0; the least is 1" in ended.stderr


def test_help_is_there_beside_a_file_that_cannot_be_used(tmp_path: Path):
    (tmp_path / settings_file.NAME).write_text("port =")
    command = [sys.executable, "-m", "doubledecker", "web", "--help"]

    ended = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=60)

    assert (ended.returncode, ended.stderr) == (0, "")
