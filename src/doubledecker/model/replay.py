"""Replays: which past events are sent again, and to whom alone."""

import re
from collections.abc import Sequence
from typing import Annotated

import msgspec
from msgspec import Meta

from doubledecker.errors import BadRequest
from doubledecker.model import event as events
from doubledecker.model import moment, schema, topic_glob
from doubledecker.model.event import GivenTenant, TopicName
from doubledecker.model.schema import DryRun, between

TARGETS = ("subscriber", "queue", "topic")
RATE_MAX = 1_000_000
WHERE_LENGTH_MAX = 4_000
_NAME = re.compile(r"[\x21-\x7e]{1,128}")
# So that the whole command can be read.
_TOPICS_SHOWN_MAX = 20


class Replay(msgspec.Struct, frozen=True, omit_defaults=True):
    """What is replayed: events accepted from `from_ms` until before `upto_ms` that fit, to one target.

    `target` is one of TARGETS and `name` whose; `publisher` is who publishes, when it is a topic. A direct one goes
    from the lake to a subscriber without passing through Redis.
    """

    target: str
    name: str
    from_ms: int
    upto_ms: int
    rate: int
    topic: str = ""
    tenant: str = ""
    where: str = ""
    publisher: str = ""
    direct: bool = False
    dry_run: bool = False


MOMENT = "ISO 8601, like 2026-11-15T11:00:00Z; UTC unless it names an offset"
_Where = Annotated[
    str,
    Meta(
        description="SQL on the columns of the lake's events; for root alone",
        extra_json_schema={"minLength": 1, "maxLength": WHERE_LENGTH_MAX},
    ),
]
# The targets, as they are asked for and as they are shown.
ToSubscriber = Annotated[str, Meta(description="A subscriber's id, or its client's name")]
ToQueue = Annotated[str, Meta(description="A queue")]
ToTopic = Annotated[TopicName, Meta(description="A topic, on which they are published as new events by its owner")]


class ReplayAsked(msgspec.Struct, forbid_unknown_fields=True, rename={"start": "from", "end": "to"}):
    """Which past events are sent again, and to which one of the three targets."""

    start: Annotated[str, Meta(description=f"Accepted from then on; absent: from the first on. {MOMENT}")] | None = None
    end: Annotated[str, Meta(description=f"Accepted before then, which is past; absent: now. {MOMENT}")] | None = None
    topic: TopicName | None = None
    tenant: GivenTenant = None
    where: _Where | None = None
    to_subscriber: ToSubscriber | None = None
    to_queue: ToQueue | None = None
    to_topic: ToTopic | None = None
    rate: Annotated[int, between(1, RATE_MAX, "Events a second, at most")] | None = None
    direct: Annotated[
        bool, Meta(description="Post to a subscriber from Spark's tasks, without passing through Redis")
    ] = False
    dry_run: DryRun = False


_ASKED = msgspec.json.Decoder(ReplayAsked)


def parse(body: bytes) -> ReplayAsked:
    """A checked request; raises BadRequest with what was seen and what is allowed."""
    return schema.decode(_ASKED, body, what="a replay")


def plan(asked: ReplayAsked, *, now_ms: int, rate: int) -> Replay:
    """The replay that is asked for, as of now; `rate` is the one to take when none is given."""
    target, name = _target(asked)
    from_ms = 0 if asked.start is None else moment.to_ms(moment.parse(asked.start, field="from"))
    upto_ms = now_ms if asked.end is None else moment.to_ms(moment.parse(asked.end, field="to"))
    if upto_ms > now_ms:
        raise BadRequest(f"to is {asked.end!r}, in the future; what has not happened cannot be replayed")
    if from_ms >= upto_ms:
        raise BadRequest(f"from is {asked.start!r} and not before to, {asked.end or 'now'!r}")
    if asked.topic is not None:
        events.check_topic(asked.topic)
    tenant = events.tenant_text(asked.tenant)
    if tenant is not None:
        events.check_tenant(tenant)
    if asked.where is not None and not 1 <= len(asked.where) <= WHERE_LENGTH_MAX:
        raise BadRequest(f"where has {len(asked.where)} characters; it must have from 1 to {WHERE_LENGTH_MAX}")
    if asked.direct and target != "subscriber":
        raise BadRequest(f"direct goes to a subscriber alone, by its callback; this replay goes to a {target}")
    if asked.rate is not None and not 1 <= asked.rate <= RATE_MAX:
        raise BadRequest(f"rate is {asked.rate}; it must be from 1 to {RATE_MAX} events a second")
    return Replay(
        target=target,
        name=name,
        from_ms=max(0, from_ms),
        upto_ms=upto_ms,
        rate=asked.rate or rate,
        topic=asked.topic or "",
        tenant=tenant or "",
        where=asked.where or "",
        direct=asked.direct,
        dry_run=asked.dry_run,
    )


def _target(asked: ReplayAsked) -> tuple[str, str]:
    given = {kind: getattr(asked, f"to_{kind}") for kind in TARGETS}
    named = {kind: name for kind, name in given.items() if name is not None}
    if len(named) != 1:
        seen = " and ".join(f"to_{kind}" for kind in named) or "none of them"
        raise BadRequest(f"a replay has one target: to_subscriber, to_queue or to_topic; there is {seen}")
    [(kind, name)] = named.items()
    if kind == "topic":
        events.check_topic(name)
    elif not _NAME.fullmatch(name):
        raise BadRequest(f"to_{kind} is {name[:80]!r}; it must be a name")
    return kind, name


def command(subscriber: str, topics: Sequence[str], *, from_ms: int, upto_ms: int | None = None) -> str:
    """The command that replays what was accepted within a time to a subscriber: of its topics, as a shell takes it.

    Past Redis, where a bound on what waits for it would drop some again.
    """
    words = f"doubledecker replay --direct --receiver {subscriber} --from {moment.to_text(moment.from_ms(from_ms))}"
    if upto_ms is not None:
        words += f" --to {moment.to_text(moment.from_ms(upto_ms))}"
    globs = topic_glob.among(topics)
    if len(topics) == 1 and not globs:
        return f"{words} --topic {topics[0]}"
    names = [f"'{topic}'" for topic in topics if topic not in globs]
    some = ", ".join(names[:_TOPICS_SHOWN_MAX])
    any_of = [f"topic like '{topic_glob.to_like(glob)}'" for glob in globs[:_TOPICS_SHOWN_MAX]]
    any_of += ["…"] if len(globs) > _TOPICS_SHOWN_MAX else []
    any_of += [f"topic in ({some}{', …' if len(names) > _TOPICS_SHOWN_MAX else ''})"] if names or not globs else []
    return f'{words} --where "{" or ".join(any_of)}"'
