"""The comparison of two trees: one table, and what changed by more than chance."""

import re
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from bench.report import Samples, shown
from bench.rows import TABLES, Row, reason

_TITLE = "## Compared with "
_COLUMNS = ("what", "before", "after", "after / before", "least to most", "floor", "before / floor", "after / floor")
_RULES = """\
Both were measured in one run, in turns: {repetitions} repetitions at most, of which the second begins with the
newer one. Less is done in each than for the tables above, and the last ones leave parts out when time is short. Figures
are medians. *Least to most* is the ratio of one to the other, repetition by repetition: where all are on the same side
of 1, and the medians 5 % apart, the row says *better* or *worse*. A floor was measured once for both, or by both where
it belongs to a part. What the older one cannot do is *new*.
"""
# A smaller difference is left to chance, even if all repetitions agree.
_CHANGE_LEAST = 0.05


@dataclass(frozen=True)
class Change:
    """One row of both trees."""

    row: Row
    before: Sequence[float]
    after: Sequence[float]

    @property
    def ratio(self) -> float | None:
        """Of the medians; None when there is nothing to compare with."""
        least = statistics.median(self.before) if self.before else 0.0
        return statistics.median(self.after) / least if least else None

    @property
    def ratios(self) -> list[float]:
        """Repetition by repetition, if none is missing."""
        if len(self.before) != len(self.after) or not all(self.before):
            return []
        return [after / before for before, after in zip(self.before, self.after, strict=True)]

    @property
    def verdict(self) -> str:
        """Better, worse, or nothing when the repetitions disagree or the difference is small."""
        if self.ratio is None or len(self.ratios) < 2 or abs(self.ratio - 1) < _CHANGE_LEAST:
            return ""
        if min(self.ratios) > 1:
            return "better" if self.row.is_better_larger else "worse"
        if max(self.ratios) < 1:
            return "worse" if self.row.is_better_larger else "better"
        return ""


@dataclass(frozen=True)
class Comparison:
    """The figures of two trees, and of the floors that were measured once for both."""

    before: Samples
    after: Samples
    shared: Samples

    def section(self, name: str, facts: Mapping[str, str], *, repetitions: int) -> str:
        """The section of docs/benchmarks.md that compares this tree with another one."""
        known = "\n".join(["| | |", "|---|---|", *(f"| {what} | {value} |" for what, value in facts.items())])
        rules = _RULES.format(repetitions=repetitions)
        return "\n".join([f"{_TITLE}{name}\n", f"{known}\n", rules, f"{self._summary()}\n", self.table()])

    def table(self) -> str:
        """Every row that the newer tree has a figure of."""
        lines = []
        for table in TABLES:
            changes = self._changes(table.rows)
            if changes:
                lines.append(f"| **{table.title}** |{' |' * (len(_COLUMNS) - 1)}")
                lines += [self._line(change) for change in changes]
        rule = "|---|" + "---:|" * (len(_COLUMNS) - 1)
        return "\n".join([f"| {' | '.join(_COLUMNS)} |", rule, *lines, ""])

    def _changes(self, rows: Sequence[Row]) -> list[Change]:
        # Peers and floors are no part of the product; a part may measure its own beside it.
        theirs = {name for table in TABLES for row in table.rows for name in (row.floor, *row.peers)}
        own = [
            row for row in rows if row.key in self.after and not row.key.startswith("floor.") and row.key not in theirs
        ]
        return [Change(row, self.before.get(row.key, ()), self.after[row.key]) for row in own]

    def _line(self, change: Change) -> str:
        row, ratio, ratios = change.row, change.ratio, change.ratios
        before = statistics.median(change.before) if change.before else None
        after = statistics.median(change.after)
        floors = [self._floor(row, samples) for samples in (self.before, self.after)]
        cells = (
            row.what,
            f"{shown(before)} {row.unit}".rstrip() if before is not None else "new",
            f"**{shown(after)}** {row.unit}".rstrip(),
            f"{ratio:.2f} {change.verdict}".rstrip() if ratio is not None else "",
            f"{min(ratios):.2f} to {max(ratios):.2f}" if ratios else "",
            shown(floors[1]),
            f"{before / floors[0]:.2f}" if before is not None and floors[0] else "",
            f"{after / floors[1]:.2f}" if floors[1] else "",
        )
        return f"| {' | '.join(cells)} |"

    def _floor(self, row: Row, samples: Samples) -> float | None:
        found = samples.get(row.floor) or self.shared.get(row.floor)
        return statistics.median(found) if found else None

    def _summary(self) -> str:
        changes = [change for table in TABLES for change in self._changes(table.rows)]
        compared = [change for change in changes if change.ratio is not None]
        lines = [f"- {len(compared)} figures were compared, {len(changes) - len(compared)} are new."]
        for verdict in ("worse", "better"):
            found = [change for change in compared if change.verdict == verdict]
            told = (
                "; checks that were added since 0.1.0 are the reasons:"
                if found and verdict == "worse"
                else f": {_named(found)}."
            )
            lines.append(f"- {verdict.capitalize()} in every repetition, by 5 % at least{told}")
            lines += _reasons(found) if verdict == "worse" else []
        return "\n".join(lines)


def _named(changes: Sequence[Change]) -> str:
    return ", ".join(f"`{change.row.key}` {change.ratio:.2f}" for change in changes) or "none"


def _reasons(worse: Sequence[Change]) -> list[str]:
    """The rows that are worse, by why they are; those that nobody has an explanation for come first."""
    by_reason: dict[str, list[Change]] = {}
    for change in worse:
        by_reason.setdefault(reason(change.row.key), []).append(change)
    return [f"  - {why or 'no reason is known'}: {_named(by_reason[why])}." for why in sorted(by_reason)]


def kept(page: str) -> str:
    """The comparison that a page has, or nothing."""
    found = re.search(rf"^{_TITLE}.*", page, re.MULTILINE | re.DOTALL)
    return found[0] if found else ""


def replaced(page: str, section: str) -> str:
    """The page with another comparison, which is its last section."""
    rest = page.removesuffix(kept(page)).rstrip("\n")
    return f"{rest}\n\n{section}" if section else f"{rest}\n"
