"""How numbers, ages and times are written on pages."""

import math
from dataclasses import dataclass
from datetime import UTC, datetime

import msgspec

_MS, _MINUTE_S, _HOUR_S, _DAY_S = 1000, 60, 3600, 86_400
_UNITS = (("s", 1, _MINUTE_S), ("min", _MINUTE_S, _HOUR_S), ("h", _HOUR_S, _DAY_S))
_KIB = 1024
_FEW = 10
_THOUSAND = 1000
# Where there is no number to show.
NOTHING = "\N{EN DASH}"


@dataclass(frozen=True)
class Figure:
    """A number and the unit beside it."""

    value: str
    unit: str = ""

    def __str__(self) -> str:
        return f"{self.value} {self.unit}".strip()


def count(value: float) -> str:
    """A whole number, with commas."""
    return f"{value:,.0f}"


def rate(per_second: float | None) -> str:
    """So many a second; small ones with a decimal."""
    if per_second is None:
        return NOTHING
    return f"{per_second:.1f}" if 0 < per_second < _FEW else f"{per_second:,.0f}"


def duration(ms: float | None) -> Figure:
    """A span of time, to two digits or so."""
    if ms is None or math.isinf(ms):
        return Figure(NOTHING) if ms is None else Figure("> 5", "min")
    if ms < _MS:
        return Figure(f"{ms:.1f}" if 0 < ms < _FEW else f"{ms:.0f}", "ms")
    seconds = ms / _MS
    for unit, length_s, next_s in _UNITS:
        if seconds < next_s:
            amount = seconds / length_s
            return Figure(f"{amount:.1f}" if amount < _FEW else f"{amount:.0f}", unit)
    return Figure(f"{seconds / _DAY_S:.0f}", "d")


def axis_duration(ms: float) -> str:
    """A round span of time as a mark of an axis."""
    if ms == 0:
        return "0"
    return f"{ms:g} ms" if ms < _MS else f"{ms / _MS:g} s"


def size(amount: float) -> Figure:
    """Bytes, in the unit that keeps them short."""
    for unit in ("B", "KiB", "MiB"):
        if amount < _KIB:
            return Figure(f"{amount:.0f}" if unit == "B" else f"{amount:.1f}", unit)
        amount /= _KIB
    return Figure(f"{amount:.1f}", "GiB")


def short(value: float) -> str:
    """A number in few characters: 554.4k."""
    for unit in ("", "k", "M"):
        if value < _THOUSAND:
            return f"{value:.0f}" if not unit else f"{value:.1f}{unit}"
        value /= _THOUSAND
    return f"{value:.1f}G"


def moment(at_ms: int) -> str:
    """A point in time, the same for everyone."""
    return datetime.fromtimestamp(at_ms / _MS, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def percent(share: float) -> str:
    return f"{share * 100:.1f} %"


def pretty(value: object) -> str:
    """JSON over several lines, as text."""
    return over_lines(msgspec.json.encode(value))


def over_lines(json: bytes) -> str:
    """The same of what is JSON already; its numbers stay as they were written."""
    return msgspec.json.format(json, indent=2).decode()
