"""The table of routes: paths whose variable parts are written in braces, found without trying them one by one.

A route declares all that the API's document shows of it: what it takes, and how it answers. Types are those of msgspec.
"""

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal
from urllib.parse import unquote

from starlette.requests import Request
from starlette.responses import Response

from doubledecker.errors import Forbidden
from doubledecker.model import scopes
from doubledecker.model.token import Caller

Handler = Callable[[Request, Caller], Awaitable[Response]]
# Types of a body or an answer by content type, or of headers by name.
Content = Mapping[str, object]


def json(type_: object) -> Content:
    """JSON of a type."""
    return {"application/json": type_}


@dataclass(frozen=True)
class Parameter:
    """A part of the path, the query or the head that a route reads."""

    where: Literal["path", "query", "header"]
    name: str
    description: str
    type: object = str
    example: str = ""


@dataclass(frozen=True)
class Reply:
    """How a request may end; without a description it is what the route is for."""

    content: Content = field(default_factory=dict)
    description: str = ""
    headers: Content = field(default_factory=dict)


@dataclass(frozen=True)
class ApiRoute:
    """What is asked for at a path by a method, who answers, and every answer there can be.

    `problems` are those that not every request may end in: openapi.py adds the others. Changes of the registry reach
    every process, so a client has a pace for those that it can make without end.
    """

    at: str  # the method and the path, like "GET /topics"
    handler: Handler
    replies: Mapping[int, Reply]
    problems: Sequence[int] = ()
    parameters: Sequence[Parameter] = ()
    takes: Content = field(default_factory=dict)
    is_public: bool = False
    is_paced: bool = False
    # Actions of which a token needs one (model/scopes.py); a route that is not public has some.
    needs: Sequence[str] = ()

    def __post_init__(self) -> None:
        assert self.needs or self.is_public, f"{self.at} says nothing of the actions that it needs"

    def check(self, caller: Caller) -> None:
        """Raise Forbidden unless the caller may do this."""
        is_read = self.at.startswith("GET ")
        if caller.only_looks and not is_read:
            raise Forbidden("this session only looks; to change something, sign out, and in again without that")
        if not caller.is_root and not caller.scopes.allows(self.needs, is_read=is_read):
            raise Forbidden(scopes.why_not(caller.scopes, self.needs, is_read=is_read))

    @property
    def summary(self) -> str:
        """The first line of the handler's docstring."""
        return (self.handler.__doc__ or "").partition("\n")[0].rstrip(".")


# What may have a slash in its name: the id of a subscription is `<client>/<name>`.
_WITH_SLASH = {"subscriber", "receiver", "event"}

ByMethod = Mapping[str, ApiRoute]


def parts(raw: bytes) -> list[str] | None:
    """The parts of a path as it was sent, where it has a slash in percent-encoding, which is part of a name."""
    has_slash = b"%" in raw and b"%2f" in raw.lower()
    return [unquote(part) for part in raw.decode("latin-1").split("/")] if has_slash else None


@dataclass
class _Step:
    """What may follow after some parts of a path: a fixed part, or any part under a name."""

    fixed: dict[str, "_Step"] = field(default_factory=dict)
    named: tuple[str, "_Step"] | None = None
    by_method: ByMethod | None = None


class RouteTable:
    """Routes by path, then by method."""

    def __init__(self, routes: Iterable[ApiRoute]) -> None:
        self.routes: dict[str, dict[str, ApiRoute]] = {}
        for route in routes:
            method, path = route.at.split(" ")
            by_method = self.routes.setdefault(path, {})
            assert method not in by_method, f"{route.at} is there twice"
            by_method[method] = route
        self._fixed: dict[str, ByMethod] = {path: row for path, row in self.routes.items() if "{" not in path}
        self._root = _Step()
        for path, row in self.routes.items():
            self._add(path, row)

    def find(self, path: str, parts: Sequence[str] | None = None) -> tuple[ByMethod | None, dict[str, str]]:
        """The routes of a path, and its variable parts by name; its `parts` are given where some have a slash."""
        by_method = self._fixed.get(path)
        if by_method is not None and parts is None:
            return by_method, {}
        step, parameters = self._root, {}
        for part in (parts or path.split("/"))[1:]:
            if part in step.fixed:
                step = step.fixed[part]
            elif step.named is not None and part and ("/" not in part or step.named[0] in _WITH_SLASH):
                name, step = step.named
                parameters[name] = part
            else:
                return None, {}
        return step.by_method, parameters

    def _add(self, path: str, by_method: ByMethod) -> None:
        step = self._root
        for part in path.split("/")[1:]:
            if part.startswith("{"):
                name = part.strip("{}")
                step.named = step.named or (name, _Step())
                assert step.named[0] == name, f"{path}: this part has two names"
                step = step.named[1]
            else:
                step = step.fixed.setdefault(part, _Step())
        step.by_method = by_method
