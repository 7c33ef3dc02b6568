"""A user's program with our types passes mypy --strict and pyright: we ship `py.typed`, and mean it."""

import json
import subprocess
import sys
from importlib import resources
from pathlib import Path

import pytest

PROGRAM = Path(__file__).parent / "user_program.py"


def test_the_package_says_that_it_has_types():
    assert resources.files("doubledecker").joinpath("py.typed").is_file()


@pytest.mark.slow
def test_a_users_program_passes_mypy_strict(tmp_path: Path):
    found = _checked(
        ["mypy", "--strict", "--warn-unused-ignores", "--cache-dir", str(tmp_path), str(PROGRAM)], tmp_path
    )

    assert found.returncode == 0, found.stdout + found.stderr


@pytest.mark.slow
def test_a_users_program_passes_pyright(tmp_path: Path):
    # Pyright's own strictest mode; what basedpyright adds to it is left out.
    rules = {"typeCheckingMode": "strict", "reportUnnecessaryTypeIgnoreComment": True, "include": [str(PROGRAM)]}
    rules |= {"venvPath": str(Path(sys.prefix).parent), "venv": Path(sys.prefix).name}
    (tmp_path / "pyrightconfig.json").write_text(json.dumps(rules))
    found = _checked(["basedpyright", "--project", str(tmp_path)], tmp_path)

    assert found.returncode == 0, found.stdout + found.stderr


def _checked(command: list[str], folder: Path) -> "subprocess.CompletedProcess[str]":
    """Run a checker somewhere else than in our tree, whose settings are not the user's."""
    return subprocess.run(
        [sys.executable, "-m", *command], cwd=folder, capture_output=True, text=True, timeout=240, check=False
    )
