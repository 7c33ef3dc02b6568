"""The route of streams in the OpenAPI document."""

from doubledecker.model import glob
from doubledecker.web.operations import ok, operation
from doubledecker.web.schemas import Schema, matching

_PARAMETERS: list[Schema] = [
    {
        "name": "pattern",
        "in": "query",
        "description": "A glob on the routing key tenant:topic:type; `*` is any text, `?` one character",
        "schema": matching(glob.ALLOWED.pattern, maxLength=glob.LENGTH_MAX, default="*"),
        "example": "*:page:*",
    },
    {
        "name": "from",
        "in": "query",
        "description": "Where to start: `earliest`, `latest`, or after the event of a stream with this id",
        "schema": {"type": "string", "default": "latest"},
    },
    {
        "name": "strict",
        "in": "query",
        "description": "1: 410, or the end of the stream, instead of a gap",
        "schema": {"type": "string", "enum": ["0", "1"], "default": "0"},
    },
    {
        "name": "Last-Event-ID",
        "in": "header",
        "description": "The id of the last event that was received; goes before `from`",
        "schema": {"type": "string"},
    },
]
_EVENT_STREAM: Schema = {"text/event-stream": {"schema": {"type": "string"}}}

PATHS: dict[str, dict[str, Schema]] = {
    "/stream": {
        "get": operation(
            "Events as they are published, as server-sent events; any client hears all topics",
            {200: ok("Events, and `gap` and `dropped` as named events; without end", _EVENT_STREAM)},
            *(410, 429),
            parameters=_PARAMETERS,
        )
    }
}
