"""The law of the registry: a fresh copy is what Redis holds, and an old one cannot publish once a change is answered.

Changes are made with the store's own steps, so that a process can die between the change at home and the copying of
its version. Two copies follow at their own pace, with a change log so short that it is often cut off.
"""

from dataclasses import replace
from fnmatch import fnmatchcase
from itertools import count

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from conftest import Topology
from doubledecker.bus.registry import LiveRegistry
from doubledecker.model import token as tokens
from doubledecker.model.event import EventKind
from doubledecker.model.routing import Route
from doubledecker.model.subscriber import Subscriber, fresh, id_of
from doubledecker.model.token import ROOT, Caller, Token
from doubledecker.model.topic import TopicRights, TopicWanted
from doubledecker.store import events, registry, subscribers
from doubledecker.store.events import Accepted, PublishLimits, RoutedEvent
from laws.world import World, hold_law, law

NAMES = ("ann", "bob", "cy")
SUBSCRIPTIONS = ("default", "mail", "news")
TOPICS = ("widgets", "gadgets", "gizmos")
# What a subscriber may ask for: topics, or globs that match some of them.
WANTED = (*TOPICS, "g*", "?idg*s")
CHANGES_MAX = 3

some_name = st.sampled_from(NAMES)
some_subscription = st.sampled_from(SUBSCRIPTIONS)
some_topic = st.sampled_from(TOPICS)
some_topics = st.lists(some_topic, unique=True).map(sorted)
some_wanted = st.lists(st.sampled_from(WANTED), unique=True).map(sorted)
some_names = st.none() | st.lists(some_name, unique=True)
is_crash = st.booleans()


class RegistryMachine(RuleBasedStateMachine):
    """Changes the registry, dies at times, refreshes copies and publishes with them."""

    def __init__(self, world: World) -> None:
        super().__init__()
        self.world = world
        self.copies = [LiveRegistry(world.partitions) for _ in range(2)]
        self.tokens: dict[str, Token] = {}
        self.subscribers: dict[str, Subscriber] = {}
        # The version with which each was saved last.
        self.changed: dict[str, int] = {}
        self.rights: dict[str, TopicRights] = {}
        self.version = 0
        # The version that every partition is known to have: that of the last change that was answered.
        self.answered = 0
        self.versions = [0] * len(world.partitions.all)
        self.numbers = count()

    @initialize()
    def start(self) -> None:
        self.world.empty()

    def of(self, client: str, name: str) -> Subscriber | None:
        """A client's subscription by its name, whoever made it."""
        found = [each for each in self.subscribers.values() if (each.client, each.name) == (client, name)]
        assert len(found) <= 1
        return found[0] if found else None

    @rule(client=some_name, name=some_subscription, topics=some_wanted, moves=st.booleans(), is_crash=is_crash)
    def subscribe(self, client: str, name: str, topics: list[str], moves: bool, is_crash: bool) -> None:
        """Refused once its client is gone, and by one who has not seen what was changed of it last."""
        number = next(self.numbers)
        former, home = self.of(client, name), self.world.partitions.home
        token = former.token if former else id_of(client, name)
        if former is None and token in self.subscribers:
            return  # it was given away, and keeps the id; who has seen that asks for another name
        callback = former.callback if former and not moves else f"https://{number}"
        plain = fresh(token, client)
        subscriber = replace(
            plain, callback=callback, uuid=name, topics=tuple(topics), timeout_ms=number, concurrency=2
        )
        if former is not None:
            assert self.world.run(subscribers.save(home, subscriber, seen=self.changed[token] - 1)) == 0
        version = self.world.run(subscribers.save(home, subscriber, seen=self.version))
        assert (version > 0) == (client in self.tokens)
        if version == 0:
            return
        self.finish(version, is_crash=is_crash)
        self.changed[token] = version
        # It came with this version, unless it was there before.
        kept = former and not moves and former.anew_since
        self.subscribers[token] = replace(
            subscriber, since=former.since if former else version, anew_since=kept or version
        )

    @rule(client=some_name, name=some_subscription, to=some_name, is_crash=is_crash)
    def give_subscription(self, client: str, name: str, to: str, is_crash: bool) -> None:
        """All of it goes on under its id; nobody has two of a name."""
        given, home = self.of(client, name), self.world.partitions.home
        if given is None or name == "default" or client == to:
            return
        assert self.world.run(subscribers.give(home, given, to=to, seen=self.changed[given.token] - 1)) == 0
        version = self.world.run(subscribers.give(home, given, to=to, seen=self.version))
        if to not in self.tokens:
            assert version == -1
        elif self.of(to, name) is not None:
            assert version == -2
        else:
            assert version > 0
            self.finish(version, is_crash=is_crash)
            self.changed[given.token] = version
            self.subscribers[given.token] = replace(given, owner=to, anew_since=version)

    @rule(client=some_name, name=some_subscription, is_crash=is_crash)
    def unsubscribe(self, client: str, name: str, is_crash: bool) -> None:
        found = self.of(client, name)
        stranger = fresh(found.token if found else id_of(client, name), "nobody")
        assert self.world.run(subscribers.delete(self.world.partitions.home, stranger)) == 0
        if found is not None:
            version = self.world.run(subscribers.delete(self.world.partitions.home, found))
            assert version > 0
            del self.subscribers[found.token]
            self.finish(version, is_crash=is_crash)

    @rule(name=some_name, topic=st.sampled_from(WANTED), is_crash=is_crash)
    def leave_topic(self, name: str, topic: str, is_crash: bool) -> None:
        version = self.world.run(subscribers.leave_topic(self.world.partitions.home, name, topic))
        former = self.subscribers.get(name)
        assert (version > 0) == (former is not None and topic in former.topics)
        if version:
            self.leave(name, topic)
        self.finish(version, is_crash=is_crash)

    @rule(name=some_name, is_crash=is_crash)
    def save_token(self, name: str, is_crash: bool) -> None:
        token = tokens.make(name, name, "secret", now_ms=next(self.numbers))
        home = self.world.partitions.home
        assert self.world.run(registry.save_token(home, token, seen=self.version + 1)) == -1
        self.finish(self.world.run(registry.save_token(home, token, seen=self.version)), is_crash=is_crash)
        self.tokens[token.id] = token

    @rule(name=some_name, is_crash=is_crash)
    def delete_token(self, name: str, is_crash: bool) -> None:
        version = self.world.run(registry.delete_token(self.world.partitions.home, name))
        assert (version > 0) == (self.tokens.pop(name, None) is not None)
        self.finish(version, is_crash=is_crash)

    @rule(which=st.integers(0, 1), names=some_topics, publisher=some_name)
    def claim(self, which: int, names: list[str], publisher: str) -> None:
        """A claim changes no version; a copy that knows an owner may be as old as its version."""
        copy = self.copies[which]
        claimed = self.world.run(copy.topics.claim(names, publisher=publisher))
        now = self.world.run(registry.topic_rights(self.world.partitions.home, names))
        for name, rights in zip(names, now, strict=True):
            if rights is not None:
                assert rights == self.rights.setdefault(name, TopicRights(publisher))
            if copy.snapshot.version == self.version:
                assert claimed[name] == rights

    @rule(name=some_topic, caller=st.sampled_from(["", *NAMES]), publishers=some_names, is_crash=is_crash)
    def save_topic(self, name: str, caller: str, publishers: list[str] | None, is_crash: bool) -> None:
        """One that nobody owns becomes the caller's; its owner and root alone change it."""
        asked, former = TopicWanted(publishers), self.rights.get(name)
        who = Caller(caller, caller) if caller else ROOT
        version, is_new = self.world.run(registry.save_topic(self.world.partitions.home, name, asked, caller=who))
        if former is None and not caller:
            assert version == 0
        elif former is not None and caller not in {"", former.owner}:
            assert version == -1
        else:
            assert (version > 0, is_new) == (True, former is None)
            kept = former or TopicRights(caller)
            self.rights[name] = kept if publishers is None else TopicRights(kept.owner, frozenset(publishers))
        self.finish(max(0, version), is_crash=is_crash)

    @rule(name=some_topic, publisher=st.sampled_from(["", *NAMES]), is_crash=is_crash)
    def delete_topic(self, name: str, publisher: str, is_crash: bool) -> None:
        home = self.world.partitions.home
        version, ended = self.world.run(registry.delete_topic(home, name, publisher=publisher))
        rights = self.rights.get(name)
        if rights is None:
            assert version == 0
        elif publisher not in {"", rights.owner}:
            assert version == -1
        else:
            del self.rights[name]
            subscribed = [s.token for s in self.subscribers.values() if name in s.topics]
            for subscriber in subscribed:
                self.leave(subscriber, name)
            assert version > 0
            assert ended == len(subscribed)
        self.finish(max(0, version), is_crash=is_crash)

    @rule(name=some_topic, to=some_name, is_crash=is_crash)
    def give_topic(self, name: str, to: str, is_crash: bool) -> None:
        version = self.world.run(registry.give_topic(self.world.partitions.home, name, to=to))
        if name not in self.rights:
            assert version == 0
        elif to not in self.tokens:
            assert version == -1
        else:
            assert version > 0
            self.rights[name] = TopicRights(to, self.rights[name].publishers)
        self.finish(max(0, version), is_crash=is_crash)

    @rule(which=st.integers(0, 1))
    def refresh(self, which: int) -> None:
        copy = self.copies[which]
        self.world.run(copy.refresh())
        snapshot = copy.snapshot
        assert snapshot.version == self.version
        assert snapshot.tokens == self.tokens
        assert snapshot.subscribers == self.subscribers
        for client in NAMES:
            own = [self.of(client, name) for name in SUBSCRIPTIONS]
            assert [snapshot.subscription(client, name) for name in SUBSCRIPTIONS] == own
            assert sorted(snapshot.subscriptions_of(client), key=str) == sorted(filter(None, own), key=str)
        for topic in TOPICS:
            wanted = {name: subscriber.topics for name, subscriber in self.subscribers.items()}
            expected = {name for name, globs in wanted.items() if any(fnmatchcase(topic, glob) for glob in globs)}
            received = [each.token for each in snapshot.route(EventKind(topic, "update", "default")).receivers]
            assert sorted(received) == sorted(expected)
        assert snapshot.rights.items() <= self.rights.items()

    @rule()
    def mend(self) -> None:
        """What the repair chore does for those who died."""
        partitions = self.world.partitions
        self.world.run(registry.copy_version(partitions, self.world.run(registry.version(partitions.home))))
        self.answered = self.version

    @rule(age=st.integers(1, 3))
    def copy_late(self, age: int) -> None:
        """The word of an old change arrives after that of a newer one."""
        self.world.run(registry.copy_version(self.world.partitions, max(0, self.version - age)))

    @rule(which=st.integers(0, 1), index=st.integers(0, 2))
    def publish(self, which: int, index: int) -> None:
        partition = self.world.partitions.all[index % len(self.versions)]
        version = self.copies[which].snapshot.version
        offer = RoutedEvent(Route(EventKind("widgets", "update", "default")), b"m", "ann")
        reply = self.world.run(events.publish(partition, [offer], version=version, limits=PublishLimits()))
        if version < self.answered:
            assert reply.outcome is Accepted.STALE, "an answered change was not felt"
        if version == self.version:
            assert reply.outcome is Accepted.OK, "a fresh copy was refused"
        assert (reply.outcome is Accepted.STALE) == (version < self.versions[partition.index])

    @invariant()
    def versions_never_fall_and_none_is_ahead_of_home(self) -> None:
        found = [self.world.run(registry.version(partition)) for partition in self.world.partitions.all]
        assert all(now >= before for now, before in zip(found, self.versions, strict=True))
        assert found[0] == self.version == max(found)
        assert min(found) >= self.answered
        self.versions = found

    @invariant()
    def what_redis_indexes_agrees_with_itself(self) -> None:
        """Each subscription is written twice, by subscriber and by topic."""
        home = self.world.partitions.home
        ids = [id_of(client, name) for client in NAMES for name in SUBSCRIPTIONS]
        by_name = self.world.ask(home, *(["SMEMBERS", f"topics:{id_}"] for id_ in ids))
        by_topic = self.world.ask(home, *(["SMEMBERS", f"subscribers:{topic}"] for topic in WANTED))
        forward = {(n, t.decode()) for n, members in zip(ids, by_name, strict=True) for t in members}
        backward = {(n.decode(), t) for t, members in zip(WANTED, by_topic, strict=True) for n in members}
        assert forward == backward == {(s.token, topic) for s in self.subscribers.values() for topic in s.topics}
        named = self.world.ask(home, *(["HVALS", f"subscriptions:{client}"] for client in NAMES))
        of_clients = {(c, id_.decode()) for c, found in zip(NAMES, named, strict=True) for id_ in found}
        assert of_clients == {(s.client, s.token) for s in self.subscribers.values()}

    def finish(self, version: int, *, is_crash: bool) -> None:
        """Copy the version and answer, unless the process dies first."""
        if version:
            assert version == self.version + 1
            self.version = version
        if version and not is_crash:
            self.world.run(registry.copy_version(self.world.partitions, version))
            self.answered = version

    def leave(self, name: str, topic: str) -> None:
        former = self.subscribers[name]
        topics = tuple(each for each in former.topics if each != topic)
        self.subscribers[name] = replace(former, topics=topics)


def test_a_fresh_copy_is_what_redis_holds_and_an_old_one_cannot_publish(
    topology: Topology, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(registry, "CHANGES_MAX", CHANGES_MAX)
    hold_law(topology, RegistryMachine, law(examples=40, steps=40))
