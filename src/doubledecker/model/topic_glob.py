"""Globs on topics: a subscription names topics, or has them matched; `*` is any text, `?` one character.

A reserved topic is matched only by a glob that begins as it does, so that a receiver of all topics does not get the
notifications about itself.
"""

import re
from collections.abc import Collection, Iterable
from functools import lru_cache
from typing import Annotated

from doubledecker.errors import BadRequest
from doubledecker.model.glob import Glob, is_glob
from doubledecker.model.reserved import PREFIX, is_reserved
from doubledecker.model.schema import matching

# No longer than a name, which each may match: nobody needs more stars.
_GLOB = re.compile(r"[A-Za-z_*?][A-Za-z0-9_.*?-]{0,63}")
TopicOrGlob = Annotated[str, matching(_GLOB, "A topic, or a glob on topics: `*` is any text, `?` one character")]


def among(names: Iterable[str]) -> list[str]:
    """Those that are globs."""
    return [name for name in names if is_glob(name)]


def check(text: str) -> None:
    """Raise BadRequest unless the text is a topic's name, or a glob that may match one."""
    if not _GLOB.fullmatch(text):
        raise BadRequest(f"the topic is {text[:80]!r}; a name, or a glob like orders.*, must match {_GLOB.pattern}")


def pattern(glob: str) -> str:
    """A glob as a regular expression of RE2."""
    return re.escape(glob).replace(r"\*", ".*").replace(r"\?", ".")


def to_like(glob: str) -> str:
    """A glob as a pattern of LIKE, where `_` is one character and a backslash takes its meaning."""
    return glob.replace("_", r"\_").replace("*", "%").replace("?", "_")


def cover(names: Collection[str], topic: str) -> bool:
    """Whether a topic is among names and globs."""
    if topic in names:
        return True
    globs = (_compiled(name) for name in among(names) if name.startswith(PREFIX) or not is_reserved(topic))
    return any(glob.matches(topic) for glob in globs)


@lru_cache(4_096)
def _compiled(glob: str) -> Glob:
    return Glob(glob)
