"""Drawings of a chain: every stage stands inside the one above it.

    event
    ▼ retry          attempts=3
    ▼ bulkhead       workers=32, queue=Fifo(size_max=100)
    ▼ timeout        limit_s=2.0
    ● the function

A branch is indented below the stage that it belongs to.
"""

from collections.abc import Iterator, Sequence
from dataclasses import MISSING, Field, dataclass, fields
from html import escape

from doubledecker.stages.linking import named
from doubledecker.stages.stage import Stage

_ROW_PX = 44
_INDENT_PX = 36
_WIDTH_PX = 640
_STYLE = "font-family:ui-monospace,monospace;font-size:13px"


@dataclass(frozen=True)
class DrawnRow:
    """One line of a drawing: how deep in branches, what stands there, and how it is set."""

    depth: int
    mark: str
    name: str
    settings: str = ""


def text(stages: Sequence[Stage]) -> str:
    """One line a stage; branches are indented."""
    rows = _rows(stages)
    width = max(len(row.name) + 2 * row.depth for row in rows) + 2
    lines = [f"{'  ' * row.depth}{row.mark} {row.name:{width - 2 * row.depth}}{row.settings}".rstrip() for row in rows]
    return "\n".join(["event", *lines])


def svg(stages: Sequence[Stage]) -> str:
    """A box a stage, arrows inwards; branches are indented."""
    rows = _rows(stages)
    height_px = _ROW_PX * len(rows) + 10
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH_PX} {height_px}" style="{_STYLE}">',
        *(_box(row, number) for number, row in enumerate(rows)),
        "</svg>",
    ]
    return "\n".join(parts)


def _rows(stages: Sequence[Stage]) -> list[DrawnRow]:
    rows = list(_inside(stages, 0))
    if not (stages and stages[-1].is_end):
        rows.append(DrawnRow(0, "●", "the function"))
    return rows


def _inside(stages: Sequence[Stage], depth: int) -> Iterator[DrawnRow]:
    for stage in stages:
        yield DrawnRow(depth, "●" if stage.is_end else "▼", named(stage), _settings(stage))
        for name, branch in stage.branches.items():
            yield DrawnRow(depth + 1, "├", name)
            yield from _inside(branch.stages, depth + 2)


def _settings(stage: Stage) -> str:
    """What differs from the defaults."""
    said = {
        field.name: getattr(stage, field.name)
        for field in fields(stage)
        if field.init and field.name != "name" and getattr(stage, field.name) != _default(field)
    }
    hidden = set(stage.branches) | {"chain", "routes", "otherwise"}
    return ", ".join(f"{name}={_short(value)}" for name, value in said.items() if name not in hidden)


def _default(field: "Field[object]") -> object:
    if field.default_factory is not MISSING:
        return field.default_factory()
    return field.default


def _short(value: object) -> str:
    if isinstance(value, type):
        return value.__name__
    if isinstance(value, tuple):
        return "(" + ", ".join(_short(item) for item in value) + ")"
    return getattr(value, "__name__", None) or repr(value)


def _box(row: DrawnRow, number: int) -> str:
    x, y = 10 + _INDENT_PX * row.depth, 10 + _ROW_PX * number
    label = f'<tspan font-weight="bold">{escape(row.name)}</tspan> {escape(row.settings)}'
    words = f'<text x="{x + 12}" y="{y + 20}">{label}</text>'
    if row.mark == "├":
        return words
    box = f'<rect x="{x}" y="{y}" width="{_WIDTH_PX - x - 10}" height="30" rx="6" fill="none" stroke="currentColor"/>'
    arrow = f'<path d="M{x + 20} {y - 12}v10m-4-4l4 4l4-4" fill="none" stroke="currentColor"/>' if number else ""
    return box + arrow + words
