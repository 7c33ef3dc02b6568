"""What the doctor finds: one line a check, with its state and what to do about it."""

from dataclasses import dataclass
from typing import Literal

FindingState = Literal["ok", "warning", "failed"]


@dataclass(frozen=True)
class Finding:
    """One check: what was seen, and how to mend it unless it is well."""

    check: str
    state: FindingState
    found: str
    remedy: str = ""


def ok(check: str, found: str) -> Finding:
    return Finding(check, "ok", found)


def warning(check: str, found: str, remedy: str) -> Finding:
    """Something works, but not as it should, or only part of the product does."""
    return Finding(check, "warning", found, remedy)


def failed(check: str, found: str, remedy: str) -> Finding:
    """A bus would not work with this."""
    return Finding(check, "failed", found, remedy)
