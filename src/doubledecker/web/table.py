"""The table of routes: paths whose variable parts are written in braces, found without trying them one by one."""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field

from starlette.requests import Request
from starlette.responses import Response

from doubledecker.model.token import Caller

Handler = Callable[[Request, Caller], Awaitable[Response]]


@dataclass(frozen=True)
class Route:
    """A handler, and whether anyone may call it."""

    handler: Handler
    is_public: bool = False


ByMethod = Mapping[str, Route]


@dataclass
class _Step:
    """What may follow after some parts of a path: a fixed part, or any part under a name."""

    fixed: dict[str, "_Step"] = field(default_factory=dict)
    named: tuple[str, "_Step"] | None = None
    by_method: ByMethod | None = None


class Table:
    """Routes by path, then by method."""

    def __init__(self, routes: Mapping[str, ByMethod]) -> None:
        self.routes = routes
        self._fixed = {path: by_method for path, by_method in routes.items() if "{" not in path}
        self._root = _Step()
        for path, by_method in routes.items():
            self._add(path, by_method)

    def find(self, path: str) -> tuple[ByMethod | None, dict[str, str]]:
        """The routes of a path, and its variable parts by name."""
        by_method = self._fixed.get(path)
        if by_method is not None:
            return by_method, {}
        step, parameters = self._root, {}
        for part in path.split("/")[1:]:
            if part in step.fixed:
                step = step.fixed[part]
            elif step.named is not None and part:
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
