"""One request for every documented answer about receivers, in an order in which each comes true."""

from doubledecker.model.signing import FORMER_MAX

Request = tuple[str, str, str, str, object, dict[str, str], int]

_LARGE = "x" * 3000
_CALLBACK = {"callback": "https://mail.example/"}
_QUEUE = {"pattern": [".*:pushed:.*", ".*:mine:again"], **_CALLBACK}
_EACH = (
    ("/subscriber", ""),
    ("/subscriptions/{name}", "own"),
    ("/subscribers/{subscriber}", "client"),
    ("/queues/{name}", "pushed"),
)


def _of_each(method: str, action: str, body: object = None, status: int = 200) -> list[Request]:
    """Of one's own subscriptions, of one by its id, and of a queue; another client finds none of them."""
    prefixes = ("/subscriber", "/subscriptions/{name}", "/subscribers/{subscriber}", "/queues/{name}")
    own, subscription, named, queue = (f"{prefix}/{action}" for prefix in prefixes)
    return [
        ("client", method, own, "", body, {}, status),
        ("other", method, own, "", body, {}, 404),
        ("root", method, own, "", body, {}, 403),
        ("client", method, subscription, "own", body, {}, status),
        ("other", method, subscription, "own", body, {}, 404),
        ("root", method, subscription, "own", body, {}, 403),
        ("client", method, named, "client", body, {}, status),
        ("root", method, named, "client", body, {}, status),
        ("other", method, named, "client", body, {}, 404),
        ("client", method, queue, "pushed", body, {}, status),
        ("client", method, queue, "jobs", body, {}, 409),
        ("other", method, queue, "pushed", body, {}, 404),
    ]


def _rotations() -> list[Request]:
    """Beyond what `_of_each` asks: a body that is wrong or too large, and one secret too many."""
    return [
        ("client", "POST", f"{path}/rotate-secret", named, body, {}, status)
        for path, named in _EACH
        for body, status in (
            ({"overlap_s": -1}, 400),
            ({"overlap_s": _LARGE}, 413),
            *(({"overlap_s": 60}, 200) for _ in range(FORMER_MAX)),
            ({"overlap_s": 60}, 429),
            ({"overlap_s": 0}, 200),
        )
    ]


def _trials() -> list[Request]:
    """More test events than a client may begin at once, for each path."""
    return [("client", "POST", f"{path}/test", named, None, {}, 429) for path, named in _EACH]


def _subscriptions() -> list[Request]:
    one, give, wanted = "/subscriptions/{name}", "/subscribers/{subscriber}/give", {"topics": ["mine"], **_CALLBACK}
    return [
        ("client", "PUT", one, "own", wanted, {}, 201),
        ("client", "PUT", one, "own", wanted, {}, 200),
        ("client", "PUT", one, "own", {**wanted, "max": 0}, {}, 400),
        ("client", "PUT", one, "own", {**wanted, "uuid": _LARGE}, {}, 413),
        ("root", "PUT", one, "own", wanted, {}, 403),
        ("client", "GET", one, "own", None, {}, 200),
        ("client", "GET", one, "none", None, {}, 404),
        ("root", "GET", one, "own", None, {}, 403),
        ("client", "PATCH", one, "own", {"max": 7}, {}, 200),
        ("client", "PATCH", one, "own", {"max": 0}, {}, 400),
        ("client", "PATCH", one, "own", {"uuid": _LARGE}, {}, 413),
        ("client", "PATCH", one, "none", {"max": 7}, {}, 404),
        ("root", "PATCH", one, "own", {"max": 7}, {}, 403),
        ("client", "PUT", one, "gone", wanted, {}, 201),
        ("client", "DELETE", one, "gone", None, {}, 204),
        ("client", "DELETE", one, "gone", None, {}, 404),
        ("root", "DELETE", one, "gone", None, {}, 403),
        ("client", "PUT", one, "given", wanted, {}, 201),
        ("client", "POST", give, "client/given", {"to": "other"}, {}, 403),
        ("root", "POST", give, "client/given", {"to": "nobody"}, {}, 400),
        ("root", "POST", give, "client/given", {"to": _LARGE}, {}, 413),
        ("root", "POST", give, "client/given", {"to": "other"}, {}, 204),
        ("client", "PUT", one, "given", wanted, {}, 409),
        ("root", "POST", give, "client", {"to": "other"}, {}, 409),
        ("root", "POST", give, "nobody", {"to": "other"}, {}, 404),
        ("client", "DELETE", "/subscribers/{subscriber}", "other/given", None, {}, 404),
        ("other", "DELETE", "/subscribers/{subscriber}", "other/given", None, {}, 204),
    ]


REQUESTS: list[Request] = [
    *_subscriptions(),
    ("client", "PUT", "/queues/{name}", "pushed", _QUEUE, {}, 201),
    ("client", "PUT", "/queues/{name}", "jobs", {"pattern": ".*:tasks:made"}, {}, 200),
    *_of_each("POST", "pause"),
    *_of_each("POST", "resume"),
    *_of_each("POST", "enable"),
    *_of_each("POST", "rotate-secret", {"overlap_s": 0}),
    *_rotations(),
    *_of_each("POST", "test"),
    *_trials(),
    *_of_each("GET", "attempts"),
    ("client", "POST", "/events", "", {"topic": "mine", "type": "again", "id": "again"}, {}, 202),
    ("client", "POST", "/queues/{name}/pause", "pushed", None, {}, 200),
    *_of_each("POST", "resend", {"event": "again"}, status=202),
    *(
        ("client", "POST", path, name, body, {}, status)
        for path, name in (
            ("/subscriber/resend", ""),
            ("/subscriptions/{name}/resend", "own"),
            ("/subscribers/{subscriber}/resend", "client"),
            ("/queues/{name}/resend", "pushed"),
        )
        for body, status in (({"event": _LARGE}, 413), ({}, 400), ({"event": "nowhere"}, 404))
    ),
    ("client", "POST", "/queues/{name}/purge", "pushed", {}, {}, 200),
    ("client", "GET", "/attempts", "", None, {}, 200),
    ("root", "GET", "/attempts", "", None, {}, 200),
    ("client", "DELETE", "/queues/{name}", "pushed", None, {}, 204),
]
