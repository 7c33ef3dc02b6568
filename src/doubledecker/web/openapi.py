"""The OpenAPI document: every route, what it takes and everything it can answer; tests hold it against the server.

An operation is written as its differences: who may call it, what it reads, how it succeeds and how else it ends. What
can happen to any request (bad HTTP, Redis away) is added to each. A 500 is a bug, and not documented.
"""

from collections.abc import Mapping, Sequence

from doubledecker import __version__
from doubledecker.web import schemas
from doubledecker.web.schemas import Schema, ref

_DESCRIPTION = """An event bus over HTTP. Publishers post events on topics that they own; subscribers get them in
batches at their callback. Every error is `application/problem+json`, and its detail says what was seen and allowed."""

_SECURITY_SCHEMES: dict[str, Schema] = {
    "basic": {"type": "http", "scheme": "basic", "description": "The token as the user; any password"},
    "digest": {
        "type": "http",
        "scheme": "digest",
        "description": "RFC 7616: SHA-256, qop=auth; the token's name as the user, the token as the password",
    },
    "bearer": {"type": "http", "scheme": "bearer", "description": "The token"},
}
_ANY_SCHEME: list[Schema] = [{"basic": []}, {"digest": []}, {"bearer": []}]

_PROBLEMS = {
    400: "The request is wrong: not HTTP, not UTF-8, not JSON, an unknown key, a value out of bounds",
    401: "No token, or one that is not known",
    403: "A known token that may not do this",
    404: "There is no such thing",
    408: "The head or the body came too slowly",
    409: "The same Idempotency-Key was used for another request",
    413: "More bytes or more events than one request may carry",
    415: "A content type that is not an event's",
    429: "There are too many of these already",
    431: "The request's head is too large",
    503: "Redis is away, or there are too many connections; try again after Retry-After",
}
_ALWAYS = (400, 408, 431, 503)
_WITH_BODY = (413,)

_CHALLENGES: Schema = {
    "WWW-Authenticate": {
        "description": "One each for Digest, Basic and Bearer; stale=true asks to repeat with the new nonce",
        "schema": {"type": "string"},
    }
}
_RETRY_AFTER: Schema = {"Retry-After": {"description": "Seconds", "schema": {"type": "string", "pattern": "^[0-9]+$"}}}
_HEADERS = {401: _CHALLENGES, 503: _RETRY_AFTER}

_IDEMPOTENCY_KEY: Schema = {
    "name": "Idempotency-Key",
    "in": "header",
    "description": "Makes the request repeatable for 24 h: same key and body, same answer, published once",
    "schema": {"type": "string", "pattern": r"^[\x21-\x7e]{1,255}$"},
    "example": "order-1-paid",
}
_ALL: Schema = {
    "name": "all",
    "in": "query",
    "description": "1: all events are published, in one write, or none",
    "schema": {"type": "string", "enum": ["0", "1"], "default": "0"},
}


_TOPIC: Schema = {
    "name": "name",
    "in": "path",
    "required": True,
    "description": "The topic",
    "schema": schemas.TOPIC_NAME,
    "example": "orders",
}
_TOKEN: Schema = {
    "name": "name",
    "in": "path",
    "required": True,
    "description": "The token's id, or its secret",
    "schema": {"type": "string"},
    "example": "shop-1a2b3c4d",
}


def _json(schema: Schema) -> Schema:
    return {"application/json": {"schema": schema}}


def _list(name: str) -> Schema:
    return _json({"type": "array", "items": ref(name)})


def _body(content: Schema) -> Schema:
    return {"required": True, "content": content}


def _ok(description: str, content: Schema | None = None) -> Schema:
    return {"description": description, **({"content": content} if content else {})}


def _problem(status: int) -> Schema:
    answer: Schema = {
        "description": _PROBLEMS[status],
        "content": {"application/problem+json": {"schema": ref("Problem")}},
    }
    return {**answer, "headers": _HEADERS[status]} if status in _HEADERS else answer


def _operation(
    summary: str,
    answers: Mapping[int, Schema],
    *problems: int,
    who: Sequence[Schema] | None = None,
    parameters: Sequence[Schema] = (),
    body: Schema | None = None,
) -> Schema:
    """One route; `who` is empty for anyone, else every way to say who asks."""
    secured = list(_ANY_SCHEME if who is None else who)
    statuses = {*_ALWAYS, *problems, *((401,) if secured else ()), *(_WITH_BODY if body else ())}
    every = {**{status: _problem(status) for status in statuses}, **answers}
    return {
        "summary": summary,
        "security": secured,
        **({"parameters": list(parameters)} if parameters else {}),
        **({"requestBody": body} if body else {}),
        "responses": {str(status): every[status] for status in sorted(every)},
    }


def _public(summary: str, schema: str) -> Schema:
    return _operation(summary, {200: _ok(summary, _json(ref(schema)))}, who=())


_LINES: Schema = {
    "type": "string",
    "description": "One Event a line; empty lines are skipped",
    "examples": ['{"topic":"orders","type":"paid"}\n{"topic":"orders","type":"shipped"}\n'],
}
_EVENTS_BODY: Schema = _body(
    {
        "application/json": {"schema": ref("Events")},
        **{kind: {"schema": _LINES} for kind in ("application/x-ndjson", "application/ndjson", "application/jsonl")},
    }
)

_NO_CONTENT = {204: _ok("Done")}
_SUBSCRIBE = _operation(
    "Create or replace this client's subscriber", _NO_CONTENT, 403, body=_body(_json(ref("Subscription")))
)
_SUBSCRIBERS = _operation(
    "A client's own subscriber, or all of them for root", {200: _ok("The subscribers", _list("Subscriber"))}
)
_METRICS: Schema = {"text/plain": {"schema": {"type": "string"}}}

_PATHS: dict[str, dict[str, Schema]] = {
    "/events": {
        "post": _operation(
            "Publish any number of events; one that is refused does not stop the others",
            {202: _ok("The ids of the published events, in order", _json(ref("Published")))},
            *(403, 409, 415),
            parameters=[_ALL, _IDEMPOTENCY_KEY],
            body=_EVENTS_BODY,
        )
    },
    "/topics": {"get": _operation("All topics", {200: _ok("The topics", _list("Topic"))})},
    "/topics/{name}": {
        "post": _operation(
            "Publish one event; the first client to do so owns the topic",
            _NO_CONTENT,
            *(403, 409),
            parameters=[_TOPIC, _IDEMPOTENCY_KEY],
            body=_body(_json(ref("TopicEvent"))),
        ),
        "delete": _operation(
            "Forget a topic, as its owner or root; the subscriptions to it end",
            _NO_CONTENT,
            *(403, 404),
            parameters=[_TOPIC],
        ),
    },
    "/subscription": {"post": _SUBSCRIBE},
    "/subscriptions": {"get": _SUBSCRIBERS},
    "/subscriber": {
        "post": _SUBSCRIBE,
        "delete": _operation("Forget this client's subscriber and what waits for it", _NO_CONTENT, 403, 404),
    },
    "/subscribers": {"get": _SUBSCRIBERS},
    "/subscriber/topics/{name}": {
        "delete": _operation("End one subscription", _NO_CONTENT, 403, 404, parameters=[_TOPIC])
    },
    "/api_tokens": {
        "get": _operation(
            "All client tokens, for root; never their secrets",
            {200: _ok("The tokens", _list("TokenListed")), 204: _ok("There is none")},
            403,
        ),
        "post": _operation(
            "Make a client token, as root",
            {201: _ok("The token with its secret, shown this once", _json(ref("TokenMade")))},
            *(403, 429),
            body=_body(_json(ref("TokenWanted"))),
        ),
    },
    "/api_tokens/{name}": {
        "delete": _operation(
            "Revoke a token, as root; its subscriber ends with it. Also 204 when there was none",
            _NO_CONTENT,
            403,
            parameters=[_TOKEN],
        )
    },
    "/pulse": {"get": _operation("204 when Redis answers", _NO_CONTENT)},
    "/pulse/scaling": {"get": _operation("204, a second late when there is too much work", _NO_CONTENT)},
    "/health": {"get": _public("The process runs", "Status")},
    "/health/ping": {"get": _public("The process runs", "Status")},
    "/livez": {"get": _public("The process runs", "Alive")},
    "/readyz": {"get": _public("Redis answers and a worker is alive; else 503 with `checks`", "Ready")},
    "/version": {"get": _public("Which version runs", "Version")},
    "/openapi.json": {"get": _operation("This document", {200: _ok("OpenAPI 3.1", _json({"type": "object"}))}, who=())},
    "/metrics": {
        "get": _operation(
            "Metrics for Prometheus; public unless `metrics_public` is off",
            {200: _ok("Text exposition", _METRICS)},
            who=[{}, *_ANY_SCHEME],
        )
    },
}


def document() -> Schema:
    """The whole document."""
    return {
        "openapi": "3.1.0",
        "info": {"title": "Doubledecker", "version": __version__, "description": _DESCRIPTION},
        "servers": [{"url": "/"}],
        "paths": _PATHS,
        "components": {"schemas": schemas.ALL, "securitySchemes": _SECURITY_SCHEMES},
    }
