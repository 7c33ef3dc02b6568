"""The bar of long work."""

import pytest

from doubledecker.cli import progress


@pytest.mark.parametrize("is_watched", [True, False])
def test_a_bar_is_drawn_on_a_terminal_alone(
    is_watched: bool, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("TTY_COMPATIBLE", "1" if is_watched else "0")
    monkeypatch.setenv("COLUMNS", "100")
    with progress.bar() as show:
        show("redrive", 3, 10)
    drawn = capsys.readouterr().err

    assert ("redrive" in drawn, "3/10" in drawn) == (is_watched, is_watched)
