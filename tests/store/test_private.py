"""Folders for our user alone: made so, closed when they were open, and left alone when they are not ours."""

import stat
from pathlib import Path

import pytest

from doubledecker.store import machine


def mode(folder: Path) -> int:
    return stat.S_IMODE(folder.stat().st_mode)


def an_open_folder(folder: Path, *names: str, bits: int = 0o755) -> Path:
    folder.mkdir()
    for name in names:
        (folder / name).touch()
    folder.chmod(bits)
    return folder


def test_a_new_folder_is_for_its_owner_alone(tmp_path: Path):
    assert machine.keep_private(tmp_path / "a" / "b", marks=())
    assert mode(tmp_path / "a" / "b") == 0o700


@pytest.mark.parametrize("names", [(), ("mark",), ("mark", "other")])
def test_a_folder_of_ours_that_was_open_is_closed(tmp_path: Path, names: tuple[str, ...]):
    folder = an_open_folder(tmp_path / "data", *names)

    assert machine.keep_private(folder, marks=("mark",))
    assert mode(folder) == 0o700


@pytest.mark.parametrize(("names", "bits"), [(("other",), 0o755), (("mark",), 0o1777)])
def test_a_folder_of_others_is_left_as_it_is_and_said_to_be_open(tmp_path: Path, names: tuple[str, ...], bits: int):
    folder = an_open_folder(tmp_path / "data", *names, bits=bits)

    assert not machine.keep_private(folder, marks=("mark",))
    assert mode(folder) == bits


def test_a_closed_folder_may_hold_anything(tmp_path: Path):
    folder = an_open_folder(tmp_path / "data", "other", bits=0o700)

    assert machine.keep_private(folder, marks=())
