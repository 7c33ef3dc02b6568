"""The site of the documents: it builds without a warning, every link of it leads somewhere, and no page is missing."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
CONFIG = (ROOT / "zensical.toml").read_text()


def test_the_site_builds_without_a_warning_and_loads_nothing_from_elsewhere(tmp_path: Path):
    [pages] = re.findall(r"^PAGES := (.+)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    (tmp_path / "build" / "pages").mkdir(parents=True)
    for name in pages.split():
        copy = shutil.copytree if (ROOT / name).is_dir() else shutil.copy
        copy(ROOT / name, tmp_path / "build" / "pages" / name)
    shutil.copy(ROOT / "zensical.toml", tmp_path)
    command = [Path(sys.executable).with_name("zensical"), "build", "--strict"]

    built = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=120)

    assert built.returncode == 0, re.sub(r"\x1b\[[0-9;]*m", "", built.stderr)
    site = list((tmp_path / "build" / "site").rglob("*.html"))
    loaded = r"<(?:script|link|img|iframe)[^>]+(?:src|href)=\"?(https?://[^\" >]+)"
    assert len(site) > 40
    assert {url for page in site for url in re.findall(loaded, page.read_text())} == set()


def test_every_page_is_in_the_navigation():
    listed = set(re.findall(r'"(docs/[\w-]+\.md)"', CONFIG))
    # What an index of packages shows, which the README says better.
    apart = {"docs/package.md"}

    assert {str(path.relative_to(ROOT)) for path in (ROOT / "docs").glob("*.md")} - apart == listed
