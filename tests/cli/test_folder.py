"""The data folder and the lake: which folders `up` takes for its own and closes to others, and what can be read."""

import stat
from pathlib import Path

import pytest

from cli.commands import run
from doubledecker.cli import folder


def an_open_folder(path: Path, *names: str) -> Path:
    path.mkdir()
    for name in names:
        (path / name).touch()
    path.chmod(0o755)
    return path


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@pytest.mark.parametrize(
    "names", [("sources.toml",), ("spark.conf",), ("lake",), ("sources.toml", "spark.conf", "lake"), ("root.key", "x")]
)
def test_an_open_folder_is_closed_at_the_first_up_if_it_holds_what_was_prepared_for_it(
    tmp_path: Path, names: tuple[str, ...]
):
    data = an_open_folder(tmp_path / "data", *names)
    folder.prepare(data)

    assert mode(data) == 0o700


def test_a_bus_of_the_demo_is_found_where_no_other_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    for name in (".data", ".demo"):
        Path(name).mkdir()
    alone = folder.default()
    Path(".demo", folder.REDIS_URL).touch()
    of_demo = folder.default()
    Path(".data", folder.REDIS_URL).touch()

    assert (alone, of_demo, folder.default()) == (Path(".data"), Path(".demo"), Path(".data"))


# Nothing is dialled; if something were, it would find nobody there.
NOWHERE = {"AWS_EC2_METADATA_DISABLED": "true", "AWS_ENDPOINT_URL": "http://127.0.0.1:1", "AWS_REGION": "none"}


@pytest.mark.parametrize("command", ["events", "report"])
def test_a_lake_in_an_object_store_is_refused_before_anything_is_dialled(command: str):
    told = run(command, "--lake", "s3://bucket/lake", **NOWHERE)

    assert (told.returncode, told.stdout) == (1, "")
    assert told.stderr.startswith("doubledecker: the lake s3://bucket/lake can only be landed in: ")
    assert told.stderr.count("\n") == 1


def test_a_home_that_has_a_lake_too_is_left_as_it_is(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    home = an_open_folder(tmp_path / "home", "lake", "letters")
    folder.prepare(home)

    assert mode(home) == 0o755
    assert f"Others can enter {home}" in capsys.readouterr().err
