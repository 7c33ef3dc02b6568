"""The dashboard over HTTP: its pages, its files, signing in and out.

A page is answered as HTML, or as a stream of its parts where the request accepts an event stream, as of an EventSource.
"""

import re
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, cast
from urllib.parse import parse_qsl, unquote, urlencode

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope

from doubledecker import __version__, clock
from doubledecker.dashboard import assets
from doubledecker.dashboard.pages import HOME, AnswerPage, ApiCall, DashboardPage, Elsewhere, Visit
from doubledecker.dashboard.site import Renderer
from doubledecker.errors import BadRequest, BusAway, DoubledeckerError, NotFound, Refused
from doubledecker.model.token import Caller
from doubledecker.web import body as bodies
from doubledecker.web import route_table, sse
from doubledecker.web.body import CLIENT, BodyLimits
from doubledecker.web.protocol import BODY
from doubledecker.web.route_table import ApiRoute, RouteTable
from doubledecker.web.sessions import Sessions, SignInRefused, new_id
from doubledecker.web.watching import Blocks, LiveStream, Viewers

LOGIN = f"{HOME}/login"
_CODE = "/login"
_HTML = "text/html; charset=utf-8"
_POLICY = "default-src 'self'; object-src 'none'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'"
_HEADERS = {
    "Content-Security-Policy": _POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cache-Control": "no-store",
    "Vary": "Accept, Cookie",
}
_YEAR_S = 31_536_000
# A form has a few fields; the largest may hold some event ids.
FORM_BYTES_MAX = 65_536
_FIELDS_MAX = 100
# The path of a page, in percent-encoding.
_PAGE = re.compile(rf"{HOME}(/[A-Za-z0-9._~@:%-]+)*")
# What is refused with one of these may be written otherwise.
_MENDABLE = {400, 403, 409, 429}


@dataclass(frozen=True)
class Behind:
    """What the app does for pages: it counts a caller's request, and answers what a page asks of the API."""

    enter: Callable[[Scope, Caller], None]
    ask: Callable[[Request, Caller, ApiCall], Awaitable[Response]]


# Under which a request's scope has that.
_BEHIND = "doubledecker.behind"


class Dashboard:
    """Answers what is asked with a browser."""

    def __init__(self, pages: list[DashboardPage], sessions: Sessions, viewers: Viewers, limits: BodyLimits) -> None:
        self._sessions = sessions
        self._viewers = viewers
        self._limits = limits
        self._renderer = Renderer(pages, __version__)
        self._posts: dict[str, Callable[[Request, dict[str, str]], Awaitable[Response]]] = {
            LOGIN: self._sign_in,
            f"{HOME}/logout": self._sign_out,
        }
        self._open = {
            "/": self._go_home,
            _CODE: self._follow_link,
            LOGIN: self._show_login,
        }
        self._pages = RouteTable(
            [
                ApiRoute(f"{method} {page.path}", partial(show, page), {}, needs=page.needs)
                for page in pages
                for method, show in (("GET", self._show), ("POST", self._act))
                if method == "GET" or page.act
            ]
        )

    def stop(self) -> None:
        """End the streams of those who watch."""
        self._viewers.stop()

    def covers(self, scope: Scope) -> bool:
        """Whether a request is for a page: at `/` only a browser's, which asks for HTML."""
        path: str = scope["path"]
        if path == "/":
            return b"text/html" in (bodies.header(scope, b"accept") or b"")
        return path in {_CODE, HOME} or path.startswith(f"{HOME}/")

    async def answer(self, scope: Scope, receive: Receive, behind: Behind) -> Response:
        """A page, or a page that says what is wrong."""
        scope[_BEHIND] = behind
        request = Request(scope, receive)
        try:
            answer = await self._answer(request, behind)
        except Elsewhere as there:
            answer = _redirect(there.path)
        except SignInRefused as error:
            answer = self._login_page(request, wrong=error.detail, status=error.status)
        except Refused as error:
            answer = self._problem(error.status, error.title, error.detail)
        except BusAway as error:
            answer = self._problem(503, "Service unavailable", error.detail)
        except DoubledeckerError as error:
            answer = self._problem(503, "Service unavailable", str(error))
        for name, value in _HEADERS.items():
            answer.headers.setdefault(name, value)
        return answer

    async def _answer(self, request: Request, behind: Behind) -> Response:
        path, method = request.url.path, request.method
        if method == "POST" and path in self._posts:
            form = await self._form(request)
            self._sessions.check_form(request, form.get("form_token", ""), is_visitors=path == LOGIN)
            return await self._posts[path](request, form)
        if method not in {"GET", "HEAD", "POST"}:
            return self._problem(405, "Method not allowed", f"{method} is not possible here; GET is")
        if path.startswith(assets.ROOT):
            return _asset(path.removeprefix(assets.ROOT), request.query_params.get("v", ""))
        if path in self._open and method != "POST":
            return await self._open[path](request)
        by_method, request.scope["path_params"] = self._pages.find(path, route_table.parts(request.scope["raw_path"]))
        route = (by_method or {}).get("POST" if method == "POST" else "GET")
        if route is None:
            raise NotFound(f"there is no page at {path[:80]!r}, or nothing is posted to it")
        caller = await self._sessions.find(request)
        if caller is None:
            return self._ask_to_sign_in(request)
        behind.enter(request.scope, caller)
        route.check(caller)
        return await route.handler(request, caller)

    async def _act(self, page: DashboardPage, request: Request, caller: Caller) -> Response:
        fields = await self._fields(request)
        form = dict(fields)
        self._sessions.check_form(request, form.get("form_token", ""))
        assert page.act is not None
        visit = replace(self._visit(request, caller), ids=[value for name, value in fields if name == "id"])
        written = replace(visit, query={**visit.query, **form})
        try:
            follows = await page.act(visit, form)
        except Refused as error:
            if not page.keeps_form or error.status not in _MENDABLE:
                raise
            return await self._page(page, replace(written, wrong=error.detail), status=error.status)
        if isinstance(follows, AnswerPage):
            shown = replace(page, template=follows.template, title=follows.title, is_live=False)
            return _html(self._renderer.whole(shown, visit, follows.values))
        return await self._page(page, written) if follows is None else _redirect(follows)

    async def _form(self, request: Request) -> dict[str, str]:
        return dict(await self._fields(request))

    async def _fields(self, request: Request) -> list[tuple[str, str]]:
        content = await bodies.read(request.scope, request.receive, self._limits)
        try:
            return parse_qsl(
                content.decode(), keep_blank_values=True, strict_parsing=bool(content), max_num_fields=_FIELDS_MAX
            )
        except ValueError as error:
            raise BadRequest(f"the form cannot be read: {error}") from None

    async def _show(self, page: DashboardPage, request: Request, caller: Caller) -> Response:
        if page.is_live and "text/event-stream" in request.headers.get("Accept", ""):
            self._viewers.check_room(caller.id)
            return LiveStream(self._viewers, caller.id, partial(self._look_again, page, request))
        visit = self._visit(request, caller)
        return await self._page(page, visit)

    async def _page(self, page: DashboardPage, visit: Visit, *, status: int = 200) -> Response:
        return _html(self._renderer.whole(page, visit, await page.look(visit)), status)

    async def _look_again(self, page: DashboardPage, request: Request) -> Blocks | None:
        try:
            caller = await self._sessions.find(request)
            if caller is None or not Visit(caller, 0).may(*page.needs):
                return None
            visit = self._visit(request, caller)
            return self._renderer.blocks(page, visit, await page.look(visit))
        except DoubledeckerError:  # the browser asks again, and the answer says what is wrong
            return None

    def _visit(self, request: Request, caller: Caller) -> Visit:
        path = cast("dict[str, str]", request.path_params)
        query = request.query_params
        return Visit(
            caller,
            clock.now_ms(),
            path,
            dict(query),
            self._sessions.form_token(request),
            query.getlist("id"),
            partial(_ask, request, caller),
        )

    async def _go_home(self, _request: Request) -> Response:
        return _redirect(HOME)

    async def _follow_link(self, request: Request) -> Response:
        """Sign in by the code of a link.

        The answer is a page and no redirect: a browser that came from another site would not send the cookie along.
        """
        session = await self._sessions.sign_in_by_code(request, request.query_params.get("code", ""))
        answer = _html(self._renderer.bare("signed_in.html", "Signed in"))
        self._sessions.remember(request, answer, session)
        return answer

    async def _show_login(self, request: Request) -> Response:
        return self._login_page(request, next_=request.query_params.get("next", HOME))

    async def _sign_in(self, request: Request, form: dict[str, str]) -> Response:
        session = await self._sessions.sign_in(request, form.get("token", "").strip(), only_looks="only_looks" in form)
        answer = _redirect(_ours(form.get("next", HOME)))
        self._sessions.remember(request, answer, session)
        return answer

    async def _sign_out(self, request: Request, _form: dict[str, str]) -> Response:
        await self._sessions.end(request)
        answer = _redirect(LOGIN)
        self._sessions.forget(request, answer)
        return answer

    def _ask_to_sign_in(self, request: Request) -> Response:
        if sse.CONTENT_TYPE.partition(";")[0] in request.headers.get("Accept", ""):
            return self._problem(401, "Sign in", "the session has ended")
        target = request.scope["raw_path"].decode("latin-1")
        return _redirect(LOGIN if target == HOME else f"{LOGIN}?{urlencode({'next': target})}")

    def _login_page(self, request: Request, *, next_: str = HOME, wrong: str = "", status: int = 200) -> Response:
        answer = Response(status_code=status, media_type=_HTML)
        token = self._sessions.welcome(request, answer, new_id())
        page = self._renderer.bare("sign_in.html", "Sign in", wrong=wrong, form_token=token, next=_ours(next_))
        answer.body = page
        answer.headers["Content-Length"] = str(len(page))
        return answer

    def _problem(self, status: int, title: str, detail: str) -> Response:
        return _html(self._renderer.bare("problem.html", title, detail=detail), status)


async def _ask(request: Request, caller: Caller, call: ApiCall) -> Any:
    behind: Behind = request.scope[_BEHIND]
    body = (await behind.ask(request, caller, call)).body
    return msgspec.json.decode(body, type=call.type) if body else None


def inner_scope(outer: Scope, call: ApiCall) -> Scope:
    """The request that a page makes of the API; where it comes from is where the page's own comes from."""
    kept = {name: value for name, value in outer.items() if name in {"type", "asgi", "http_version", "client", CLIENT}}
    named = (b"x-forwarded-for", b"x-request-id", b"traceparent")
    return kept | {
        "method": call.method,
        "path": unquote(call.path),
        "raw_path": call.path.encode(),
        "query_string": urlencode(call.query).encode(),
        "headers": [(name, value) for name, value in outer["headers"] if name in named],
        "extensions": {BODY: {"call": partial(msgspec.json.encode, call.body) if call.body is not None else bytes}},
    }


def _html(content: bytes, status: int = 200) -> Response:
    return Response(content, status_code=status, media_type=_HTML)


def _redirect(path: str) -> Response:
    return Response(status_code=303, headers={"Location": path})


def _ours(path: str) -> str:
    """A path of a page; anything else leads home, so that no link leads elsewhere by way of signing in."""
    return path if _PAGE.fullmatch(path) and ".." not in unquote(path) else HOME


def _asset(name: str, version: str) -> Response:
    """A file; a browser keeps it for as long as its address names the version that there is."""
    found = assets.known().get(name)
    if found is None:
        raise NotFound(f"there is no file {name[:80]!r}")
    kept = f"public, max-age={_YEAR_S}, immutable" if version == found.version else "no-cache"
    return Response(found.content, media_type=found.media_type, headers={"Cache-Control": kept, "Vary": "Accept"})
