"""The pages that make a subscription or a queue, and try its topics, patterns and filter on recent events before."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from doubledecker.dashboard import forms
from doubledecker.dashboard.pages import HOME, AnswerPage, Field, Question, Visit, part
from doubledecker.dashboard.queue_actions import QUEUES
from doubledecker.dashboard.receiver_actions import SUBSCRIBERS
from doubledecker.errors import Conflict, Forbidden, NotFound, Refused
from doubledecker.model.queue import CHARGES, OVERFLOWS
from doubledecker.model.subscriber import FORMATS

NEW = f"{HOME}/new"
_RECENT = 100
_FILTER = Field("filter", "Filter", kind="area", hint='JSON, like {"tenant": ["acme"]}; empty: all events')
_CALLBACK = Field("callback", "Callback", hint="where events are posted to")
_SUBSCRIPTION = (
    Field("name", "Name", is_required=True),
    Field("topics", "Topics", kind="area", hint="names or globs, like orders.*", is_required=True),
    _CALLBACK,
    _FILTER,
    Field("format", "Format", kind="select", choices=FORMATS),
    Field("max", "Events in a batch", hint="empty: 100"),
    Field("timeout", "Within milliseconds", hint="empty: 500"),
    Field("rate_per_s", "Calls a second at most", hint="empty: no bound"),
    Field("ordered", "In order by key", kind="check"),
)
_QUEUE = (
    Field("name", "Name", is_required=True),
    Field("pattern", "Patterns", kind="area", hint="RE2 on the whole tenant:topic:type, one a line", is_required=True),
    _FILTER,
    Field("lease_ms", "Lease in milliseconds", hint="empty: 30000"),
    Field("attempts_max", "Attempts", hint="empty: 10"),
    Field("charge", "Tenants share", kind="select", choices=CHARGES),
    Field("max_length", "Messages at most", hint="empty: 1000000"),
    Field("overflow", "When full", kind="select", choices=OVERFLOWS),
    Field("callback", "Callback", hint="empty: consumers pull"),
    Field("ordered", "In order by key", kind="check"),
)


@dataclass(frozen=True)
class TriedKind:
    """What becomes of the recent events of one kind."""

    key: str
    fits: bool
    why: str
    count: int


async def ask_subscription(visit: Visit) -> Mapping[str, object]:
    if visit.caller.is_root:
        raise Forbidden("a subscription is a client's; sign in with the client's token")
    text = "From then on it gets what is published. Its signing secret is shown once."
    question = Question(text, "Create the subscription", SUBSCRIBERS, fields=_written(_SUBSCRIPTION, visit))
    return {"question": question, **await _tested(visit, lambda: {"topics": forms.words(visit.query, "topics")})}


async def create_subscription(visit: Visit, form: Mapping[str, str]) -> str | AnswerPage | None:
    """Make a subscription of the caller, unless it has one of that name."""
    if form.get("step") == "test":
        return None
    body = {
        "topics": forms.words(form, "topics"),
        **forms.texts(form, "callback", "format"),
        **forms.objects(form, "filter"),
        **forms.whole(form, "max", "timeout"),
        **forms.numbers(form, "rate_per_s"),
        **({"ordered": True} if "ordered" in form else {}),
    }
    path = f"/subscriptions/{part(form.get('name', '').strip())}"
    await _check_new(visit, path)
    told = await visit.send("PUT", path, body)
    return _made(told, f"{SUBSCRIBERS}/{part(told['subscriber'])}")


async def ask_queue(visit: Visit) -> Mapping[str, object]:
    text = "From then on every event that matches is put on it, for consumers that pull, or for its callback."
    question = Question(text, "Create the queue", QUEUES, fields=_written(_QUEUE, visit))
    return {"question": question, **await _tested(visit, lambda: {"patterns": _patterns(visit.query)})}


async def create_queue(visit: Visit, form: Mapping[str, str]) -> str | AnswerPage | None:
    """Make a queue of the caller, unless there is one of that name."""
    if form.get("step") == "test":
        return None
    body = {
        "pattern": _patterns(form),
        **forms.texts(form, "callback", "charge", "overflow"),
        **forms.objects(form, "filter"),
        **forms.whole(form, "lease_ms", "attempts_max", "max_length"),
        **({"ordered": True} if "ordered" in form else {}),
    }
    path = f"/queues/{part(form.get('name', '').strip())}"
    await _check_new(visit, path)
    told = await visit.send("PUT", path, body)
    return _made(told, f"{QUEUES}/{part(told['name'])}")


async def _check_new(visit: Visit, path: str) -> None:
    """Raise Conflict rather than replace what there is."""
    try:
        await visit.get(path)
    except NotFound:
        return
    raise Conflict(f"there is one already: {path}; the API or the command line changes it")


async def _tested(visit: Visit, chosen: Any) -> Mapping[str, object]:
    """Which recent events what is written would get, if that was asked for."""
    if visit.query.get("step") != "test":
        return {"tried": None, "test_wrong": ""}
    try:
        body = {**chosen(), **forms.objects(visit.query, "filter"), "limit": _RECENT}
        told = await visit.send("POST", "/filters/test", body)
    except Refused as error:
        return {"tried": None, "test_wrong": error.detail}
    kinds = Counter(
        (f"{each['tenant']}:{each['topic']}:{each['type']}", each["fits"], each["why"]) for each in told["events"]
    )
    rows = [TriedKind(*kind, count) for kind, count in kinds.items()]
    rows.sort(key=lambda each: (not each.fits, -each.count, each.key))
    return {"tried": rows, "fitting": told["fitting"], "of": len(told["events"]), "test_wrong": ""}


def _made(told: Mapping[str, Any], path: str) -> str | AnswerPage:
    if "secret" not in told:
        return f"{path}?done=saved"
    what = "Requests to it are signed with this secret"
    values = {"what": what, "secret": told["secret"], "former_until": None, "back": path}
    return AnswerPage("secret.html", "Signing secret", values)


def _patterns(form: Mapping[str, str]) -> list[str]:
    """One a line: a pattern may have spaces."""
    return [line.strip() for line in form.get("pattern", "").splitlines() if line.strip()]


def _written(fields: Sequence[Field], visit: Visit) -> list[Field]:
    """The fields with what was written into them."""
    return [replace(each, value=visit.query.get(each.name, "")) for each in fields]
