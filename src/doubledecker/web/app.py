"""The ASGI application: which route, who asks, and what every error looks like."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from doubledecker import log
from doubledecker.errors import DoubledeckerError, NotFound, Refused, Unauthenticated
from doubledecker.model.token import Caller
from doubledecker.web import problem
from doubledecker.web.authentication import Authenticator
from doubledecker.web.body import header
from doubledecker.web.publishing import Publishing
from doubledecker.web.routes import Routes

Handler = Callable[[Request, Caller], Awaitable[Response]]
_NOBODY = Caller(id="", name="")

_log = log.get("web")


@dataclass(frozen=True)
class Route:
    """A handler, and whether anyone may call it."""

    handler: Handler
    is_public: bool = False


class App:
    """Finds the route, identifies the caller, and turns whatever is raised into an answer."""

    def __init__(
        self, authenticator: Authenticator, publishing: Publishing, routes: Routes, *, metrics_public: bool
    ) -> None:
        self._authenticator = authenticator
        self.table = _table(publishing, routes, metrics_public=metrics_public)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        try:
            answer = await self._answer(scope, receive)
        except Unauthenticated as error:
            answer = problem.response(error, self._authenticator.challenges(stale=error.stale))
        except DoubledeckerError as error:
            answer = problem.response(error)
        except Exception:  # noqa: BLE001 - the edge of a request: the client gets an answer, the log the traceback
            _log.exception("request.failed", method=scope["method"], path=scope["path"])
            answer = problem.plain(500, "Internal error", "this is a bug; the server's log has the details")
        await answer(scope, receive, send)

    async def _answer(self, scope: Scope, receive: Receive) -> Response:
        path: str = scope["path"]
        # A path that spells out a pattern's braces is no route's own path, only perhaps a strange name.
        by_method = None if "{" in path else self.table.get(path)
        if by_method is None:
            parent, _, last = path.rpartition("/")
            by_method = self.table.get(f"{parent}/{{name}}") if last else None
            scope["path_params"] = {"name": last}
        if by_method is None:
            raise NotFound(f"there is nothing at {path[:80]!r}; GET /openapi.json lists what there is")
        # Whoever asks for the head of an answer is served like GET; the server leaves out the body.
        route = by_method.get("GET" if scope["method"] == "HEAD" else scope["method"])
        if route is None:
            return _wrong_method(scope["method"], by_method)
        caller = _NOBODY if route.is_public else await self._identify(scope)
        return await route.handler(Request(scope, receive), caller)

    async def _identify(self, scope: Scope) -> Caller:
        target = scope["raw_path"].decode("latin-1")
        if scope["query_string"]:
            target += "?" + scope["query_string"].decode("latin-1")
        return await self._authenticator.identify(
            header(scope, b"authorization"), method=scope["method"], target=target
        )


class _MethodNotAllowed(Refused):
    """A path that exists, but not for this method."""

    status = 405
    title = "Method not allowed"


def _wrong_method(method: str, by_method: dict[str, Route]) -> Response:
    allowed = ", ".join(sorted(by_method))
    return problem.response(_MethodNotAllowed(f"{method} is not possible here, {allowed} is"), [("Allow", allowed)])


def _table(publishing: Publishing, routes: Routes, *, metrics_public: bool) -> dict[str, dict[str, Route]]:
    """Paths, with at most one variable part at the end, then methods."""
    return {
        "/events": {"POST": Route(publishing.post_events)},
        "/topics": {"GET": Route(routes.list_topics)},
        "/topics/{name}": {"POST": Route(publishing.post_topic), "DELETE": Route(routes.delete_topic)},
        "/subscription": {"POST": Route(routes.subscribe)},
        "/subscriptions": {"GET": Route(routes.list_subscribers)},
        "/subscriber": {"POST": Route(routes.subscribe), "DELETE": Route(routes.unsubscribe)},
        "/subscribers": {"GET": Route(routes.list_subscribers)},
        "/subscriber/topics/{name}": {"DELETE": Route(routes.leave_topic)},
        "/api_tokens": {"GET": Route(routes.list_tokens), "POST": Route(routes.create_token)},
        "/api_tokens/{name}": {"DELETE": Route(routes.delete_token)},
        "/pulse": {"GET": Route(routes.pulse)},
        "/pulse/scaling": {"GET": Route(routes.pulse_scaling)},
        "/health": {"GET": Route(routes.health, is_public=True)},
        "/health/ping": {"GET": Route(routes.health, is_public=True)},
        "/livez": {"GET": Route(routes.livez, is_public=True)},
        "/readyz": {"GET": Route(routes.readyz, is_public=True)},
        "/version": {"GET": Route(routes.version, is_public=True)},
        "/openapi.json": {"GET": Route(routes.openapi, is_public=True)},
        "/metrics": {"GET": Route(routes.metrics, is_public=metrics_public)},
    }
