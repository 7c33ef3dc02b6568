"""The ASGI application: which route, who asks, and what every error looks like."""

import asyncio
from collections import Counter
from functools import cached_property, partial
from urllib.parse import parse_qsl

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from doubledecker import log
from doubledecker.dashboard.pages import ApiCall
from doubledecker.errors import (
    BadRequest,
    BusAway,
    BusSilent,
    DoubledeckerError,
    NotFound,
    Refused,
    TooManyAtOnce,
    Unauthenticated,
)
from doubledecker.model import quota
from doubledecker.model.quota import Quotas
from doubledecker.model.token import Caller
from doubledecker.web import api, openapi, problem, route_table
from doubledecker.web.api import RouteGroups
from doubledecker.web.auditing import Auditing, action_of
from doubledecker.web.authentication import Authenticator
from doubledecker.web.body import CLIENT, BodyMemory, check_encoding, header
from doubledecker.web.dashboard import Behind, Dashboard, inner_scope
from doubledecker.web.pace import PORTALS, ClientPace
from doubledecker.web.protocol import ANSWER
from doubledecker.web.route_table import ApiRoute, ByMethod, RouteTable

# A Redis that refuses everything must not fill the log.
_LOG_S = 1.0
# Changes of the registry by a client in a minute, and at once; more than the queues that it may have.
MINUTE_CHANGES_MAX = 1_200
_REDIRECTS = 300  # answers below are good news, which have no header that closes the connection
_NOBODY = Caller(id="", name="")
# In the scope of a request, as whose it counts.
_COUNTED = "doubledecker.is_counted"

_log = log.get("web")


class App:
    """Finds the route, identifies the caller, and turns whatever is raised into an answer."""

    def __init__(
        self,
        authenticator: Authenticator,
        groups: RouteGroups,
        dashboard: Dashboard,
        *,
        auditing: Auditing,
        room: BodyMemory,
        changes: ClientPace,
        quotas: Quotas,
        metrics_public: bool,
    ) -> None:
        self._authenticator = authenticator
        self.dashboard = dashboard
        self._room = room
        self._quotas = quotas
        self._under_way: Counter[str] = Counter()
        self._of_portals: Counter[str] = Counter()
        self._changes = changes
        self._auditing = auditing
        self._log_from_s = 0.0
        self.table = RouteTable(api.of_all(groups, document=self._show_document, metrics_public=metrics_public))

    @property
    def under_way(self) -> Counter[str]:
        """How many requests of each client are being answered."""
        return self._under_way

    @cached_property
    def document(self) -> bytes:
        """The OpenAPI document, made once: anyone may ask for it, as often as they like."""
        return openapi.document(self.table.routes)

    async def _show_document(self, _request: Request, _caller: Caller) -> Response:
        """The OpenAPI document."""
        return Response(self.document, media_type="application/json")

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        try:
            answer = await self._try_to_answer(scope, receive)
            if type(answer) is Response and answer.status_code < _REDIRECTS and scope["method"] != "HEAD":
                scope["extensions"][ANSWER]["call"](answer.status_code, answer.raw_headers, answer.body)
            else:
                await answer(scope, receive, send)
        finally:
            self._leave(scope)

    async def _try_to_answer(self, scope: Scope, receive: Receive) -> Response:
        try:
            return await self._answer(scope, receive)
        except Unauthenticated as error:
            return problem.response(error, self._authenticator.challenges(stale=error.stale))
        except DoubledeckerError as error:
            self._log_refusal_of_redis(error)
            return problem.response(error)
        except Exception:  # noqa: BLE001 - the edge of a request: the client gets an answer, the log the traceback
            _log.exception("request.failed", method=scope["method"], path=_loggable(scope["path"]))
            return problem.plain(500, "Internal error", "this is a bug; the server's log has the details")
        finally:
            self._room.release(scope)

    def _log_refusal_of_redis(self, error: DoubledeckerError) -> None:
        """Log why Redis refused a command: the client does not learn why. A silent Redis has lines of its own."""
        now_s = asyncio.get_running_loop().time()
        if isinstance(error, BusAway) and not isinstance(error, BusSilent) and now_s >= self._log_from_s:
            self._log_from_s = now_s + _LOG_S
            _log.warning("redis.refused", error=str(error))

    async def _answer(self, scope: Scope, receive: Receive) -> Response:
        if self.dashboard.covers(scope):
            return await self.dashboard.answer(scope, receive, Behind(self._enter, self.ask))
        by_method = self._find(scope)
        # A request for the head of an answer is served like GET; the server leaves out the body.
        route = by_method.get("GET" if scope["method"] == "HEAD" else scope["method"])
        if route is None:
            return _wrong_method(scope["method"], by_method)
        if scope["query_string"]:
            _check_single(scope["query_string"])
        caller = _NOBODY if route.is_public else await self._identify(scope)
        self._enter(scope, caller)
        check_encoding(scope)
        return await self._carry_out(route, Request(scope, receive), caller)

    async def ask(self, outer: Request, caller: Caller, call: ApiCall) -> Response:
        """Answer what a page asks in its caller's name: by the same route, authority and audit trail as any request."""
        scope = inner_scope(outer.scope, call)
        return await self._carry_out(self._find(scope)[call.method], Request(scope), caller)

    def _find(self, scope: Scope) -> ByMethod:
        path: str = scope["path"]
        by_method, scope["path_params"] = self.table.find(path, route_table.parts(scope["raw_path"]))
        if by_method is None:
            raise NotFound(f"there is nothing at {path[:80]!r}; GET /openapi.json lists what there is")
        return by_method

    async def _carry_out(self, route: ApiRoute, request: Request, caller: Caller) -> Response:
        act = partial(self._act, route, request, caller)
        action = action_of(route.at)
        return await (self._auditing.record(action, request, caller, act) if action else act())

    async def _act(self, route: ApiRoute, request: Request, caller: Caller) -> Response:
        if not route.is_public:
            route.check(caller)
        if route.is_paced and not caller.is_root:
            await self._changes.pay_by(caller, minute_max=MINUTE_CHANGES_MAX)
        return await route.handler(request, caller)

    def _enter(self, scope: Scope, caller: Caller) -> None:
        """Count a client's request until it is answered; raises QuotaExceeded when it has too many under way."""
        scope[CLIENT] = caller.id
        if caller.is_root or not caller.id:
            return
        most = self._quotas.client_requests_max
        wanted = self._under_way[caller.id] + 1
        if 0 < most < wanted:
            raise quota.too_many_requests(self._quotas, wanted=wanted)
        if caller.portal and most > 0 and self._of_portals[caller.share] >= max(1, most // PORTALS):
            raise TooManyAtOnce(f"{self._of_portals[caller.share]} requests of this tenant are under way; wait for one")
        scope[_COUNTED] = [(self._under_way, caller.id)]
        if caller.portal:
            scope[_COUNTED].append((self._of_portals, caller.share))
        for counts, whose in scope[_COUNTED]:
            counts[whose] += 1

    def _leave(self, scope: Scope) -> None:
        for counts, whose in scope.pop(_COUNTED, ()):
            counts[whose] -= 1
            if not counts[whose]:
                del counts[whose]

    async def _identify(self, scope: Scope) -> Caller:
        target = scope["raw_path"].decode("latin-1")
        if scope["query_string"]:
            target += "?" + scope["query_string"].decode("latin-1")
        return await self._authenticator.identify(
            header(scope, b"authorization"), method=scope["method"], target=target
        )


def _check_single(query: bytes) -> None:
    """Raise BadRequest when a parameter is there twice: no route takes several, and which one counts nobody knows."""
    if b"&" not in query:
        return
    names = Counter(name for name, _ in parse_qsl(query.decode("latin-1"), keep_blank_values=True))
    [(name, times)] = names.most_common(1)
    if times > 1:
        raise BadRequest(f"the query has {name[:80]!r} {times} times; give it once")


class _MethodNotAllowed(Refused):
    """A path that exists, but not for this method."""

    status = 405
    title = "Method not allowed"


def _wrong_method(method: str, by_method: ByMethod) -> Response:
    methods = sorted(by_method)
    allowed = f"{' and '.join(methods)} {'is' if len(methods) == 1 else 'are'}"
    error = _MethodNotAllowed(f"{method} is not possible here; {allowed}")
    return problem.response(error, [("Allow", ", ".join(methods))])


def _loggable(path: str) -> str:
    """The path, but for what may be a secret: a token may be named by its own."""
    return "/api_tokens/…" if path.startswith("/api_tokens/") else path
