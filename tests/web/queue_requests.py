"""One request for every documented answer about queues, in an order in which each comes true."""

LARGE = "x" * 3000
EVENT = {"topic": "tasks", "type": "made", "tenant": "acme"}
FIRST = {"messages": [{"id": "0-1", "attempt": 1}]}
SMALL = {"pattern": ".*:tasks:full", "max_length": 1, "overflow": "refuse"}

Request = tuple[str, str, str, str, object, dict[str, str], int]


def _denied(method: str, path: str, body: object = None) -> list[Request]:
    """To another client it is forbidden, and of another name there is none."""
    return [
        ("other", method, path, "jobs", body, {}, 403),
        ("client", method, path, "nothing", body, {}, 404),
    ]


def _posted(what: str, good: object, bad: object) -> list[Request]:
    path = f"/queues/{{name}}/{what}"
    return [
        ("client", "POST", path, "jobs", good, {}, 200),
        ("client", "POST", path, "jobs", bad, {}, 400),
        ("client", "POST", path, "jobs", {"why": LARGE}, {}, 413),
        *_denied("POST", path, good),
    ]


_QUEUE, _FACET = "/queues/{name}", "/queues/{name}/facets/{tenant}"

REQUESTS: list[Request] = [
    ("client", "PUT", _QUEUE, "jobs", {"pattern": ".*:tasks:made"}, {}, 201),
    ("client", "PUT", _QUEUE, "jobs", {"pattern": ".*:tasks:made", "attempts_max": 1}, {}, 200),
    ("client", "PUT", _QUEUE, "jobs", {"pattern": "("}, {}, 400),
    ("client", "PUT", _QUEUE, "jobs", {"pattern": LARGE}, {}, 413),
    ("other", "PUT", _QUEUE, "jobs", {"pattern": ".*"}, {}, 403),
    ("root", "PUT", _QUEUE, "small", SMALL, {}, 201),
    ("client", "POST", "/events", "", [EVENT, {**EVENT, "tenant": "other"}], {}, 202),
    ("client", "POST", "/events", "", {**EVENT, "type": "full"}, {}, 202),
    ("client", "POST", "/events", "", {**EVENT, "type": "full"}, {}, 429),
    ("root", "PUT", _QUEUE, "small", {**SMALL, "pattern": ".*:tasks:.*"}, {}, 200),
    ("client", "POST", "/topics/{name}", "tasks", {"type": "create", "url": "https://shop.example/"}, {}, 429),
    ("root", "DELETE", _QUEUE, "small", None, {}, 409),
    ("root", "GET", "/queues", "", None, {}, 200),
    ("client", "GET", _QUEUE, "jobs", None, {}, 200),
    *_denied("GET", _QUEUE),
    ("client", "GET", "/queues/{name}/messages", "jobs", None, {}, 200),
    *_denied("GET", "/queues/{name}/messages"),
    *_posted("pull", {"max": 10}, {"max": 0}),
    *_posted("extend", FIRST, {}),
    *_posted("nack", FIRST, {}),
    *_posted("ack", FIRST, {}),
    ("client", "GET", _FACET, "jobs", None, {}, 200),
    *_denied("GET", _FACET),
    ("client", "PATCH", _FACET, "jobs", {"weight": 2}, {}, 200),
    ("client", "PATCH", _FACET, "jobs", {"weight": 0}, {}, 400),
    ("client", "PATCH", _FACET, "jobs", {"weight": LARGE}, {}, 413),
    *_denied("PATCH", _FACET, {"weight": 2}),
    *_posted("purge", {"dry_run": True}, {"ids": 1}),
    *_denied("DELETE", _QUEUE),
    ("client", "PUT", _QUEUE, "empty", {"pattern": ".*:nothing:.*"}, {}, 201),
    ("client", "DELETE", _QUEUE, "empty", None, {}, 204),
]
