"""How an operation is written in the OpenAPI document: as its differences from all others.

Who may call it, what it reads, how it succeeds and how else it ends. What can happen to any request (bad HTTP, Redis
away) is added to each. A 500 is a bug, and not documented.
"""

from collections.abc import Mapping, Sequence

from doubledecker.web.schemas import Schema, ref

ANY_SCHEME: list[Schema] = [{"basic": []}, {"digest": []}, {"bearer": []}]

_PROBLEMS = {
    400: "The request is wrong: not HTTP, not UTF-8, not JSON, an unknown key, a value out of bounds",
    401: "No token, or one that is not known",
    403: "A known token that may not do this",
    404: "There is no such thing",
    408: "The head or the body came too slowly",
    409: "It contradicts something: an Idempotency-Key used for another request, a queue that still holds messages",
    410: "The journal no longer holds what follows that position, and strict=1 was asked for",
    413: "More bytes or more events than one request may carry",
    415: "A Content-Encoding, or a content type of an event, that is not understood",
    429: "Too many of these, a quota is used up, a queue that refuses is full, or the bodies of this client's requests "
    "take too much room; try again after Retry-After",
    431: "The request's head is too large",
    503: "Redis is away, or there are too many connections or bodies; try again after Retry-After",
}
_ALWAYS = (400, 408, 415, 431, 503)
_WITH_BODY = (413, 429)

_CHALLENGES: Schema = {
    "WWW-Authenticate": {
        "description": "One each for Digest, Basic and Bearer; stale=true asks to repeat with the new nonce",
        "schema": {"type": "string"},
    }
}
_RETRY_AFTER: Schema = {"Retry-After": {"description": "Seconds", "schema": {"type": "string", "pattern": "^[0-9]+$"}}}
_HEADERS = {401: _CHALLENGES, 503: _RETRY_AFTER}


def json_of(schema: Schema) -> Schema:
    """A body in JSON."""
    return {"application/json": {"schema": schema}}


def list_of(name: str) -> Schema:
    """A JSON array of a named schema."""
    return json_of({"type": "array", "items": ref(name)})


def body_of(content: Schema) -> Schema:
    """What a request must carry."""
    return {"required": True, "content": content}


def ok(description: str, content: Schema | None = None) -> Schema:
    """A good answer."""
    return {"description": description, **({"content": content} if content else {})}


def _problem(status: int) -> Schema:
    answer: Schema = {
        "description": _PROBLEMS[status],
        "content": {"application/problem+json": {"schema": ref("Problem")}},
    }
    return {**answer, "headers": _HEADERS[status]} if status in _HEADERS else answer


def operation(
    summary: str,
    answers: Mapping[int, Schema],
    *problems: int,
    who: Sequence[Schema] | None = None,
    parameters: Sequence[Schema] = (),
    body: Schema | None = None,
) -> Schema:
    """One route; `who` is empty for anyone, else every way to say who asks."""
    secured = list(ANY_SCHEME if who is None else who)
    statuses = {*_ALWAYS, *problems, *((401,) if secured else ()), *(_WITH_BODY if body else ())}
    every = {**{status: _problem(status) for status in statuses}, **answers}
    return {
        "summary": summary,
        "security": secured,
        **({"parameters": list(parameters)} if parameters else {}),
        **({"requestBody": body} if body else {}),
        "responses": {str(status): every[status] for status in sorted(every)},
    }


def public(summary: str, schema: str) -> Schema:
    """A route that anyone may call, and that only answers."""
    return operation(summary, {200: ok(summary, json_of(ref(schema)))}, who=())
