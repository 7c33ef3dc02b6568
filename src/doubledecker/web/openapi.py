"""The OpenAPI document, made of the routes and of the types that they take and give; tests hold it against the server.

What can happen to any request (bad HTTP, Redis away) is added to each route. A 500 is a bug, and not documented.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from doubledecker import __version__
from doubledecker.model.schema import matching
from doubledecker.web.examples import EXAMPLES
from doubledecker.web.problem import Problem
from doubledecker.web.route_table import ApiRoute, ByMethod, Content, Parameter, Reply

Schema = dict[str, Any]

_DESCRIPTION = """An event bus over HTTP. Publishers post events on topics that they own; subscribers get them in
batches at their callback; consumers pull messages from queues, fairly over tenants, under leases. Every error is
`application/problem+json`, and its detail says what was seen and allowed."""

_SECURITY_SCHEMES = {
    "basic": {"type": "http", "scheme": "basic", "description": "The token as the user; any password"},
    "digest": {
        "type": "http",
        "scheme": "digest",
        "description": "RFC 7616: SHA-256, qop=auth; the token's name as the user, the token as the password",
    },
    "bearer": {"type": "http", "scheme": "bearer", "description": "The token"},
}
_ANY_SCHEME: list[Schema] = [{name: []} for name in _SECURITY_SCHEMES]
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
_CHALLENGES = "One each for Digest, Basic and Bearer; stale=true asks to repeat with the new nonce"
_HEADERS: Mapping[int, Content] = {
    401: {"WWW-Authenticate": Annotated[str, Meta(description=_CHALLENGES)]},
    503: {"Retry-After": Annotated[str, matching(re.compile("[0-9]+"), "Seconds")]},
}
_ALWAYS = (400, 408, 415, 431, 503)
_WITH_BODY = (413, 429)
# What these classes are called; others have the name of the class, without Body or Answer.
_NAMES = {"Offered": "Event", "TopicView": "Topic", "ReplayAsked": "ReplayWanted", "ErasureAsked": "ErasureWanted"}
_SCHEMAS = "#/components/schemas/"
_REFERENCE = re.compile(rb'"#/components/schemas/(\w+)"')


def document(routes: Mapping[str, ByMethod]) -> bytes:
    """The whole document, in JSON."""
    schemas = _Schemas([route for by_method in routes.values() for route in by_method.values()])
    paths = {
        path: {method.lower(): _operation(route, schemas) for method, route in by_method.items()}
        for path, by_method in routes.items()
    }
    whole = {
        "openapi": "3.1.0",
        "info": {"title": "Doubledecker", "version": __version__, "description": _DESCRIPTION},
        "servers": [{"url": "/"}],
        "paths": paths,
        "components": {"schemas": schemas.components, "securitySchemes": _SECURITY_SCHEMES},
    }
    return _REFERENCE.sub(lambda found: f'"{_SCHEMAS}{_name(found[1].decode())}"'.encode(), msgspec.json.encode(whole))


class _Schemas:
    """The schemas of all types of some routes; those of structs, and of types with a title, are components."""

    def __init__(self, routes: Iterable[ApiRoute]) -> None:
        types = list(dict.fromkeys([Problem, *(type_ for route in routes for type_ in _types(route))]))
        found, structs = msgspec.json.schema_components(types, ref_template=_SCHEMAS + "{name}")
        self._by_type: dict[object, Schema] = dict(zip(types, found, strict=True))
        self.components: dict[str, Schema] = {}
        for schema in structs.values():
            self._name(schema)
        for type_, schema in self._by_type.items():
            if "title" in schema:
                self._by_type[type_] = self._name(schema)

    def of(self, type_: object) -> Schema:
        return self._by_type[type_]

    def content(self, content: Content) -> Schema:
        """A body or an answer, in each of its content types."""
        return {kind: {"schema": self.of(type_)} for kind, type_ in content.items()}

    def _name(self, schema: Schema) -> Schema:
        """Make it a component, and return a reference to it."""
        name = _name(schema.pop("title"))
        self.components[name] = schema | ({"examples": EXAMPLES[name]} if name in EXAMPLES else {})
        return {"$ref": _SCHEMAS + name}


def _types(route: ApiRoute) -> Iterator[object]:
    for parameter in route.parameters:
        yield parameter.type
    yield from route.takes.values()
    for reply in (*route.replies.values(), *_problems(route).values()):
        yield from reply.content.values()
        yield from reply.headers.values()


def _name(of_class: str) -> str:
    """What a class is called here."""
    return _NAMES.get(of_class) or of_class.removesuffix("Body").removesuffix("Answer")


def _operation(route: ApiRoute, schemas: _Schemas) -> Schema:
    replies = {**_problems(route), **route.replies}
    shown: Schema = {"summary": route.summary, "security": [] if route.is_public else _ANY_SCHEME}
    if not route.is_public:
        shown["x-actions"] = list(route.needs)
    if route.parameters:
        shown["parameters"] = [_parameter(each, schemas) for each in route.parameters]
    if route.takes:
        shown["requestBody"] = {"required": True, "content": schemas.content(route.takes)}
    shown["responses"] = {str(status): _reply(replies[status], route, schemas) for status in sorted(replies)}
    return shown


def _problems(route: ApiRoute) -> dict[int, Reply]:
    """How a request may end that is wrong, or comes at a wrong time."""
    statuses = {
        *_ALWAYS,
        *route.problems,
        *(_WITH_BODY if route.takes else ()),
        *(() if route.is_public else (401, 403)),
        # A name with a slash is another path.
        *((404,) if "{" in route.at else ()),
    }
    content = {"application/problem+json": Problem}
    return {status: Reply(content, _PROBLEMS[status], _HEADERS.get(status, {})) for status in statuses}


def _parameter(parameter: Parameter, schemas: _Schemas) -> Schema:
    return {
        "name": parameter.name,
        "in": parameter.where,
        "description": parameter.description,
        "schema": schemas.of(parameter.type),
        **({"required": True} if parameter.where == "path" else {}),
        **({"example": parameter.example} if parameter.example else {}),
    }


def _reply(reply: Reply, route: ApiRoute, schemas: _Schemas) -> Schema:
    shown: Schema = {"description": reply.description or (route.summary if reply.content else "Done")}
    if reply.content:
        shown["content"] = schemas.content(reply.content)
    if reply.headers:
        shown["headers"] = {name: _header(schemas.of(type_)) for name, type_ in reply.headers.items()}
    return shown


def _header(schema: Schema) -> Schema:
    """A header, whose description stands outside of its schema."""
    rest = {word: value for word, value in schema.items() if word != "description"}
    return {"description": schema["description"], "schema": rest}
