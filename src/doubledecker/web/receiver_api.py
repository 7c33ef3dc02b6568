"""The routes of subscriptions, and of receivers of any kind: what is declared of them (web/api.py has the others)."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated

from doubledecker.model.attempt import FAILED
from doubledecker.model.event import EVENT_ID, Tenant, TopicName
from doubledecker.model.schema import matching, one_of
from doubledecker.model.scopes import LOOKING, PORTAL, SUBSCRIBING
from doubledecker.model.signing import SecretRotation
from doubledecker.model.subscriber import Subscription, SubscriptionChange, SubscriptionName, SubscriptionWanted
from doubledecker.model.topic_glob import TopicOrGlob
from doubledecker.web.attempts import OUTCOMES, STATUS, AttemptRoutes, AttemptsAnswer
from doubledecker.web.dead_letters import (
    ChosenBody,
    DeadLetterAnswer,
    DeadLetterRoutes,
    DeadLetters,
    LetterJobAnswer,
    SettledLetters,
)
from doubledecker.web.gift import Gift
from doubledecker.web.parameters import (
    ADMINS,
    DONE,
    IDEMPOTENCY_KEY,
    LIMIT,
    MANAGING,
    OF_TENANT,
    QUEUE,
    REPLAYING,
    Rows,
    ok,
)
from doubledecker.web.queries import LIST_MAX
from doubledecker.web.receivers import ReceiverRoutes
from doubledecker.web.resending import ResendBody, ResendRoutes, Resent
from doubledecker.web.route_table import ApiRoute, Content, Handler, Parameter, Reply, json
from doubledecker.web.shapes import ReceiverState, SecretRotated, SubscriberAnswer, SubscriptionMade
from doubledecker.web.subscriptions import STATES, SubscriptionRoutes
from doubledecker.web.trials import TrialAnswer

_TOPICS = Parameter("path", "name", "The topic or the glob, as it was subscribed to", TopicOrGlob, "orders.*")
_WHICH = "Its id; or for the default one a client's name that no other has. A slash is sent as %2F"
_SUBSCRIBER = Parameter("path", "subscriber", _WHICH, example="mail-1a2b3c4d")
_SUBSCRIPTION = Parameter("path", "name", "What its client calls it", SubscriptionName, "billing")
# What a portal token may do too.
_BY_NAME = (*SUBSCRIBING, PORTAL)
_FOR_TENANT = Parameter("query", "tenant", "That of this tenant; a portal token has its own", Tenant, "acme")
_LETTER = Parameter("path", "id", "The dead letter's id", example="0-1")
_LETTER_JOB = Parameter("path", "id", "The job's id", example="mX2kcBzQeRf8TQm1o9Ja")
_LISTED_SUBSCRIPTIONS = (
    Parameter("query", "topic", "Only those of this topic", TopicName, "orders"),
    Parameter("query", "tenant", "Only those for this tenant", Tenant, "acme"),
    Parameter("query", "state", "Only those in this state", Annotated[str, one_of(STATES)], "failing"),
    Parameter("query", "host", "Only those whose callback has this host", example="mail.example"),
    Parameter("query", "limit", f"Rows of a page, at most {LIST_MAX}; all without it", Rows),
    Parameter("query", "after", "With limit: the id that the page follows"),
)
_OF_EVENT = Parameter("query", "event", "The id of an event; required", Annotated[str, matching(EVENT_ID)], "evt-1")
_ATTEMPTS = (
    Parameter("query", "outcome", "Only this outcome", Annotated[str, one_of([*OUTCOMES, FAILED])], "refused"),
    Parameter("query", "status", "Only this status", Annotated[str, matching(STATUS)], "503"),
    Parameter("query", "from", "Only those written from then on, in ISO 8601", example="2026-11-15T11:00:00Z"),
    Parameter("query", "to", "Only those written before then", example="2030-11-15T12:00:00Z"),
    Parameter("query", "before", "Only those older than the one with this id", example="1763200000123-0-0"),
    LIMIT,
)
_LETTERS = (
    Parameter("query", "topic", "Only of this topic", TopicName),
    OF_TENANT,
    Parameter("query", "reason", "Only those that died of this", example="attempts"),
    Parameter("query", "status", "Only those whose last answer had it; 0 for none", example="500"),
    Parameter("query", "from", "Only those that died from then on, in ISO 8601", example="2026-11-15T11:00:00Z"),
    Parameter("query", "to", "Only those that died before then", example="2030-11-15T12:00:00Z"),
    Parameter(
        "query", "event", "Of each page only those of the event with this id, which is no index", example="evt-1"
    ),
    Parameter("query", "after", "The `after` of the page before", example="1763200000123000-0"),
    LIMIT,
)


def of_subscriptions(routes: SubscriptionRoutes) -> list[ApiRoute]:
    """Who subscribes to what."""
    wanted, listed, named = json(Subscription), ok(list[SubscriberAnswer], "By id"), (_SUBSCRIPTION, _FOR_TENANT)
    put, changes, seen = json(SubscriptionWanted), json(SubscriptionChange), ok(SubscriberAnswer)
    made = {
        201: Reply(json(SubscriptionMade), "The subscription is new"),
        200: Reply(json(SubscriptionMade), "The subscription was replaced"),
    }
    return [
        ApiRoute("POST /subscription", routes.subscribe, DONE, (429,), takes=wanted, is_paced=True, needs=SUBSCRIBING),
        ApiRoute("POST /subscriber", routes.subscribe, DONE, (429,), takes=wanted, is_paced=True, needs=SUBSCRIBING),
        ApiRoute("DELETE /subscriber", routes.unsubscribe, DONE, (404,), needs=SUBSCRIBING),
        ApiRoute("DELETE /subscriber/topics/{name}", routes.leave_topic, DONE, (404,), (_TOPICS,), needs=SUBSCRIBING),
        ApiRoute("GET /subscriptions", routes.list_, listed, parameters=_LISTED_SUBSCRIPTIONS, needs=_BY_NAME),
        ApiRoute("GET /subscribers", routes.list_, listed, parameters=_LISTED_SUBSCRIPTIONS, needs=_BY_NAME),
        ApiRoute("PUT /subscriptions/{name}", routes.put, made, (409, 429), named, put, is_paced=True, needs=_BY_NAME),
        ApiRoute("GET /subscriptions/{name}", routes.show, seen, (404,), named, needs=_BY_NAME),
        ApiRoute(
            "PATCH /subscriptions/{name}",
            routes.change,
            seen,
            (404, 429),
            named,
            changes,
            is_paced=True,
            needs=_BY_NAME,
        ),
        ApiRoute("DELETE /subscriptions/{name}", routes.delete, DONE, (404,), named, needs=_BY_NAME),
        ApiRoute("DELETE /subscribers/{subscriber}", routes.end, DONE, (404,), (_SUBSCRIBER,), needs=SUBSCRIBING),
        ApiRoute(
            "POST /subscribers/{subscriber}/give",
            routes.give,
            DONE,
            (404, 409, 429),
            (_SUBSCRIBER,),
            json(Gift),
            needs=ADMINS,
        ),
    ]


def of_attempts(attempts: AttemptRoutes, resending: ResendRoutes) -> list[ApiRoute]:
    """Delivery attempts, of a receiver or of an event; and sending an event again."""
    resent = {202: Reply(json(Resent), "It waits for the receiver again")}
    listed = ok(AttemptsAnswer, "The newest first")
    return [
        *_of_each_receiver("GET", "attempts", attempts.list_, listed, parameters=_ATTEMPTS, needs=LOOKING),
        ApiRoute("GET /attempts", attempts.list_of_event, listed, parameters=(_OF_EVENT, *_ATTEMPTS), needs=LOOKING),
        *_of_each_receiver(
            "POST",
            "resend",
            resending.resend,
            resent,
            problems=(429,),
            parameters=(IDEMPOTENCY_KEY,),
            takes=json(ResendBody),
            needs=REPLAYING,
        ),
    ]


def of_receivers(receivers: ReceiverRoutes) -> list[ApiRoute]:
    """What can be done to a receiver, whichever it is."""
    state, rotated = ok(ReceiverState), ok(SecretRotated, "The receiver with its new secret, shown this once")
    tried = ok(TrialAnswer, "Its outcome, whatever that is")
    return [
        *_of_each_receiver("POST", "pause", receivers.pause, state, problems=(429,), is_paced=True, needs=MANAGING),
        *_of_each_receiver("POST", "resume", receivers.resume, state, problems=(429,), is_paced=True, needs=MANAGING),
        *_of_each_receiver("POST", "enable", receivers.enable, state, problems=(429,), is_paced=True, needs=MANAGING),
        *_of_each_receiver(
            "POST",
            "rotate-secret",
            receivers.rotate_secret,
            rotated,
            problems=(429,),
            takes=json(SecretRotation),
            is_paced=True,
            needs=MANAGING,
        ),
        *_of_each_receiver("POST", "test", receivers.test, tried, problems=(429,), needs=MANAGING),
    ]


def of_dead_letters(letters: DeadLetterRoutes) -> list[ApiRoute]:
    """What a receiver was given up for."""
    named, job, body = (_LETTER,), (_LETTER_JOB,), json(ChosenBody)
    settled = {200: Reply(json(SettledLetters)), 202: Reply(json(LetterJobAnswer), "A job will do it")}
    listed, shown = ok(DeadLetters, "The oldest first"), ok(LetterJobAnswer)
    jobs, busy = ok(list[LetterJobAnswer], "The newest first"), (409, 429)
    return [
        *_of_each_receiver("GET", "dead", letters.list_, listed, parameters=_LETTERS, needs=LOOKING),
        *_of_each_receiver("GET", "dead/jobs", letters.list_jobs, jobs, needs=LOOKING),
        *_of_each_receiver("GET", "dead/jobs/{id}", letters.show_job, shown, parameters=job, needs=LOOKING),
        *_of_each_receiver(
            "DELETE", "dead/jobs/{id}", letters.cancel_job, shown, problems=(409,), parameters=job, needs=MANAGING
        ),
        *_of_each_receiver(
            "POST", "dead/redrive", letters.redrive, settled, problems=busy, takes=body, is_paced=True, needs=MANAGING
        ),
        *_of_each_receiver(
            "POST", "dead/purge", letters.purge, settled, problems=busy, takes=body, is_paced=True, needs=MANAGING
        ),
        *_of_each_receiver("GET", "dead/{id}", letters.show, ok(DeadLetterAnswer), parameters=named, needs=LOOKING),
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
    """An action of a client's subscriptions, of any by its id, and of a queue, mostly of one with a callback."""
    # Nothing is sent of a queue without a callback; dead letters it may have.
    of_queue = (404,) if action.startswith("dead") else (404, 409)
    for prefix, named, denied in (
        ("/subscriber", (), (404,)),
        ("/subscriptions/{name}", (_SUBSCRIPTION,), (404,)),
        ("/subscribers/{subscriber}", (_SUBSCRIBER,), (404,)),
        ("/queues/{name}", (QUEUE,), of_queue),
    ):
        at, known = f"{method} {prefix}/{action}", (*named, *parameters)
        # Through a portal, of its tenant's subscriptions; what was published before is not its to send.
        is_portals = prefix.startswith(("/subscriptions", "/subscribers")) and action != "resend"
        opens = (*needs, PORTAL) if is_portals else needs
        yield ApiRoute(at, handler, replies, (*denied, *problems), known, takes or {}, is_paced=is_paced, needs=opens)
