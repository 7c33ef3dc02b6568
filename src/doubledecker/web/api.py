"""Every route of the API: who answers it, what it takes, and how it ends well; the OpenAPI document is made of this.

Problems that any request may meet are not repeated here: openapi.py adds them.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated

from msgspec import Meta, Raw

from doubledecker.model import glob
from doubledecker.model.attempt import FAILED
from doubledecker.model.erasure import ErasureAsked
from doubledecker.model.event import EVENT_ID, Offered, Tenant, TopicEvent, TopicName
from doubledecker.model.pipeline_job import ErasureAnswer, ReplayAnswer
from doubledecker.model.queue import QueueName, QueueWanted, RuleWanted
from doubledecker.model.replay import ReplayAsked
from doubledecker.model.schema import matching, one_of
from doubledecker.model.scopes import (
    ADMIN,
    ANY,
    CONSUME,
    LOOKING,
    MANAGE,
    PUBLISH,
    REPLAY,
    SEARCH,
    SEEING_QUEUES,
    STREAM,
    SUBSCRIBING,
)
from doubledecker.model.signing import SecretRotation
from doubledecker.model.subscriber import Subscription
from doubledecker.model.token import Rotation, TokenChange, TokenWanted
from doubledecker.model.topic import TopicView, TopicWanted
from doubledecker.model.topic_glob import TopicOrGlob
from doubledecker.web.attempts import OUTCOMES, STATUS, AttemptRoutes, AttemptsAnswer
from doubledecker.web.audit import ACTION, AuditAnswer, AuditRoutes
from doubledecker.web.cloud_events import BATCH, STRUCTURED, CloudEventBody
from doubledecker.web.dead_letters import (
    ChosenBody,
    DeadLetterAnswer,
    DeadLetterRoutes,
    DeadLetters,
    LetterJobAnswer,
    SettledLetters,
)
from doubledecker.web.filters import FilterRoutes, FilterTestBody, FilterTested
from doubledecker.web.pipeline_jobs import PipelineJobRoutes
from doubledecker.web.publishing import KEY, NDJSON, Publishing
from doubledecker.web.queue_bodies import LIST_MAX, HeldBody, PullBody, PurgeBody
from doubledecker.web.queue_contents import QueueContents
from doubledecker.web.queue_shapes import (
    Counted,
    FacetAnswer,
    Peeked,
    PulledAnswer,
    QueueAnswer,
    QueueListed,
    QueueMade,
    RuleAnswer,
    SettledAnswer,
)
from doubledecker.web.queues import Queues
from doubledecker.web.receivers import ReceiverRoutes
from doubledecker.web.resending import ResendBody, ResendRoutes, Resent
from doubledecker.web.route_table import ApiRoute, Content, Handler, Parameter, Reply, json
from doubledecker.web.routes import Routes
from doubledecker.web.shapes import (
    Alive,
    PublishedAnswer,
    Ready,
    ReceiverState,
    SecretRotated,
    Status,
    SubscriberAnswer,
    TokenListed,
    TokenMade,
    TokenRotated,
    VersionAnswer,
)
from doubledecker.web.stream import Streaming
from doubledecker.web.subscriptions import SubscriptionRoutes
from doubledecker.web.tokens import TokenRoutes
from doubledecker.web.topics import Gift, TopicRoutes
from doubledecker.web.trials import TrialAnswer

# Actions of which a route needs one; reading needs no more than `read-only`, and who has `admin` may do all.
_PUBLISHING, _CONSUMING, _REPLAYING, _MANAGING, _ADMINS = (PUBLISH,), (CONSUME,), (REPLAY,), (MANAGE,), (ADMIN,)
_SUBSCRIBING, _LOOKING, _SEEING_QUEUES = SUBSCRIBING, LOOKING, SEEING_QUEUES
_DIGITS = re.compile("[0-9]+")
_Flag = Annotated[str, one_of(["0", "1"]), Meta(extra_json_schema={"default": "0"})]
_Rows = Annotated[str, matching(re.compile("[0-9]{1,4}"))]
_HundredRows = Annotated[_Rows, Meta(extra_json_schema={"default": "100"})]
_Glob = Annotated[str, matching(glob.ALLOWED, length_max=glob.LENGTH_MAX), Meta(extra_json_schema={"default": "*"})]
_From = Annotated[str, Meta(extra_json_schema={"default": "latest"})]
# An item that is no event is refused alone, so a list may hold anything.
_Listed = Annotated[list[Annotated[Raw, Meta(description="An Event; see `refused`")]], Meta(min_length=1)]
_Events = Annotated[Offered | _Listed, Meta(title="Events")]
_EXAMPLE = '{"topic":"orders","type":"paid"}\n{"topic":"orders","type":"shipped"}\n'
_Lines = Annotated[str, Meta(description="One Event a line; empty lines are skipped", examples=[_EXAMPLE])]

_TOPIC = Parameter("path", "name", "The topic", TopicName, "orders")
_TOPICS = Parameter("path", "name", "The topic or the glob, as it was subscribed to", TopicOrGlob, "orders.*")
_TOKEN = Parameter("path", "name", "The token's id, or its secret", example="shop-1a2b3c4d")
_SUBSCRIBER = Parameter("path", "subscriber", "Its client's id, or a name that no other has", example="mail-1a2b3c4d")
_QUEUE = Parameter("path", "name", "The queue", QueueName, "jobs")
_TENANT = Parameter("path", "tenant", "The tenant", Tenant, "acme")
_LETTER = Parameter("path", "id", "The dead letter's id", example="0-1")
_LETTER_JOB = Parameter("path", "id", "The job's id", example="mX2kcBzQeRf8TQm1o9Ja")
_PIPELINE_JOB = Parameter("path", "id", "Its id", example="mX2kcBzQeRf8TQm1o9Ja")
_OF_TENANT = Parameter("query", "tenant", "Of this tenant alone", Tenant)
_LIMIT = Parameter("query", "limit", f"Rows, at most {LIST_MAX}", _HundredRows)
_FACETS = Parameter("query", "facets", f"Facets shown, at most {LIST_MAX}", _HundredRows)
_DISCARD = Parameter("query", "discard", "1 destroys what the queue holds", _Flag)
_ALL = Parameter("query", "all", "1: all events are published, in one write, or none", _Flag)
_CloudEvents = Annotated[list[CloudEventBody], Meta(title="CloudEvents", description="Any number of CloudEvents")]
_OF_CLOUD_EVENTS = Parameter("query", "topic", "The topic of CloudEvents that name none", TopicName, "orders")
_PAGE = (
    Parameter("query", "limit", f"Rows of a page, at most {LIST_MAX}; all without it", _Rows),
    Parameter("query", "after", "With limit: the name that the page follows"),
)
_REPEATABLE = "Makes the request repeatable for 24 h: same key and body, same answer, published once"
_KEY = Parameter("header", "Idempotency-Key", _REPEATABLE, Annotated[str, matching(KEY)], "order-1-paid")
_GLOB = "A glob on the routing key tenant:topic:type; `*` is any text, `?` one character"
_START = "Where to start: `earliest`, `latest`, or after the event of a stream with this id"
_STREAM = (
    Parameter("query", "pattern", _GLOB, _Glob, "*:page:*"),
    Parameter("query", "from", _START, _From),
    Parameter("query", "strict", "1: 410, or the end of the stream, instead of a gap", _Flag),
    Parameter("header", "Last-Event-ID", "The id of the last event that was received; goes before `from`"),
)


_OF_EVENT = Parameter("query", "event", "The id of an event; required", Annotated[str, matching(EVENT_ID)], "evt-1")
_ATTEMPTS = (
    Parameter("query", "outcome", "Only this outcome", Annotated[str, one_of([*OUTCOMES, FAILED])], "refused"),
    Parameter("query", "status", "Only this status", Annotated[str, matching(STATUS)], "503"),
    Parameter("query", "from", "Only those written from then on, in ISO 8601", example="2026-11-15T11:00:00Z"),
    Parameter("query", "to", "Only those written before then", example="2030-11-15T12:00:00Z"),
    Parameter("query", "before", "Only those older than the one with this id", example="1763200000123-0-0"),
    _LIMIT,
)
_AUDIT = (
    Parameter("query", "actor", "Only what this client did, by its id or its name, or `root`", example="mail-1a2b3c4d"),
    Parameter("query", "action", "Only this action", Annotated[str, matching(ACTION)], "queue.deleted"),
    Parameter("query", "target", "Only what was done to this", example="jobs"),
    Parameter("query", "from", "Only what was written from then on, in ISO 8601", example="2026-11-15T11:00:00Z"),
    Parameter("query", "to", "Only what was written before then", example="2030-11-15T12:00:00Z"),
    Parameter("query", "before", "Only what is older than the record with this id", example="1763200000123-0-0"),
    _LIMIT,
)
_LETTERS = (
    Parameter("query", "topic", "Only of this topic", TopicName),
    _OF_TENANT,
    Parameter("query", "reason", "Only those that died of this", example="attempts"),
    Parameter("query", "status", "Only those whose last answer had it; 0 for none", example="500"),
    Parameter("query", "from", "Only those that died from then on, in ISO 8601", example="2026-11-15T11:00:00Z"),
    Parameter("query", "to", "Only those that died before then", example="2030-11-15T12:00:00Z"),
    Parameter(
        "query", "event", "Of each page only those of the event with this id, which is no index", example="evt-1"
    ),
    Parameter("query", "after", "The `after` of the page before", example="1763200000123000-0"),
    _LIMIT,
)


def _ok(type_: object, description: str = "") -> Mapping[int, Reply]:
    return {200: Reply(json(type_), description)}


_CLOUD_EVENTS = {STRUCTURED.decode(): CloudEventBody, BATCH.decode(): _CloudEvents}
_EVENTS = {**json(_Events), **{kind.decode(): _Lines for kind in NDJSON}, **_CLOUD_EVENTS}
_DONE = {204: Reply()}
_ENDED = {
    204: Reply(headers={"Ended-Subscriptions": Annotated[str, matching(_DIGITS, "How many subscriptions ended")]})
}
_STREAMED = Reply({"text/event-stream": str}, "Events, and `gap` and `dropped` as named events; without end")
_PUBLISHED = Reply(json(PublishedAnswer), "The ids of the published events, in order")
_TOKENS = {200: Reply(json(list[TokenListed])), 204: Reply(description="There is none")}
_TOKEN_MADE = Reply(json(TokenMade), "The token with its secret, shown this once")
_ROTATED = _ok(TokenRotated, "The token with its new secret, shown this once")
_DEFINED = {
    201: Reply(json(QueueMade), "The queue is new"),
    200: Reply(json(QueueMade), "The queue was replaced, or is as it was"),
}
_TOPIC_SAVED = {
    201: Reply(json(TopicView), "The topic is new, and the caller's"),
    200: Reply(json(TopicView), "The topic as it is now"),
}
_ASKED = "The pipeline will carry it out"


@dataclass(frozen=True)
class RouteGroups:
    """Who answers what."""

    publishing: Publishing
    topics: TopicRoutes
    routes: Routes
    subscriptions: SubscriptionRoutes
    tokens: TokenRoutes
    queues: Queues
    contents: QueueContents
    letters: DeadLetterRoutes
    receivers: ReceiverRoutes
    attempts: AttemptRoutes
    resending: ResendRoutes
    streaming: Streaming
    filters: FilterRoutes
    jobs: PipelineJobRoutes
    audit: AuditRoutes


def of_all(groups: RouteGroups, *, document: Handler, metrics_public: bool) -> list[ApiRoute]:
    """Every route there is."""
    return [
        *of_events(groups.publishing, groups.streaming, groups.topics),
        *of_subscriptions(groups.subscriptions),
        *of_tokens(groups.tokens),
        *of_receivers(groups.receivers),
        *of_attempts(groups.attempts, groups.resending),
        *of_dead_letters(groups.letters),
        *of_queues(groups.queues, groups.contents),
        *of_filters(groups.filters),
        *of_jobs(groups.jobs),
        *of_audit(groups.audit),
        *of_process(groups.routes, document=document, metrics_public=metrics_public),
    ]


def of_events(publishing: Publishing, streaming: Streaming, topics: TopicRoutes) -> list[ApiRoute]:
    """Topics, events, and who publishes."""
    return [
        ApiRoute(
            "POST /events",
            publishing.post_events,
            {202: _PUBLISHED},
            (409, 429),
            (_ALL, _OF_CLOUD_EVENTS, _KEY),
            _EVENTS,
            needs=_PUBLISHING,
        ),
        ApiRoute("GET /stream", streaming.get_stream, {200: _STREAMED}, (410, 429), _STREAM, needs=(STREAM,)),
        ApiRoute("GET /topics", topics.list_, _ok(list[TopicView]), parameters=_PAGE, needs=ANY),
        ApiRoute(
            "POST /topics/{name}",
            publishing.post_topic,
            _DONE,
            (409, 429),
            (_TOPIC, _KEY),
            json(TopicEvent),
            needs=_PUBLISHING,
        ),
        ApiRoute("GET /topics/{name}", topics.show, _ok(TopicView), (404,), (_TOPIC,), needs=ANY),
        ApiRoute(
            "PUT /topics/{name}",
            topics.put,
            _TOPIC_SAVED,
            (404, 429),
            (_TOPIC,),
            json(TopicWanted),
            is_paced=True,
            needs=_MANAGING,
        ),
        ApiRoute("DELETE /topics/{name}", topics.delete, _ENDED, (404,), (_TOPIC,), needs=_MANAGING),
        ApiRoute("POST /topics/{name}/give", topics.give, _DONE, (404,), (_TOPIC,), json(Gift), needs=_ADMINS),
    ]


def of_tokens(tokens: TokenRoutes) -> list[ApiRoute]:
    """Who may use the bus."""
    rotating = (404, 409, 429)
    return [
        ApiRoute("GET /api_tokens", tokens.list_, _TOKENS, parameters=_PAGE, needs=_ADMINS),
        ApiRoute(
            "POST /api_tokens",
            tokens.create,
            {201: _TOKEN_MADE},
            (409, 429),
            takes=json(TokenWanted),
            needs=_ADMINS,
        ),
        ApiRoute(
            "PATCH /api_tokens/{name}",
            tokens.change,
            _ok(TokenListed),
            (404,),
            (_TOKEN,),
            json(TokenChange),
            needs=_ADMINS,
        ),
        ApiRoute("DELETE /api_tokens/{name}", tokens.delete, _DONE, (), (_TOKEN,), needs=_ADMINS),
        ApiRoute(
            "POST /api_tokens/{name}/rotate",
            tokens.rotate,
            _ROTATED,
            rotating,
            (_TOKEN,),
            json(Rotation),
            needs=_ADMINS,
        ),
    ]


def of_subscriptions(routes: SubscriptionRoutes) -> list[ApiRoute]:
    """Who subscribes to what."""
    wanted, subscribers = json(Subscription), _ok(list[SubscriberAnswer])
    return [
        ApiRoute(
            "POST /subscription", routes.subscribe, _DONE, (429,), takes=wanted, is_paced=True, needs=_SUBSCRIBING
        ),
        ApiRoute("GET /subscriptions", routes.list_subscribers, subscribers, needs=_SUBSCRIBING),
        ApiRoute("POST /subscriber", routes.subscribe, _DONE, (429,), takes=wanted, is_paced=True, needs=_SUBSCRIBING),
        ApiRoute("DELETE /subscriber", routes.unsubscribe, _DONE, (404,), needs=_SUBSCRIBING),
        ApiRoute("GET /subscribers", routes.list_subscribers, subscribers, needs=_SUBSCRIBING),
        ApiRoute("DELETE /subscriber/topics/{name}", routes.leave_topic, _DONE, (404,), (_TOPICS,), needs=_SUBSCRIBING),
    ]


def of_attempts(attempts: AttemptRoutes, resending: ResendRoutes) -> list[ApiRoute]:
    """Delivery attempts, of a receiver or of an event; and sending an event again."""
    resent = {202: Reply(json(Resent), "It waits for the receiver again")}
    listed = _ok(AttemptsAnswer, "The newest first")
    return [
        *_of_each_receiver("GET", "attempts", attempts.list_, listed, parameters=_ATTEMPTS, needs=_LOOKING),
        ApiRoute("GET /attempts", attempts.list_of_event, listed, parameters=(_OF_EVENT, *_ATTEMPTS), needs=_LOOKING),
        *_of_each_receiver(
            "POST",
            "resend",
            resending.resend,
            resent,
            problems=(429,),
            parameters=(_KEY,),
            takes=json(ResendBody),
            needs=_REPLAYING,
        ),
    ]


def of_receivers(receivers: ReceiverRoutes) -> list[ApiRoute]:
    """What can be done to a receiver, whichever it is."""
    state, rotated = _ok(ReceiverState), _ok(SecretRotated, "The receiver with its new secret, shown this once")
    tried = _ok(TrialAnswer, "Its outcome, whatever that is")
    return [
        *_of_each_receiver("POST", "pause", receivers.pause, state, problems=(429,), is_paced=True, needs=_MANAGING),
        *_of_each_receiver("POST", "resume", receivers.resume, state, problems=(429,), is_paced=True, needs=_MANAGING),
        *_of_each_receiver("POST", "enable", receivers.enable, state, problems=(429,), is_paced=True, needs=_MANAGING),
        *_of_each_receiver(
            "POST",
            "rotate-secret",
            receivers.rotate_secret,
            rotated,
            problems=(429,),
            takes=json(SecretRotation),
            is_paced=True,
            needs=_MANAGING,
        ),
        *_of_each_receiver("POST", "test", receivers.test, tried, problems=(429,), needs=_MANAGING),
    ]


def of_dead_letters(letters: DeadLetterRoutes) -> list[ApiRoute]:
    """What a receiver was given up for."""
    named, job, body = (_LETTER,), (_LETTER_JOB,), json(ChosenBody)
    settled = {200: Reply(json(SettledLetters)), 202: Reply(json(LetterJobAnswer), "A job will do it")}
    listed, shown = _ok(DeadLetters, "The oldest first"), _ok(LetterJobAnswer)
    jobs, busy = _ok(list[LetterJobAnswer], "The newest first"), (409, 429)
    return [
        *_of_each_receiver("GET", "dead", letters.list_, listed, parameters=_LETTERS, needs=_LOOKING),
        *_of_each_receiver("GET", "dead/jobs", letters.list_jobs, jobs, needs=_LOOKING),
        *_of_each_receiver("GET", "dead/jobs/{id}", letters.show_job, shown, parameters=job, needs=_LOOKING),
        *_of_each_receiver(
            "DELETE", "dead/jobs/{id}", letters.cancel_job, shown, problems=(409,), parameters=job, needs=_MANAGING
        ),
        *_of_each_receiver(
            "POST", "dead/redrive", letters.redrive, settled, problems=busy, takes=body, is_paced=True, needs=_MANAGING
        ),
        *_of_each_receiver(
            "POST", "dead/purge", letters.purge, settled, problems=busy, takes=body, is_paced=True, needs=_MANAGING
        ),
        *_of_each_receiver("GET", "dead/{id}", letters.show, _ok(DeadLetterAnswer), parameters=named, needs=_LOOKING),
    ]


def _of_each_receiver(
    method: str,
    action: str,
    handler: Handler,
    replies: Mapping[int, Reply],
    *,
    problems: Sequence[int] = (),
    parameters: Sequence[Parameter] = (),
    takes: Content | None = None,
    is_paced: bool = False,
    needs: Sequence[str],
) -> Iterator[ApiRoute]:
    """An action of a client's own subscriber, of one that is named, and of a queue, mostly of one with a callback."""
    # Nothing is sent of a queue without a callback; dead letters it may have.
    of_queue = (404,) if action.startswith("dead") else (404, 409)
    for prefix, named, denied in (
        ("/subscriber", (), (404,)),
        ("/subscribers/{subscriber}", (_SUBSCRIBER,), (404,)),
        ("/queues/{name}", (_QUEUE,), of_queue),
    ):
        at, known = f"{method} {prefix}/{action}", (*named, *parameters)
        yield ApiRoute(at, handler, replies, (*denied, *problems), known, takes or {}, is_paced=is_paced, needs=needs)


def of_queues(queues: Queues, contents: QueueContents) -> list[ApiRoute]:
    """Queues, the rules of their facets, and what they hold."""
    mine, held, settled = (404,), json(HeldBody), _ok(SettledAnswer)
    one, facet, some = (_QUEUE,), (_QUEUE, _TENANT), (_QUEUE, _OF_TENANT, _LIMIT)
    counted, ruled = _ok(Counted), _ok(RuleAnswer, "What holds now")
    return [
        ApiRoute("GET /queues", queues.list_, _ok(list[QueueListed]), parameters=_PAGE, needs=_SEEING_QUEUES),
        ApiRoute(
            "PUT /queues/{name}",
            queues.register,
            _DEFINED,
            (429,),
            one,
            json(QueueWanted),
            is_paced=True,
            needs=_MANAGING,
        ),
        ApiRoute("GET /queues/{name}", queues.show, _ok(QueueAnswer), mine, (_QUEUE, _FACETS), needs=_SEEING_QUEUES),
        ApiRoute("DELETE /queues/{name}", queues.delete, _DONE, (404, 409), (_QUEUE, _DISCARD), needs=_MANAGING),
        ApiRoute(
            "POST /queues/{name}/pull", queues.pull, _ok(PulledAnswer), mine, one, json(PullBody), needs=_CONSUMING
        ),
        ApiRoute("POST /queues/{name}/ack", queues.ack, settled, mine, one, held, needs=_CONSUMING),
        ApiRoute("POST /queues/{name}/nack", queues.nack, settled, mine, one, held, needs=_CONSUMING),
        ApiRoute("POST /queues/{name}/extend", queues.extend, settled, mine, one, held, needs=_CONSUMING),
        ApiRoute(
            "GET /queues/{name}/facets/{tenant}", queues.show_facet, _ok(FacetAnswer), mine, facet, needs=_SEEING_QUEUES
        ),
        ApiRoute(
            "PATCH /queues/{name}/facets/{tenant}",
            queues.change_facet,
            ruled,
            mine,
            facet,
            json(RuleWanted),
            needs=_MANAGING,
        ),
        ApiRoute("GET /queues/{name}/messages", contents.peek, _ok(Peeked), mine, some, needs=_LOOKING),
        ApiRoute("POST /queues/{name}/purge", contents.purge, counted, mine, one, json(PurgeBody), needs=_MANAGING),
    ]


def of_audit(audit: AuditRoutes) -> list[ApiRoute]:
    """Who did what."""
    listed = _ok(AuditAnswer, "The newest first")
    return [ApiRoute("GET /audit", audit.list_, listed, parameters=_AUDIT, needs=ANY)]


def of_filters(filters: FilterRoutes) -> list[ApiRoute]:
    """Filters of subscribers and queues, before they are set."""
    tested = _ok(FilterTested, "Which events fit, and why which do not")
    return [ApiRoute("POST /filters/test", filters.test, tested, takes=json(FilterTestBody), needs=(SEARCH, STREAM))]


def of_jobs(jobs: PipelineJobRoutes) -> list[ApiRoute]:
    """Replays and erasures, which the pipeline carries out."""
    replay, erasure = {202: Reply(json(ReplayAnswer), _ASKED)}, {202: Reply(json(ErasureAnswer), _ASKED)}
    one = (_PIPELINE_JOB,)
    return [
        ApiRoute("POST /replays", jobs.ask_replay, replay, (404, 429), takes=json(ReplayAsked), needs=_REPLAYING),
        ApiRoute("GET /replays", jobs.list_replays, _ok(list[ReplayAnswer]), needs=_REPLAYING),
        ApiRoute("GET /replays/{id}", jobs.show_replay, _ok(ReplayAnswer), (404,), one, needs=_REPLAYING),
        ApiRoute("DELETE /replays/{id}", jobs.cancel_replay, _ok(ReplayAnswer), (404, 409), one, needs=_REPLAYING),
        ApiRoute("POST /erasures", jobs.ask_erasure, erasure, (429,), takes=json(ErasureAsked), needs=_ADMINS),
        ApiRoute("GET /erasures", jobs.list_erasures, _ok(list[ErasureAnswer]), (), needs=_ADMINS),
        ApiRoute("GET /erasures/{id}", jobs.show_erasure, _ok(ErasureAnswer), (404,), one, needs=_ADMINS),
    ]


def of_process(routes: Routes, *, document: Handler, metrics_public: bool) -> list[ApiRoute]:
    """How the bus and the process are, and what there is to ask for."""
    metrics = {200: Reply({"text/plain": str}, "Text exposition")}
    return [
        ApiRoute("GET /pulse", routes.pulse, _DONE, needs=ANY),
        ApiRoute("GET /pulse/scaling", routes.pulse_scaling, _DONE, needs=ANY),
        ApiRoute("GET /health", routes.health, _ok(Status), is_public=True),
        ApiRoute("GET /health/ping", routes.health, _ok(Status), is_public=True),
        ApiRoute("GET /health/ping.json", routes.health, _ok(Status), is_public=True),
        ApiRoute("GET /livez", routes.livez, _ok(Alive), is_public=True),
        ApiRoute("GET /readyz", routes.readyz, _ok(Ready), is_public=True),
        ApiRoute("GET /version", routes.version, _ok(VersionAnswer), is_public=True),
        ApiRoute("GET /openapi.json", document, _ok(dict, "OpenAPI 3.1"), is_public=True),
        ApiRoute("GET /metrics", routes.metrics, metrics, is_public=metrics_public, needs=ANY),
    ]
