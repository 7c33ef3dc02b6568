"""The style sheet, the script and the icon of the dashboard; a browser keeps each until its content changes."""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources

ROOT = "/dashboard/assets/"
_TYPES = {"css": "text/css; charset=utf-8", "js": "text/javascript; charset=utf-8", "svg": "image/svg+xml"}


@dataclass(frozen=True)
class Asset:
    content: bytes
    media_type: str
    version: str


@cache
def known() -> Mapping[str, Asset]:
    """All there are, by name."""
    files = resources.files("doubledecker.dashboard").joinpath("assets").iterdir()
    return {file.name: _asset(file.name, file.read_bytes()) for file in files if _kind(file.name) in _TYPES}


def url(name: str) -> str:
    """Where one is, in this version."""
    return f"{ROOT}{name}?v={known()[name].version}"


def _asset(name: str, content: bytes) -> Asset:
    return Asset(content, _TYPES[_kind(name)], hashlib.sha256(content).hexdigest()[:12])


def _kind(name: str) -> str:
    return name.rpartition(".")[2]
