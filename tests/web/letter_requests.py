"""One request for every documented answer about dead letters, in an order in which each comes true.

Each receiver has some letters, whose ids are 0-1, 0-2 and so on, so that a job of so small a rate is not done soon.
"""

Request = tuple[str, str, str, str, object, dict[str, str], int]

LARGE = "x" * 3000
LETTERS = 9
_SLOW = {"rate_per_s": 0.01}


def _of(prefix: str, name: str) -> list[Request]:
    """Of a receiver that is the client's; another client finds none of it."""
    dead, job = f"{prefix}/dead", f"{prefix}/dead/jobs/{{id}}"
    is_own = prefix in {"/subscriber", "/subscriptions/{name}"}
    found: list[Request] = [
        ("client", "GET", dead, name, None, {}, 200),
        ("client", "GET", f"{dead}/{{id}}", name, None, {}, 200),
        ("client", "GET", f"{dead}/jobs", name, None, {}, 200),
    ]
    for action in ("redrive", "purge"):
        at = f"{dead}/{action}"
        found += [
            ("client", "POST", at, name, {"dry_run": True}, {}, 200),
            ("client", "POST", at, name, {"ids": 1}, {}, 400),
            ("client", "POST", at, name, {"reason": LARGE}, {}, 413),
            ("client", "POST", at, name, _SLOW, {}, 202),
            ("client", "POST", at, name, _SLOW, {}, 409),
            ("client", "GET", job, name, None, {}, 200),
            ("client", "DELETE", job, name, None, {}, 200),
            ("client", "DELETE", job, name, None, {}, 409),
        ]
    for method, path in sorted({(method, path) for _, method, path, *_ in found}):
        found.append(("other", method, path, name, None, {}, 404))
        if is_own:
            found.append(("root", method, path, name, None, {}, 403))
    return found


REQUESTS: list[Request] = [
    *_of("/subscriber", ""),
    *_of("/subscriptions/{name}", "own"),
    *_of("/subscribers/{subscriber}", "client"),
    *_of("/queues/{name}", "jobs"),
]
