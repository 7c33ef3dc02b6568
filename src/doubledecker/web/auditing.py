"""Which requests are recorded in the audit trail, and what a record has of them: no body, and no secret.

A request that changes something is recorded unless it is the daily work of publishers and consumers.
"""

import contextlib
import re
from collections.abc import Awaitable, Callable, Sequence
from functools import cache
from typing import Any

import msgspec
from msgspec import Raw, structs
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Scope

from doubledecker import clock
from doubledecker.bus.audit import AuditTrail, Learned
from doubledecker.bus.registry import LiveRegistry
from doubledecker.errors import NotFound
from doubledecker.model import audit as records
from doubledecker.model.audit import AuditRecord
from doubledecker.model.token import Caller
from doubledecker.model.uid import uid
from doubledecker.web.body import BODY_KEPT, header
from doubledecker.web.origins import Network, whence

# What the trail calls what a route does. Where it made something new (201), `changed` becomes `created`.
_ACTIONS = {
    "PUT /topics/{name}": "topic.changed",
    "DELETE /topics/{name}": "topic.deleted",
    "POST /topics/{name}/give": "topic.given",
    "POST /subscription": "subscription.changed",
    "POST /subscriber": "subscription.changed",
    "DELETE /subscriber": "subscription.deleted",
    "PUT /subscriptions/{name}": "subscription.changed",
    "PATCH /subscriptions/{name}": "subscription.changed",
    "DELETE /subscriptions/{name}": "subscription.deleted",
    "DELETE /subscribers/{subscriber}": "subscription.deleted",
    "POST /subscribers/{subscriber}/give": "subscription.given",
    "DELETE /subscriber/topics/{name}": "subscription.topic_left",
    "POST /api_tokens": "token.created",
    "POST /portal_tokens": "portal_token.created",
    "PATCH /api_tokens/{name}": "token.changed",
    "DELETE /api_tokens/{name}": "token.deleted",
    "POST /api_tokens/{name}/rotate": "token.rotated",
    "PUT /queues/{name}": "queue.changed",
    "DELETE /queues/{name}": "queue.deleted",
    "PATCH /queues/{name}/facets/{tenant}": "facet.changed",
    "POST /queues/{name}/purge": "queue.purged",
    "POST /replays": "replay.asked",
    "DELETE /replays/{id}": "replay.cancelled",
    "POST /erasures": "erasure.asked",
}
# The same for what can be done to a receiver, whichever it is.
_OF_RECEIVERS = {
    "POST pause": "receiver.paused",
    "POST resume": "receiver.resumed",
    "POST enable": "receiver.enabled",
    "POST rotate-secret": "receiver.secret_rotated",
    "POST test": "receiver.tested",
    "POST resend": "receiver.resent",
    "POST dead/redrive": "dead_letters.redriven",
    "POST dead/purge": "dead_letters.purged",
    "DELETE dead/jobs/{id}": "dead_letters.job_cancelled",
}
_RECEIVER = re.compile(r"/(?:subscriber|subscriptions/\{name\}|subscribers/\{subscriber\}|queues/\{name\})/")
# Publishing and consuming, which leave other traces, and what changes nothing.
UNRECORDED = {
    "POST /events",
    "POST /topics/{name}",
    "POST /queues/{name}/pull",
    "POST /queues/{name}/ack",
    "POST /queues/{name}/nack",
    "POST /queues/{name}/extend",
    "POST /filters/test",
}
_LEARNED = "doubledecker.audit"
_TRACEPARENT = re.compile(r"[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}")
_REQUEST_ID = re.compile(r"[\x21-\x7e]{1,128}")
# Fields that a record names: more than any body of ours has.
_FIELDS_MAX = 40
_FIELD = re.compile(r"[a-z_0-9]{1,40}")
_BODY = msgspec.json.Decoder(dict[str, Raw])
_BAD = 400


@cache
def action_of(at: str) -> str:
    """What the trail calls what a route does; empty for one that is not recorded."""
    method, path = at.split(" ")
    return _ACTIONS.get(at) or _OF_RECEIVERS.get(f"{method} {_RECEIVER.sub('', path, count=1)}", "")


class Auditing:
    """Records the requests of routes that change something."""

    def __init__(self, trail: AuditTrail, registry: LiveRegistry, *, proxies: Sequence[Network]) -> None:
        self._trail = trail
        self._registry = registry
        self._proxies = proxies

    async def record(
        self, action: str, request: Request, caller: Caller, act: Callable[[], Awaitable[Response]]
    ) -> Response:
        """Answer a request, and record it."""
        async with self._trail.recorded(await self._begun(action, request, caller)) as learned:
            request.scope[_LEARNED], request.scope[BODY_KEPT] = learned, b""
            answer = await act()
            learned.status = answer.status_code
            learned.is_change = learned.is_change and answer.status_code < _BAD
            learned.fields = _fields(request.scope[BODY_KEPT])
        return answer

    async def _begun(self, action: str, request: Request, caller: Caller) -> AuditRecord:
        address, proxy = whence(request.scope, self._proxies)
        target = await self._target(request, caller)
        begun = records.begun(uid(), clock.now_ms(), action, caller, target)
        return structs.replace(
            begun,
            address=address,
            proxy=proxy,
            request_id=_fitting(request.scope, b"x-request-id", _REQUEST_ID),
            traceparent=_fitting(request.scope, b"traceparent", _TRACEPARENT),
        )

    async def _target(self, request: Request, caller: Caller) -> str:
        """What the path names, or else the caller itself. A token may be named by its secret, which is not recorded."""
        names = list(request.path_params.values())
        if request.scope["path"].startswith("/api_tokens/"):
            with contextlib.suppress(NotFound):
                return (await self._registry.clients.find(names[0], now_ms=clock.now_ms())).id
            return ""
        return "/".join(names) or caller.id


def learn(
    request: Request,
    *,
    target: str | None = None,
    count: int | None = None,
    detail: str | None = None,
    is_change: bool | None = None,
) -> None:
    """Add to the record of a request, if there is one, what its handler knows of it."""
    learned: Learned | None = request.scope.get(_LEARNED)
    if learned is None:
        return
    learned.target = learned.target if target is None else target
    learned.count = learned.count if count is None else count
    learned.detail = learned.detail if detail is None else detail
    learned.is_change = learned.is_change if is_change is None else is_change


def _fitting(scope: Scope, name: bytes, form: re.Pattern[str]) -> str:
    value = (header(scope, name) or b"").decode("latin-1")
    return value if form.fullmatch(value) else ""


def _fields(body: bytes) -> tuple[str, ...]:
    """The names of a body's fields, of one that was accepted."""
    try:
        given: dict[str, Any] = _BODY.decode(body) if body else {}
    except (msgspec.DecodeError, UnicodeDecodeError):
        return ()
    return tuple(name for name in given if _FIELD.fullmatch(name))[:_FIELDS_MAX]
