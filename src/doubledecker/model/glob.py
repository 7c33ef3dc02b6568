"""Patterns of listeners: globs on the routing key `tenant:topic:type`, as Redis has them for its channels.

`*` stands for any text, colons included, and `?` for one character. Brackets and backslashes mean something to Redis,
and nothing in a routing key; they are refused here, so that a pattern means the same on a stream and on a channel.
"""

import fnmatch
import re
from dataclasses import dataclass
from functools import cached_property

from doubledecker.errors import BadRequest

ALLOWED = re.compile(r"[A-Za-z0-9_.:*?-]+")
# The longest routing key has 194 characters; a longer pattern can only be one with needless stars.
LENGTH_MAX = 256
_COLONS = 2


@dataclass(frozen=True)
class Glob:
    """A pattern that was checked."""

    text: str

    @cached_property
    def _regex(self) -> re.Pattern[str]:
        # Its stars never go back, so that no pattern takes more than a moment.
        return re.compile(fnmatch.translate(self.text))

    def matches(self, routing_key: str) -> bool:
        return self._regex.match(routing_key) is not None


def is_glob(text: str) -> bool:
    """Whether a text stands for others than itself."""
    return "*" in text or "?" in text


def parse(text: str) -> Glob:
    """A pattern as a listener wrote it; raises BadRequest with what is allowed."""
    if len(text) > LENGTH_MAX:
        raise BadRequest(f"the pattern has {len(text)} characters; at most {LENGTH_MAX} are allowed")
    if not ALLOWED.fullmatch(text):
        raise BadRequest(
            f"the pattern is {text!r}; it may hold letters, digits, `_`, `.`, `-`, `:`, `*` for any text and `?` for "
            "one character, like *:page:*"
        )
    if not _is_possible(text):
        raise BadRequest(
            f"the pattern is {text!r}; it matches no routing key, since that is tenant:topic:type; try *:page:*"
        )
    return Glob(text)


def _is_possible(text: str) -> bool:
    """Whether a text with exactly two colons can match."""
    return text.count(":") <= _COLONS and ("*" in text or text.count(":") + text.count("?") >= _COLONS)
