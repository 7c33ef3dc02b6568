"""The pages about stages tell the truth."""

import doctest
import re
from pathlib import Path

import pytest

from doubledecker import stages

DOCS = Path(__file__).parents[2] / "docs"
PAGE = DOCS / "stages.md"


@pytest.mark.parametrize("page", [PAGE, DOCS / "coming-from.md"], ids=lambda page: page.name)
def test_every_example_on_the_page_gives_what_it_says(page: Path):
    # The fences of a code block are no part of its output.
    words = page.read_text().replace("```", "")
    example = doctest.DocTestParser().get_doctest(words, {}, page.name, str(page), 0)
    runner = doctest.DocTestRunner(optionflags=doctest.IGNORE_EXCEPTION_DETAIL)

    assert runner.run(example).failed == 0


def test_the_line_of_every_technique_can_be_run():
    rows = re.findall(r"^\| [\w -]+ \| .+ \| `(.+?)`.*\|$", PAGE.read_text(), re.MULTILINE)
    lines = [line.replace(r"\|", "|") for line in rows if "(event" not in line]

    assert len(lines) == 17
    for line in lines:
        assert eval(line, vars(stages).copy()), line  # the page is ours
