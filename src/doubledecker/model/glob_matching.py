"""Which subscribers get a topic by a glob.

That is found like whose patterns match a routing key (model/matching.py): when a topic is first routed, in bounded
pieces, and remembered. So a client's globs count as steps of its compiled patterns.
"""

from collections.abc import Iterable, Mapping

from doubledecker.model import topic_glob
from doubledecker.model.matching import NAMES_MAX, PatternMatcher, steps_of
from doubledecker.model.reserved import is_reserved
from doubledecker.model.subscriber import Subscriber


class GlobSubscribers:
    """Subscribers by their globs; those of the bulk tier have none."""

    def __init__(self) -> None:
        # By topic.
        self.matcher = PatternMatcher()
        # Of a topic's subscribers by name and those by glob, by the identity of both, which are kept alive here: one
        # tuple for all topics and kinds where they are the same, as what gets the same is grouped.
        self._joined: dict[tuple[int, int], tuple[object, object, tuple[Subscriber, ...]]] = {}
        self._joined_names = 0

    def put(self, token: str, subscriber: Subscriber | None) -> None:
        """Take over a changed subscriber, or forget a deleted one."""
        patterns = patterns_of(subscriber) if subscriber else ()
        self.matcher.put(token, patterns or None, subscriber.client if subscriber else "")
        self.forget()

    def put_all(self, subscribers: Iterable[Subscriber]) -> None:
        """Take over all subscribers at once."""
        found = {each.token: (each.client, patterns_of(each)) for each in subscribers}
        self.matcher.put_all({token: (client, patterns) for token, (client, patterns) in found.items() if patterns})
        self.forget()

    def forget(self) -> None:
        """Forget who is joined with whom: a subscriber may be another."""
        self._joined.clear()
        self._joined_names = 0

    def join(
        self, topic: str, named: tuple[Subscriber, ...], subscribers: Mapping[str, Subscriber]
    ) -> tuple[Subscriber, ...]:
        """All subscribers of a topic, given those that name it."""
        if not self.matcher.steps_total:
            return named
        tokens = self.matcher.match(topic)
        if is_reserved(topic):
            tokens = tuple(token for token in tokens if topic_glob.cover(subscribers[token].topics, topic))
        if not tokens:
            return named
        known = self._joined.get((id(named), id(tokens)))
        if known is None:
            if self._joined_names > NAMES_MAX:
                self.forget()
            own = {each.token for each in named}
            joined = (*named, *(subscribers[token] for token in tokens if token not in own))
            self._joined_names += len(joined)
            known = self._joined[id(named), id(tokens)] = named, tokens, joined
        return known[2]


def patterns_of(subscriber: Subscriber) -> tuple[str, ...]:
    """The patterns by which a subscriber's globs are matched."""
    return tuple(map(topic_glob.pattern, topic_glob.among(subscriber.topics)))


def steps(subscribers: Iterable[Subscriber]) -> int:
    """How large the globs of one client's subscribers are; the same glob is compiled once."""
    return sum(map(steps_of, {pattern for each in subscribers for pattern in patterns_of(each)}))
