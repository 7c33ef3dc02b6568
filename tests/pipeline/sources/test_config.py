"""A sources.toml is read before Spark starts, and what is wrong in it is told so that it can be mended."""

from pathlib import Path

import pytest

from cli.commands import run
from doubledecker.errors import SettingInvalid
from doubledecker.pipeline.sources import config

pytestmark = pytest.mark.slow

GOOD = """
checkpoints = "kept"

[sources.orders]
format = "json"
path = "inbox"
schema = "number long"
publisher = "shop"
options = { multiLine = true, maxFilesPerTrigger = 5 }
fields = { topic = "'orders'", type = "'create'" }

[sources.rows]
format = "jdbc"
publisher = "shop"
mode = "batch"
bookmark = "id"
interval_s = 30
options = { url = "jdbc:postgresql://db/shop", dbtable = "orders" }
sql = "select 'orders' as topic, kind as type from rows"
"""


def a_file(folder: Path, text: str) -> Path:
    path = folder / "sources.toml"
    path.write_text(text)
    return path


def test_what_a_file_names_is_beside_it(tmp_path: Path):
    found = config.read(a_file(tmp_path, GOOD))
    orders, rows = found.all

    assert found.checkpoints == str(tmp_path / "kept")
    assert orders.path == str(tmp_path / "inbox")
    assert orders.options == {"multiLine": "true", "maxFilesPerTrigger": "5"}
    assert (rows.mode, rows.bookmark, rows.interval_s, rows.path) == ("batch", "id", 30, "")


@pytest.mark.parametrize(
    ("before", "after", "told"),
    [
        ('format = "json"', 'format = "json', "is not TOML: "),
        ("checkpoints", "checkpoint", "there is 'checkpoint'; there may be [sources.NAME] tables and checkpoints"),
        ('format = "json"', "", "source 'orders': there is no format; it is json, csv, parquet, or any other"),
        ('path = "inbox"', "", "source 'orders': there is no path; json is read from the files in a folder"),
        ('path = "inbox"', "path = 5", "source 'orders': path is 5; it must be text"),
        ('path = "inbox"', 'pth = "inbox"', "source 'orders': there is 'pth'; there may be bookmark, fields, format"),
        ('schema = "number long"', "", "there is no schema; json needs one, like "),
        (
            "multiLine = true",
            'mode = "FAILFAST"',
            "options has 'mode'; rows that cannot be read are always quarantined",
        ),
        ("multiLine = true", "multiLine = [1]", "options.multiLine is [1]; it must be text, a number, true or false"),
        ("topic = ", "tpic = ", "fields has 'tpic'; an event has topic, type, url"),
        (", type = \"'create'\"", "", "fields has no type; an event must have a topic and a type"),
        ("fields = ", 'sql = "select 1"\nfields = ', "there is both fields and sql; one of them"),
        ('mode = "batch"', "", "source 'rows': bookmark and interval_s are for mode 'batch'"),
        ('mode = "batch"', 'mode = "often"', "mode is 'often'; it must be one of stream, batch"),
        (
            'bookmark = "id"',
            "",
            "source 'rows': there is no bookmark; with mode 'batch' it is the column that only grows",
        ),
        ("interval_s = 30", "interval_s = true", "interval_s is True; it must be a number"),
        ('format = "jdbc"', 'format = "orc"\npath = "x"', "mode is 'batch', but files are streamed"),
        ("[sources.rows]", '[sources."Rows of"]', "source 'Rows of': a name is of a-z, 0-9, _ and -"),
    ],
)
def test_what_is_wrong_is_told_with_the_file_the_source_and_what_is_allowed(
    tmp_path: Path, before: str, after: str, told: str
):
    text = GOOD.replace(before, after, 1)
    assert text != GOOD
    path = a_file(tmp_path, text)

    with pytest.raises(SettingInvalid) as raised:
        config.read(path)

    assert str(path) in str(raised.value)
    assert told in str(raised.value)


def test_a_source_that_is_no_table_is_told(tmp_path: Path):
    with pytest.raises(SettingInvalid, match="sources must be tables; write each as"):
        config.read(a_file(tmp_path, "[sources]\norders = 3\n"))


def test_the_command_line_shows_sources_or_what_is_wrong_with_them(tmp_path: Path):
    path = a_file(tmp_path, GOOD)
    shown = run("pipeline", "sources", "--data", str(tmp_path))
    none = run("pipeline", "sources", "--data", str(tmp_path / "other"))
    path.write_text(GOOD.replace("json", "jsn", 1).replace("fields = ", "felds = "))
    wrong = run("pipeline", "sources", "--data", str(tmp_path))
    missing = run("pipeline", "sources", DOUBLEDECKER_SOURCES=str(tmp_path / "none.toml"))

    assert shown.returncode == 0, shown.stderr
    assert "orders" in shown.stdout
    assert "jdbc" in shown.stdout
    assert "There are no sources" in none.stderr
    assert wrong.returncode == 1
    assert wrong.stderr.startswith(f"doubledecker: {path}: source 'orders': there is 'felds'; there may be ")
    assert missing.stderr.endswith("none.toml: No such file or directory\n")
