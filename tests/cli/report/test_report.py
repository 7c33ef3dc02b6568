"""`doubledecker report` as a user runs it: on measures in a folder, without a bus and without Spark."""

import json
import re
from datetime import UTC, datetime, timedelta
from html.parser import HTMLParser
from pathlib import Path
from xml.etree import ElementTree as ET

import pyarrow as pa
import pytest

from cli.commands import run
from doubledecker.cli.report import charts
from doubledecker.cli.report.charts import ReportCharts
from doubledecker.model.summary import Moment, Summary
from doubledecker.pipeline.lake import files
from doubledecker.pipeline.metrics import measures, sketches

pytestmark = pytest.mark.slow

NOON = datetime(2026, 1, 15, 12, tzinfo=UTC)
DAY = ("--from", "2026-01-15T00:00:00Z", "--to", "2026-01-16T00:00:00Z")
# Names that would break a page that does not escape them.
ODD = "a<b>&\"c'"


def add(root: Path, name: str, *rows: dict[str, object]) -> None:
    """A part of a measure, in minutes and in hours, as a round leaves it."""
    measure, table = measures.TABLES[name], measures.table_of(str(root), name)
    whole = []
    for row in rows:
        hour = row["at"].replace(minute=0)
        whole += [{**dict.fromkeys(measure.sums, 0), **row, "span": "minute"}]
        whole += [{**dict.fromkeys(measure.sums, 0), **row, "span": "hour", "at": hour}]
    table.commit(table.open(), files.write(table, [pa.RecordBatch.from_pylist(whole, schema=measure.schema)]), {})


@pytest.fixture
def lake(tmp_path: Path) -> Path:
    """Two hours of traffic: two topics, two tenants, two subscribers, a queue."""
    root = tmp_path / "lake"
    for minute in (0, 1, 70):
        at = NOON + timedelta(minutes=minute)
        flows = [("orders", "acme", 60), ("orders", ODD, 20), ("users", "acme", 10)]
        add(
            root,
            "events",
            *(
                {"at": at, "topic": topic, "tenant": tenant, "events": n, "bytes": n * 100, "keys": list(range(n))}
                for topic, tenant, n in flows
            ),
        )
        tried = [("billing", 9, 1), (ODD, 5, 0)]
        add(
            root,
            "attempts",
            *(
                {
                    "at": at,
                    "subscriber": name,
                    "attempts": good + bad,
                    "delivered": good,
                    "refused": bad,
                    "retries": bad,
                }
                for name, good, bad in tried
            ),
        )
        counts = [("took", 8, 5), ("took", sketches.bucket(900), 1), ("age", sketches.bucket(4000), 5)]
        told = [{"subscriber": "billing", "kind": kind, "bucket": bucket, "count": n} for kind, bucket, n in counts]
        add(root, "durations", *({"at": at, **row} for row in told))
        shares = [("x", 30), ("y", 10)]
        add(root, "settlements", *({"at": at, "queue": "mail", "tenant": t, "pulled": n} for t, n in shares))
        seen = {"at": at, "queue": "mail", "observed_ms": 60_000, "weighted_ms": 60_000}
        waits = [("", 0), ("x", 3_600_000), ("y", 3_600_000)]
        add(root, "waiting", *({**seen, "tenant": t, "waited_ms": n} for t, n in waits))
    return root


def test_it_prints_totals_largest_failures_fairness_and_the_hours(lake: Path):
    answer = run("report", "--lake", str(lake), *DAY)

    lines = [line.split("\t") for line in answer.stdout.splitlines()]
    assert answer.returncode == 0, answer.stderr
    assert ["events", "270"] in lines
    assert ["tenants", "2"] in lines
    assert ["keys", "60"] in lines
    assert ["attempts took", "p50 8 ms, p95 900 ms, p99 900 ms"] in lines
    assert ["accepted to delivered", "p50 4.0 s, p95 4.0 s, p99 4.0 s"] in lines
    assert ["orders", "240", "█" * 30] in lines
    assert ["billing", "3 of 30 (refused 3)", "█" * 30] in lines
    assert ["Served by queue mail, share of each tenant (Jain index against demand 0.800)", "", ""] in lines
    assert ["x", "75.0%, waited 2 min 0 s", "█" * 30] in lines
    assert ["y", "25.0%, waited 6 min 0 s", "█" * 10] in lines
    [day] = [line for line in lines if line[0] == "2026-01-15"]
    assert day[1:] == [" " * 24 + "██▒▒" + " " * 20, "270"]


def test_it_goes_by_minutes_when_the_time_is_short_and_by_hours_when_it_is_long(lake: Path):
    long = json.loads(run("report", "--lake", str(lake), *DAY, "--json").stdout)
    short = json.loads(
        run("report", "--lake", str(lake), "--from", "2026-01-15T12:00", "--to", "2026-01-15T13:30", "--json").stdout
    )

    assert (long["span"], [moment["events"] for moment in long["moments"]]) == ("hour", [180, 90])
    assert (short["span"], [moment["events"] for moment in short["moments"]]) == ("minute", [90, 90, 90])
    assert long["total"]["events"] == short["total"]["events"] == 270
    assert long["queues"][0]["jains"] == [0.8, 0.8]


def test_a_young_bus_is_shown_by_minutes(tmp_path: Path):
    now = datetime.now(UTC).replace(second=0, microsecond=0)
    for minutes, count in ((20, 5), (3, 7)):
        at = now - timedelta(minutes=minutes)
        row = {"topic": "orders", "tenant": "acme", "events": count, "bytes": 1, "keys": []}
        add(tmp_path, "events", {"at": at, **row})
    young = json.loads(run("report", "--lake", str(tmp_path), "--json").stdout)
    asked = json.loads(run("report", "--lake", str(tmp_path), "--json", "--from", f"{now - timedelta(days=1)}").stdout)
    at = now - timedelta(hours=20)
    add(tmp_path, "events", {"at": at, "topic": "orders", "tenant": "acme", "events": 1, "bytes": 1, "keys": []})
    old = json.loads(run("report", "--lake", str(tmp_path), "--json").stdout)

    assert (young["span"], [moment["events"] for moment in young["moments"]]) == ("minute", [5, 7])
    assert young["since"] == int((now - timedelta(minutes=20)).timestamp() * 1000)
    assert (asked["span"], old["span"]) == ("hour", "hour")


class Page(HTMLParser):
    """Checks that every element is closed in its turn, and gathers what the page would load and what it is made of."""

    _ALONE = ("meta", "!doctype")

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.loads: list[str] = []
        self.seen: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append(tag)
        self.loads += [value or "" for name, value in attrs if name in {"src", "href", "action", "srcset", "data"}]
        if tag not in self._ALONE:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        if tag not in self._ALONE:
            self.open.pop()

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def test_the_page_is_whole_by_itself(lake: Path, tmp_path: Path):
    file = tmp_path / "report.html"
    answer = run("report", "--lake", str(lake), *DAY, "--html", str(file))
    text = file.read_text()
    page = Page()
    page.feed(text)
    drawings = [ET.fromstring(found) for found in re.findall(r"<svg.*?</svg>", text, re.DOTALL)]

    assert (answer.returncode, answer.stdout, answer.stderr) == (0, "", f"written to {file}\n")
    assert page.open == []
    assert page.loads == []
    assert not {"script", "link", "img", "iframe"} & set(page.seen)
    assert "url(" not in text
    assert set(re.findall(r"https?://[^\"]+", text)) == {"http://www.w3.org/2000/svg"}
    assert "prefers-color-scheme: dark" in text
    titles = [drawing.findtext("{http://www.w3.org/2000/svg}title") for drawing in drawings]
    assert all(drawing.get("role") == "img" for drawing in drawings)
    assert titles == [
        "By hour",
        "Events by hour of the day (UTC)",
        "Events by topic",
        "Events by tenant",
        "Failed attempts by subscriber",
        "Served by queue mail, share of each tenant (Jain index against demand 0.800)",
    ]
    assert ODD not in text
    assert "a&lt;b&gt;&amp;&quot;c&#x27;" in text
    assert "2026-01-15 12:00, 180 events" in text


def test_lines_over_time_have_a_point_for_every_moment_and_a_gap_where_nothing_was(lake: Path, tmp_path: Path):
    file = tmp_path / "report.html"
    run("report", "--lake", str(lake), *DAY, "--html", str(file))
    text = file.read_text()

    first = re.search(r'<polyline class="line"[^>]*points="([^"]*)"', text)[1]
    assert len(first.split()) == 24
    for word in (
        "per second",
        "attempts took, ms",
        "from accepted to delivered, ms",
        "fairness by queue (Jain index against demand)",
    ):
        assert f">{word}</text>" in text


def test_a_moment_that_is_still_being_counted_is_no_fall():
    moments = [Moment(at * 60_000, events=60) for at in (0, 1, 2)]
    summary = Summary("minute", 0, 5 * 60_000, 0, Moment(0), moments, [], [], [], [])

    open_, whole = (charts.lines(ReportCharts(summary, {}, is_open=is_open)) for is_open in (True, False))

    assert open_.panels[0].lines[0].ys == (1.0, 1.0, None, None, None)
    assert whole.panels[0].lines[0].ys == (1.0, 1.0, 1.0, 0.0, 0.0)


@pytest.mark.parametrize(
    ("words", "code", "told"),
    [
        (["--from", "yesterday"], 4, "the time is 'yesterday'; write it like 2026-11-15T11:00:00Z"),
        (["--from", "2026-01-16", "--to", "2026-01-15"], 4, "--from must be the earlier"),
        (["--from", "2025-01-01", "--to", "2025-01-02"], 1, "there are from 2026-01-15T12:00:00Z to 2026-01-15T13:10"),
        ([*DAY, "--html", "/nowhere/report.html"], 1, "cannot write /nowhere/report.html: there is no such folder"),
        ([*DAY, "--html", "/"], 1, "cannot write /: it is a folder"),
        ([*DAY, "--html", "/proc/report.html"], 1, "cannot write /proc/report.html"),
    ],
)
def test_what_cannot_be_reported_is_one_line(lake: Path, words: list[str], code: int, told: str):
    answer = run("report", "--lake", str(lake), *words)

    assert (answer.returncode, answer.stdout) == (code, "")
    assert answer.stderr.startswith("doubledecker: ")
    assert answer.stderr.count("\n") == 1
    assert told in answer.stderr


def test_without_a_lake_or_measures_it_says_how_to_get_them(tmp_path: Path):
    none = run("report", "--lake", str(tmp_path / "none"))
    empty = run("report", "--lake", str(tmp_path))

    assert (none.returncode, empty.returncode) == (1, 1)
    assert f"there is no lake at {tmp_path / 'none'}" in none.stderr
    assert "nothing has been measured yet" in empty.stderr
    assert "doubledecker pipeline run" in empty.stderr


def test_many_days_are_shown_by_weekday(lake: Path):
    answer = run("report", "--lake", str(lake), "--from", "2026-01-01", "--to", "2026-05-30")

    assert "\nThursday\t" in answer.stdout
    assert "2026-01-15\t" not in answer.stdout
