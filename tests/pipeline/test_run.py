"""The pipeline's process, before Spark starts."""

import stat
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from doubledecker.pipeline import run

pytestmark = pytest.mark.slow


def mode(folder: Path) -> int:
    return stat.S_IMODE(folder.stat().st_mode)


def test_a_lake_that_others_could_read_is_closed(tmp_path: Path):
    old = tmp_path / "lake"
    (old / "events").mkdir(parents=True)
    old.chmod(0o755)
    for root in (old, tmp_path / "new"):
        run._close(str(root))

    assert (mode(old), mode(tmp_path / "new")) == (0o700, 0o700)


def test_a_folder_that_holds_other_things_than_a_lake_is_only_told_of(tmp_path: Path):
    (tmp_path / "letters").touch()
    tmp_path.chmod(0o755)
    with capture_logs() as logs:
        run._close(str(tmp_path))

    assert mode(tmp_path) == 0o755
    assert [(line["event"], line["lake"]) for line in logs] == [("lake.exposed", str(tmp_path))]
