"""The OpenAPI document: every route, what it takes and everything it can answer; tests hold it against the server."""

from functools import cache

import msgspec

from doubledecker import __version__
from doubledecker.web import openapi_errands, openapi_queues, openapi_stream, publishing, queue_schemas, schemas
from doubledecker.web.operations import ANY_SCHEME, body_of, json_of, list_of, ok, operation, public
from doubledecker.web.schemas import Schema, matching, ref

_DESCRIPTION = """An event bus over HTTP. Publishers post events on topics that they own; subscribers get them in
batches at their callback; consumers pull messages from queues, fairly over tenants, under leases. Every error is
`application/problem+json`, and its detail says what was seen and allowed."""

_SECURITY_SCHEMES: dict[str, Schema] = {
    "basic": {"type": "http", "scheme": "basic", "description": "The token as the user; any password"},
    "digest": {
        "type": "http",
        "scheme": "digest",
        "description": "RFC 7616: SHA-256, qop=auth; the token's name as the user, the token as the password",
    },
    "bearer": {"type": "http", "scheme": "bearer", "description": "The token"},
}
_IDEMPOTENCY_KEY: Schema = {
    "name": "Idempotency-Key",
    "in": "header",
    "description": "Makes the request repeatable for 24 h: same key and body, same answer, published once",
    "schema": matching(publishing.KEY.pattern),
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


_LINES: Schema = {
    "type": "string",
    "description": "One Event a line; empty lines are skipped",
    "examples": ['{"topic":"orders","type":"paid"}\n{"topic":"orders","type":"shipped"}\n'],
}
_EVENTS_BODY: Schema = body_of(
    {
        "application/json": {"schema": ref("Events")},
        **{kind: {"schema": _LINES} for kind in ("application/x-ndjson", "application/ndjson", "application/jsonl")},
    }
)

_NO_CONTENT = {204: ok("Done")}
_ENDED: Schema = {
    "Ended-Subscriptions": {
        "description": "How many subscriptions ended",
        "schema": {"type": "string", "pattern": "^[0-9]+$"},
    }
}
_SUBSCRIBE = operation(
    "Create or replace this client's subscriber", _NO_CONTENT, 403, body=body_of(json_of(ref("Subscription")))
)
_SUBSCRIBERS = operation(
    "A client's own subscriber, or all of them for root", {200: ok("The subscribers", list_of("Subscriber"))}
)
_METRICS: Schema = {"text/plain": {"schema": {"type": "string"}}}

_PATHS: dict[str, dict[str, Schema]] = {
    "/events": {
        "post": operation(
            "Publish any number of events; one that is refused does not stop the others",
            {202: ok("The ids of the published events, in order", json_of(ref("Published")))},
            *(403, 409, 429),
            parameters=[_ALL, _IDEMPOTENCY_KEY],
            body=_EVENTS_BODY,
        )
    },
    "/topics": {
        "get": operation(
            "All topics, or a page of them when `limit` is given",
            {200: ok("The topics", list_of("Topic"))},
            parameters=openapi_queues.PAGE,
        )
    },
    "/topics/{name}": {
        "post": operation(
            "Publish one event; the first client to do so owns the topic",
            _NO_CONTENT,
            *(403, 409, 429),
            parameters=[_TOPIC, _IDEMPOTENCY_KEY],
            body=body_of(json_of(ref("TopicEvent"))),
        ),
        "delete": operation(
            "Forget a topic, as its owner or root; the subscriptions to it end, and its name is free",
            {204: {**ok("Done"), "headers": _ENDED}},
            *(403, 404),
            parameters=[_TOPIC],
        ),
    },
    "/topics/{name}/give": {
        "post": operation(
            "Make another client the owner of a topic, as root; its subscriptions and its count stay",
            _NO_CONTENT,
            *(403, 404),
            parameters=[_TOPIC],
            body=body_of(json_of(ref("Gift"))),
        )
    },
    "/subscription": {"post": _SUBSCRIBE},
    "/subscriptions": {"get": _SUBSCRIBERS},
    "/subscriber": {
        "post": _SUBSCRIBE,
        "delete": operation("Forget this client's subscriber and what waits for it", _NO_CONTENT, 403, 404),
    },
    "/subscribers": {"get": _SUBSCRIBERS},
    "/subscriber/topics/{name}": {
        "delete": operation("End one subscription", _NO_CONTENT, 403, 404, parameters=[_TOPIC])
    },
    "/api_tokens": {
        "get": operation(
            "All client tokens, for root; never their secrets",
            {200: ok("The tokens", list_of("TokenListed")), 204: ok("There is none")},
            403,
        ),
        "post": operation(
            "Make a client token, as root",
            {201: ok("The token with its secret, shown this once", json_of(ref("TokenMade")))},
            *(403, 409, 429),
            body=body_of(json_of(ref("TokenWanted"))),
        ),
    },
    "/api_tokens/{name}": {
        "delete": operation(
            "Revoke a token, as root; its subscriber ends with it. Also 204 when there was none",
            _NO_CONTENT,
            403,
            parameters=[_TOKEN],
        )
    },
    "/api_tokens/{name}/rotate": {
        "post": operation(
            "Replace a token's secret, as root; its id stays, and all secrets work until the overlap ends",
            {200: ok("The token with its new secret, shown this once", json_of(ref("TokenRotated")))},
            *(403, 404, 409, 429),
            parameters=[_TOKEN],
            body=body_of(json_of(ref("Rotation"))),
        )
    },
    "/pulse": {"get": operation("204 when Redis answers", _NO_CONTENT)},
    "/pulse/scaling": {"get": operation("204, a second late when there is too much work", _NO_CONTENT)},
    "/health": {"get": public("The process runs", "Status")},
    "/health/ping": {"get": public("The process runs", "Status")},
    "/health/ping.json": {"get": public("The process runs", "Status")},
    "/livez": {"get": public("The process runs", "Alive")},
    "/readyz": {"get": public("Redis answers and a worker is alive; else 503 with `checks`", "Ready")},
    "/version": {"get": public("Which version runs", "Version")},
    "/openapi.json": {"get": operation("This document", {200: ok("OpenAPI 3.1", json_of({"type": "object"}))}, who=())},
    "/metrics": {
        "get": operation(
            "Metrics for Prometheus; without a token only where `metrics_public` is set",
            {200: ok("Text exposition", _METRICS)},
            who=[{}, *ANY_SCHEME],
        )
    },
}


@cache
def encoded() -> bytes:
    """The whole document as it is sent, made once: anyone may ask for it, as often as they like."""
    return msgspec.json.encode(document())


def document() -> Schema:
    """The whole document."""
    return {
        "openapi": "3.1.0",
        "info": {"title": "Doubledecker", "version": __version__, "description": _DESCRIPTION},
        "servers": [{"url": "/"}],
        "paths": {**_PATHS, **openapi_stream.PATHS, **openapi_queues.PATHS, **openapi_errands.PATHS},
        "components": {
            "schemas": {**schemas.ALL, **queue_schemas.ALL, **openapi_errands.SCHEMAS},
            "securitySchemes": _SECURITY_SCHEMES,
        },
    }
