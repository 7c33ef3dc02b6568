"""Every route of the API: who answers it, what it takes, and how it ends well; the OpenAPI document is made of this.

Problems that any request may meet are not repeated here: openapi.py adds them.
"""

import re
from dataclasses import dataclass
from typing import Annotated

from msgspec import Meta, Raw

from doubledecker.model import glob
from doubledecker.model.erasure import ErasureAsked
from doubledecker.model.event import Offered, Tenant, TopicEvent, TopicName
from doubledecker.model.pipeline_job import ErasureAnswer, ReplayAnswer
from doubledecker.model.portal import PortalWanted
from doubledecker.model.queue import QueueWanted, RuleWanted
from doubledecker.model.replay import ReplayAsked
from doubledecker.model.schema import matching, one_of
from doubledecker.model.scopes import (
    ANY,
    LOOKING,
    PORTAL,
    SEARCH,
    SEEING_QUEUES,
    STREAM,
)
from doubledecker.model.token import Rotation, TokenChange, TokenWanted
from doubledecker.model.topic import TopicView, TopicWanted
from doubledecker.web import receiver_api
from doubledecker.web.attempts import AttemptRoutes
from doubledecker.web.audit import ACTION, AuditAnswer, AuditRoutes
from doubledecker.web.cloud_events import BATCH, STRUCTURED, CloudEventBody
from doubledecker.web.dead_letters import (
    DeadLetterRoutes,
)
from doubledecker.web.filters import FilterRoutes, FilterTestBody, FilterTested
from doubledecker.web.gift import Gift
from doubledecker.web.parameters import (
    ADMINS,
    CONSUMING,
    DONE,
    IDEMPOTENCY_KEY,
    LIMIT,
    MANAGING,
    OF_TENANT,
    PUBLISHING,
    QUEUE,
    REPLAYING,
    TOPIC,
    HundredRows,
    Rows,
    ok,
)
from doubledecker.web.pipeline_jobs import PipelineJobRoutes
from doubledecker.web.portal_tokens import PortalMade, PortalTokenRoutes
from doubledecker.web.publishing import NDJSON, Publishing
from doubledecker.web.queries import LIST_MAX
from doubledecker.web.queue_bodies import HeldBody, PullBody, PurgeBody
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
from doubledecker.web.resending import ResendRoutes
from doubledecker.web.route_table import ApiRoute, Handler, Parameter, Reply, json
from doubledecker.web.routes import Routes
from doubledecker.web.shapes import (
    Alive,
    PublishedAnswer,
    Ready,
    Status,
    TokenListed,
    TokenMade,
    TokenRotated,
    VersionAnswer,
)
from doubledecker.web.stream import Streaming
from doubledecker.web.subscriptions import SubscriptionRoutes
from doubledecker.web.tokens import TokenRoutes
from doubledecker.web.topics import TopicRoutes

_DIGITS = re.compile("[0-9]+")
_Flag = Annotated[str, one_of(["0", "1"]), Meta(extra_json_schema={"default": "0"})]
_Glob = Annotated[str, matching(glob.ALLOWED, length_max=glob.LENGTH_MAX), Meta(extra_json_schema={"default": "*"})]
_From = Annotated[str, Meta(extra_json_schema={"default": "latest"})]
# An item that is no event is refused alone, so a list may hold anything.
_Listed = Annotated[list[Annotated[Raw, Meta(description="An Event; see `refused`")]], Meta(min_length=1)]
_Events = Annotated[Offered | _Listed, Meta(title="Events")]
_EXAMPLE = '{"topic":"orders","type":"paid"}\n{"topic":"orders","type":"shipped"}\n'
_Lines = Annotated[str, Meta(description="One Event a line; empty lines are skipped", examples=[_EXAMPLE])]

_TOKEN = Parameter("path", "name", "The token's id, or its secret", example="shop-1a2b3c4d")
_TENANT = Parameter("path", "tenant", "The tenant", Tenant, "acme")
_PIPELINE_JOB = Parameter("path", "id", "Its id", example="mX2kcBzQeRf8TQm1o9Ja")
_FACETS = Parameter("query", "facets", f"Facets shown, at most {LIST_MAX}", HundredRows)
_DISCARD = Parameter("query", "discard", "1 destroys what the queue holds", _Flag)
_ALL = Parameter("query", "all", "1: all events are published, in one write, or none", _Flag)
_CloudEvents = Annotated[list[CloudEventBody], Meta(title="CloudEvents", description="Any number of CloudEvents")]
_OF_CLOUD_EVENTS = Parameter("query", "topic", "The topic of CloudEvents that name none", TopicName, "orders")
_PAGE = (
    Parameter("query", "limit", f"Rows of a page, at most {LIST_MAX}; all without it", Rows),
    Parameter("query", "after", "With limit: the name that the page follows"),
)
_GLOB = "A glob on the routing key tenant:topic:type; `*` is any text, `?` one character"
_START = "Where to start: `earliest`, `latest`, or after the event of a stream with this id"
_STREAM = (
    Parameter("query", "pattern", _GLOB, _Glob, "*:page:*"),
    Parameter("query", "from", _START, _From),
    Parameter("query", "strict", "1: 410, or the end of the stream, instead of a gap", _Flag),
    Parameter("header", "Last-Event-ID", "The id of the last event that was received; goes before `from`"),
)


_AUDIT = (
    Parameter("query", "actor", "Only what this client did, by its id or its name, or `root`", example="mail-1a2b3c4d"),
    Parameter("query", "action", "Only this action", Annotated[str, matching(ACTION)], "queue.deleted"),
    Parameter("query", "target", "Only what was done to this", example="jobs"),
    Parameter("query", "from", "Only what was written from then on, in ISO 8601", example="2026-11-15T11:00:00Z"),
    Parameter("query", "to", "Only what was written before then", example="2030-11-15T12:00:00Z"),
    Parameter("query", "before", "Only what is older than the record with this id", example="1763200000123-0-0"),
    LIMIT,
)

_CLOUD_EVENTS = {STRUCTURED.decode(): CloudEventBody, BATCH.decode(): _CloudEvents}
_EVENTS = {**json(_Events), **{kind.decode(): _Lines for kind in NDJSON}, **_CLOUD_EVENTS}
_ENDED = {
    204: Reply(headers={"Ended-Subscriptions": Annotated[str, matching(_DIGITS, "How many subscriptions ended")]})
}
_STREAMED = Reply({"text/event-stream": str}, "Events, and `gap` and `dropped` as named events; without end")
_PUBLISHED = Reply(json(PublishedAnswer), "The ids of the published events, in order")
_TOKENS = {200: Reply(json(list[TokenListed])), 204: Reply(description="There is none")}
_TOKEN_MADE = Reply(json(TokenMade), "The token with its secret, shown this once")
_ROTATED = ok(TokenRotated, "The token with its new secret, shown this once")
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
    portals: PortalTokenRoutes
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
        *receiver_api.of_subscriptions(groups.subscriptions),
        *of_tokens(groups.tokens),
        *of_portals(groups.portals),
        *receiver_api.of_receivers(groups.receivers),
        *receiver_api.of_attempts(groups.attempts, groups.resending),
        *receiver_api.of_dead_letters(groups.letters),
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
            (_ALL, _OF_CLOUD_EVENTS, IDEMPOTENCY_KEY),
            _EVENTS,
            needs=PUBLISHING,
        ),
        ApiRoute("GET /stream", streaming.get_stream, {200: _STREAMED}, (410, 429), _STREAM, needs=(STREAM,)),
        ApiRoute("GET /topics", topics.list_, ok(list[TopicView]), parameters=_PAGE, needs=(*ANY, PORTAL)),
        ApiRoute(
            "POST /topics/{name}",
            publishing.post_topic,
            DONE,
            (409, 429),
            (TOPIC, IDEMPOTENCY_KEY),
            json(TopicEvent),
            needs=PUBLISHING,
        ),
        ApiRoute("GET /topics/{name}", topics.show, ok(TopicView), (404,), (TOPIC,), needs=ANY),
        ApiRoute(
            "PUT /topics/{name}",
            topics.put,
            _TOPIC_SAVED,
            (404, 429),
            (TOPIC,),
            json(TopicWanted),
            is_paced=True,
            needs=MANAGING,
        ),
        ApiRoute("DELETE /topics/{name}", topics.delete, _ENDED, (404,), (TOPIC,), needs=MANAGING),
        ApiRoute("POST /topics/{name}/give", topics.give, DONE, (404,), (TOPIC,), json(Gift), needs=ADMINS),
    ]


def of_tokens(tokens: TokenRoutes) -> list[ApiRoute]:
    """Who may use the bus."""
    rotating = (404, 409, 429)
    return [
        ApiRoute("GET /api_tokens", tokens.list_, _TOKENS, parameters=_PAGE, needs=ADMINS),
        ApiRoute(
            "POST /api_tokens",
            tokens.create,
            {201: _TOKEN_MADE},
            (409, 429),
            takes=json(TokenWanted),
            needs=ADMINS,
        ),
        ApiRoute(
            "PATCH /api_tokens/{name}",
            tokens.change,
            ok(TokenListed),
            (404,),
            (_TOKEN,),
            json(TokenChange),
            needs=ADMINS,
        ),
        ApiRoute("DELETE /api_tokens/{name}", tokens.delete, DONE, (), (_TOKEN,), needs=ADMINS),
        ApiRoute(
            "POST /api_tokens/{name}/rotate",
            tokens.rotate,
            _ROTATED,
            rotating,
            (_TOKEN,),
            json(Rotation),
            needs=ADMINS,
        ),
    ]


def of_portals(portals: PortalTokenRoutes) -> list[ApiRoute]:
    """What a client gives a customer of its own."""
    made, wanted = {201: Reply(json(PortalMade), "The token, which is kept nowhere")}, json(PortalWanted)
    return [ApiRoute("POST /portal_tokens", portals.create, made, (429,), takes=wanted, is_paced=True, needs=MANAGING)]


def of_queues(queues: Queues, contents: QueueContents) -> list[ApiRoute]:
    """Queues, the rules of their facets, and what they hold."""
    mine, held, settled = (404,), json(HeldBody), ok(SettledAnswer)
    one, facet, some = (QUEUE,), (QUEUE, _TENANT), (QUEUE, OF_TENANT, LIMIT)
    counted, ruled = ok(Counted), ok(RuleAnswer, "What holds now")
    return [
        ApiRoute("GET /queues", queues.list_, ok(list[QueueListed]), parameters=_PAGE, needs=SEEING_QUEUES),
        ApiRoute(
            "PUT /queues/{name}",
            queues.register,
            _DEFINED,
            (429,),
            one,
            json(QueueWanted),
            is_paced=True,
            needs=MANAGING,
        ),
        ApiRoute("GET /queues/{name}", queues.show, ok(QueueAnswer), mine, (QUEUE, _FACETS), needs=SEEING_QUEUES),
        ApiRoute("DELETE /queues/{name}", queues.delete, DONE, (404, 409), (QUEUE, _DISCARD), needs=MANAGING),
        ApiRoute("POST /queues/{name}/pull", queues.pull, ok(PulledAnswer), mine, one, json(PullBody), needs=CONSUMING),
        ApiRoute("POST /queues/{name}/ack", queues.ack, settled, mine, one, held, needs=CONSUMING),
        ApiRoute("POST /queues/{name}/nack", queues.nack, settled, mine, one, held, needs=CONSUMING),
        ApiRoute("POST /queues/{name}/extend", queues.extend, settled, mine, one, held, needs=CONSUMING),
        ApiRoute(
            "GET /queues/{name}/facets/{tenant}", queues.show_facet, ok(FacetAnswer), mine, facet, needs=SEEING_QUEUES
        ),
        ApiRoute(
            "PATCH /queues/{name}/facets/{tenant}",
            queues.change_facet,
            ruled,
            mine,
            facet,
            json(RuleWanted),
            needs=MANAGING,
        ),
        ApiRoute("GET /queues/{name}/messages", contents.peek, ok(Peeked), mine, some, needs=LOOKING),
        ApiRoute("POST /queues/{name}/purge", contents.purge, counted, mine, one, json(PurgeBody), needs=MANAGING),
    ]


def of_audit(audit: AuditRoutes) -> list[ApiRoute]:
    """Who did what."""
    listed = ok(AuditAnswer, "The newest first")
    return [ApiRoute("GET /audit", audit.list_, listed, parameters=_AUDIT, needs=ANY)]


def of_filters(filters: FilterRoutes) -> list[ApiRoute]:
    """Filters of subscribers and queues, before they are set."""
    tested = ok(FilterTested, "Which events fit, and why which do not")
    return [ApiRoute("POST /filters/test", filters.test, tested, takes=json(FilterTestBody), needs=(SEARCH, STREAM))]


def of_jobs(jobs: PipelineJobRoutes) -> list[ApiRoute]:
    """Replays and erasures, which the pipeline carries out."""
    replay, erasure = {202: Reply(json(ReplayAnswer), _ASKED)}, {202: Reply(json(ErasureAnswer), _ASKED)}
    one = (_PIPELINE_JOB,)
    return [
        ApiRoute("POST /replays", jobs.ask_replay, replay, (404, 429), takes=json(ReplayAsked), needs=REPLAYING),
        ApiRoute("GET /replays", jobs.list_replays, ok(list[ReplayAnswer]), needs=REPLAYING),
        ApiRoute("GET /replays/{id}", jobs.show_replay, ok(ReplayAnswer), (404,), one, needs=REPLAYING),
        ApiRoute("DELETE /replays/{id}", jobs.cancel_replay, ok(ReplayAnswer), (404, 409), one, needs=REPLAYING),
        ApiRoute("POST /erasures", jobs.ask_erasure, erasure, (429,), takes=json(ErasureAsked), needs=ADMINS),
        ApiRoute("GET /erasures", jobs.list_erasures, ok(list[ErasureAnswer]), (), needs=ADMINS),
        ApiRoute("GET /erasures/{id}", jobs.show_erasure, ok(ErasureAnswer), (404,), one, needs=ADMINS),
    ]


def of_process(routes: Routes, *, document: Handler, metrics_public: bool) -> list[ApiRoute]:
    """How the bus and the process are, and what there is to ask for."""
    metrics = {200: Reply({"text/plain": str}, "Text exposition")}
    return [
        ApiRoute("GET /pulse", routes.pulse, DONE, needs=ANY),
        ApiRoute("GET /pulse/scaling", routes.pulse_scaling, DONE, needs=ANY),
        ApiRoute("GET /health", routes.health, ok(Status), is_public=True),
        ApiRoute("GET /health/ping", routes.health, ok(Status), is_public=True),
        ApiRoute("GET /health/ping.json", routes.health, ok(Status), is_public=True),
        ApiRoute("GET /livez", routes.livez, ok(Alive), is_public=True),
        ApiRoute("GET /readyz", routes.readyz, ok(Ready), is_public=True),
        ApiRoute("GET /version", routes.version, ok(VersionAnswer), is_public=True),
        ApiRoute("GET /openapi.json", document, ok(dict, "OpenAPI 3.1"), is_public=True),
        ApiRoute("GET /metrics", routes.metrics, metrics, is_public=metrics_public, needs=ANY),
    ]
