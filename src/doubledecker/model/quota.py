"""Quotas: how much one client may have, so that no client can take what the others need. Pure checks.

Every bound is a setting of the same name; 0 is no bound. Root is exempt.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from doubledecker.errors import QueueFull, QuotaExceeded, TooMany
from doubledecker.model import filter_syntax
from doubledecker.model.event_filter import EventFilter
from doubledecker.model.matching import steps_of
from doubledecker.model.queue import RegisteredQueue
from doubledecker.model.subscriber import Subscriber

# Backlogs are measured about once a second, and take some time to shrink.
WAITING_RETRY_S = 2
# What the subscriptions for one tenant may be and cost, so that one customer of a client does not take what the others
# need: a tenth of a client's by default.
TENANT_SUBSCRIBERS_MAX = 10
TENANT_TOPICS_MAX = 100
TENANT_FILTER_STEPS_MAX = 10


@dataclass(frozen=True)
class Quotas:
    """The bounds of a client, and those of all clients together."""

    client_topics_max: int = 1_000
    client_queues_max: int = 1_000
    client_copies_max: int = 16
    client_refusing_queues_max: int = 100
    client_pattern_steps_max: int = 10_000
    pattern_steps_max: int = 100_000
    client_filter_steps_max: int = 100
    filter_steps_max: int = 1_000
    client_subscribers_max: int = 100
    client_subscriptions_max: int = 1_000
    client_streams_max: int = 100
    client_requests_max: int = 500
    client_events_per_s: int = 200_000
    client_idempotency_keys_max: int = 100_000
    client_waiting_bytes_max: int = 1_073_741_824
    queue_tenants_max: int = 100_000

    def check(self, bound: str, wanted: int, *, noun: str, remedy: str) -> None:
        """Raise QuotaExceeded when more is wanted than a bound allows."""
        most: int = getattr(self, bound)
        if 0 < most < wanted:
            raise QuotaExceeded(bound, most, wanted, noun=noun, remedy=remedy)


# By client and by receiver.
_Filters = Mapping[str, Mapping[str, EventFilter]]


def check_queue(
    quotas: Quotas,
    queue: RegisteredQueue,
    queues: Mapping[str, RegisteredQueue],
    filters: _Filters,
    *,
    glob_steps: int = 0,
    glob_steps_total: int = 0,
) -> None:
    """Raise QuotaExceeded when its owner may not have this queue; one that asks for no more than it has always may.

    The steps of globs, the owner's and all, count with those of patterns.
    """
    check_filter(quotas, queue.owner, f"@{queue.name}", queue.filter, filters)
    others = [other for other in queues.values() if other.name != queue.name]
    former = queues.get(queue.name)
    own = [other for other in others if other.owner == queue.owner]
    if former is None:
        quotas.check(
            "client_queues_max",
            len(own) + 1,
            noun="queues of this client",
            remedy="delete some, or give several patterns to one",
        )
    if queue.refuses and not (former and former.refuses):
        # Each of them is written to before a publisher is answered, however many there are.
        quotas.check(
            "client_refusing_queues_max",
            sum(other.refuses for other in own) + 1,
            noun="queues of this client that refuse events when they are full",
            remedy="let this one drop its oldest, or give several patterns to one",
        )
    steps = _steps([*own, queue])
    more = steps - _steps([*own, former] if former else own)
    if more > 0:
        noun, remedy = "steps of compiled patterns", "delete queues, or write shorter patterns with fewer repetitions"
        quotas.check("client_pattern_steps_max", steps + glob_steps, noun=f"{noun} of this client", remedy=remedy)
        total = _total(queues) + glob_steps_total + more
        quotas.check("pattern_steps_max", total, noun=f"{noun} of all clients", remedy=remedy)


def check_filter(quotas: Quotas, client: str, receiver: str, wanted: str, filters: _Filters) -> None:
    """Raise QuotaExceeded when a client's filters would be too costly; they may if they cost no more than they do."""
    event_filter = filter_syntax.stored(wanted)
    if event_filter is None:
        return
    own = filters.get(client, {})
    steps = filter_steps([*(each for name, each in own.items() if name != receiver), event_filter])
    if steps <= filter_steps(own.values()):
        return
    remedy = "give some field a list of literals alone, by which the filter is looked up, or use fewer operators"
    quotas.check("client_filter_steps_max", steps, noun="steps of filters of this client", remedy=remedy)
    others = (each for them in filters.values() for name, each in them.items() if name != receiver)
    total = filter_steps([*others, event_filter])
    quotas.check("filter_steps_max", total, noun="steps of filters of all clients", remedy=remedy)


def filter_steps(filters: Iterable[EventFilter]) -> int:
    """What filters cost an event at most: what is checked of each, and the different fields by which they are found."""
    some = list(filters)
    anchors = {each.anchor.path for each in some if each.anchor is not None}
    return sum(each.steps for each in some) + len(anchors)


def check_copies(quotas: Quotas, copies: int) -> None:
    """Raise QuotaExceeded when one event would be on too many queues of one client."""
    quotas.check(
        "client_copies_max",
        copies,
        noun="queues of this client that get the same events",
        remedy="let several consumers pull from one queue, or write narrower patterns",
    )


def check_globs(quotas: Quotas, *, steps: int, more: int, total: int) -> None:
    """Raise QuotaExceeded when a subscriber asks for more, or larger, globs than before, and they are too many."""
    if more > 0:
        noun, remedy = "steps of compiled patterns", "subscribe to topics by name, or use fewer and shorter globs"
        quotas.check("client_pattern_steps_max", steps, noun=f"{noun} of this client", remedy=remedy)
        quotas.check("pattern_steps_max", total, noun=f"{noun} of all clients", remedy=remedy)


def check_topics(quotas: Quotas, token: str, topics: Collection[str], own: Collection[Subscriber]) -> None:
    """Raise QuotaExceeded when a client would subscribe to more than it may, and than it does, by a subscription.

    `own` are all that the client has, as they are.
    """
    others = [each for each in own if each.token != token]
    former = next((len(each.topics) for each in own if each.token == token), 0)
    if len(topics) > former:
        count = len(topics) + sum(len(each.topics) for each in others)
        remedy = "subscribe to fewer topics, or use several clients"
        quotas.check("client_subscriptions_max", count, noun="topics in subscriptions of this client", remedy=remedy)


def check_subscriber(quotas: Quotas, wanted: Subscriber, own: Collection[Subscriber], filters: _Filters) -> None:
    """Raise QuotaExceeded when a client may not have this subscription beside those that it has."""
    check_topics(quotas, wanted.token, wanted.topics, own)
    others = [each for each in own if each.token != wanted.token]
    if len(others) == len(own):
        remedy = "delete some, or subscribe to several topics by one"
        quotas.check("client_subscribers_max", len(own) + 1, noun="subscriptions of this client", remedy=remedy)
    former = next((each.topics for each in own if each.token == wanted.token), ())
    shared: dict[str, Counter[str]] = {}
    for each in others:
        for topic in each.topics:
            shared.setdefault(topic, Counter())[each.tenant] += 1
    more = set(wanted.topics).difference(former)
    copies = max((_copies(shared.get(topic, Counter()), wanted.tenant) for topic in more), default=0)
    remedy = "let one of them pass events on, or use filters"
    quotas.check("client_copies_max", copies, noun="subscriptions of this client to one topic", remedy=remedy)
    check_filter(quotas, wanted.client, wanted.token, wanted.filter, filters)
    if wanted.tenant:
        _check_tenant(wanted, others, filters.get(wanted.client, {}), is_new=len(others) == len(own))


def _copies(others: Counter[str], tenant: str) -> int:
    """How many copies of an event a client would get, by the tenants of those that get it: an event has one tenant."""
    of_tenant = others[tenant] if tenant else max((others[name] for name in others if name), default=0)
    return 1 + others[""] + of_tenant


def _check_tenant(
    wanted: Subscriber, others: Iterable[Subscriber], filters: Mapping[str, EventFilter], *, is_new: bool
) -> None:
    """Raise QuotaExceeded when one tenant of a client would have more than its share of what the client may have."""
    same = [each for each in others if each.tenant == wanted.tenant]
    topics = len(wanted.topics) + sum(len(each.topics) for each in same)
    event_filter = filter_syntax.stored(wanted.filter)
    own = [filters[each.token] for each in same if each.token in filters]
    former = filters.get(wanted.token)
    steps = filter_steps([*own, *([event_filter] if event_filter else [])])
    whose = f"of tenant {wanted.tenant!r}"
    _check_share(f"subscriptions {whose}", len(same) + 1 if is_new else 0, TENANT_SUBSCRIBERS_MAX)
    _check_share(f"topics in subscriptions {whose}", topics, TENANT_TOPICS_MAX)
    if steps > filter_steps([*own, *([former] if former else [])]):
        _check_share(f"steps of filters {whose}", steps, TENANT_FILTER_STEPS_MAX)


def _check_share(noun: str, wanted: int, most: int) -> None:
    if wanted > most:
        raise TooMany(f"that would make {wanted} {noun}, and at most {most} are allowed; delete some first")


def too_many_topics(quotas: Quotas, topic: str) -> QuotaExceeded:
    """Why a client may not claim a further topic."""
    most = quotas.client_topics_max
    remedy = f"topic {topic!r} is new: delete topics that are not used, or publish on those that there are"
    return QuotaExceeded("client_topics_max", most, most + 1, noun="topics of this client", remedy=remedy)


def too_many_keys(quotas: Quotas, *, window_s: int) -> QuotaExceeded:
    """Why a request with a further idempotency key is not taken."""
    most = quotas.client_idempotency_keys_max
    noun = f"idempotency keys of this client within {window_s} s"
    remedy = "send fewer requests with more events each, or leave out the key"
    return QuotaExceeded("client_idempotency_keys_max", most, most + 1, noun=noun, remedy=remedy)


def too_many_bytes(waiting: int, most: int) -> QuotaExceeded:
    """Why a client for whom too much waits may neither publish nor have further queues."""
    noun = "bytes waiting in the queues and batches of this client"
    remedy = "pull, purge or deliver some of it, then send this again"
    return QuotaExceeded(
        "client_waiting_bytes_max", most, waiting, noun=noun, remedy=remedy, retry_after_s=WAITING_RETRY_S
    )


def check_streams(quotas: Quotas, streams: int) -> None:
    """Raise QuotaExceeded when a client would have too many streams open, over all web processes."""
    remedy = "close some, or follow several topics on one stream"
    quotas.check("client_streams_max", streams, noun="streams of this client", remedy=remedy)


def too_many_requests(quotas: Quotas, *, wanted: int) -> QuotaExceeded:
    """Why a request is not taken while so many others of its client are under way in one web process."""
    return QuotaExceeded(
        "client_requests_max",
        quotas.client_requests_max,
        wanted,
        noun="requests of this client at the same time",
        remedy="wait for some to be answered; pulls that wait and streams count too",
        retry_after_s=1,
    )


def check_tenants(quotas: Quotas, tenants: int) -> None:
    """Raise QuotaExceeded when too many tenants of a queue would have rules."""
    remedy = "give tenants that need no rules their defaults again"
    quotas.check("queue_tenants_max", tenants, noun="tenants of this queue with rules", remedy=remedy)


def too_many_tenants(quotas: Quotas, queue: str) -> QueueFull:
    """Why an event of a new tenant cannot enter a queue of its own publisher."""
    return QueueFull(
        f"queue {queue!r} knows {quotas.queue_tenants_max} tenants, and at most {quotas.queue_tenants_max} are allowed "
        "(DOUBLEDECKER_QUEUE_TENANTS_MAX); consume or purge what some of them have waiting"
    )


def _steps(queues: Iterable[RegisteredQueue]) -> int:
    """How large the patterns of one owner's queues are; the same pattern is compiled once."""
    return sum(map(steps_of, {pattern for queue in queues for pattern in queue.patterns}))


def _total(queues: Mapping[str, RegisteredQueue]) -> int:
    by_owner = {(queue.owner, pattern) for queue in queues.values() for pattern in queue.patterns}
    return sum(steps_of(pattern) for _, pattern in by_owner)
