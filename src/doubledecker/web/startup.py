"""What the web process answers before it has reached Redis: it is alive, and everything else is 503."""

import msgspec
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from doubledecker.web import problem

_DETAIL = "the bus is starting and waits for Redis; its log says for which server"


async def app(scope: Scope, receive: Receive, send: Send) -> None:
    """The application until the bus is open; the next request comes on a connection that has the real one."""
    if scope["path"] == "/livez":
        answer = Response(msgspec.json.encode({"status": "alive"}), media_type="application/json")
    else:
        answer = problem.plain(503, "Not ready", _DETAIL, [("Retry-After", "1")])
    answer.headers["Connection"] = "close"
    await answer(scope, receive, send)
