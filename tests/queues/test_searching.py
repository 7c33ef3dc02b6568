"""What patterns cost: new keys are matched in bounded pieces, off the loop where that is costly, and remembered."""

import asyncio
import re
import string
from random import Random

from doubledecker.bus.pattern_search import Searcher
from doubledecker.model.event import EventKind
from doubledecker.model.matching import SHELF_STEPS, PatternMatcher, ScanResistantCache, steps_of
from doubledecker.model.queue import RegisteredQueue
from doubledecker.model.routing import Registry


def hostile(number: int) -> str:
    """A pattern that needs a new state of the automaton for almost every character."""
    return f".*[^{string.ascii_lowercase[number % 26]}]{{{30 + number // 26}}}z.*"


def new_keys(count: int) -> list[str]:
    chance = Random(7)
    parts = ["".join(chance.choices(string.ascii_lowercase, k=64)) for _ in range(3 * count)]
    return [":".join(parts[at : at + 3]) for at in range(0, len(parts), 3)]


class TestSets:
    def test_a_set_is_bounded_in_steps(self):
        matcher = PatternMatcher()
        for n in range(40):
            matcher.put(f"q{n}", tuple(hostile(20 * n + at) for at in range(20)), owner=f"client-{n % 2}")
        [lookup] = matcher.search(["a:b:c"]).lookups

        assert matcher.steps_total > 20 * SHELF_STEPS
        for named in lookup.sets:
            assert sum(map(steps_of, named.patterns._patterns)) <= SHELF_STEPS

    def test_a_client_with_costly_patterns_shares_no_set_with_others(self):
        matcher = PatternMatcher()
        matcher.put("honest", (".*:page:.*",), owner="ann")
        matcher.put("small", (".*[^b]{3}z.*",), owner="bob")
        for n in range(3):
            matcher.put(f"hostile{n}", (hostile(n),), owner="eve")
        [lookup] = matcher.search(["a:b:c"]).lookups

        together = [{name for names in named.names for name in names} for named in lookup.sets]
        assert sorted(map(sorted, together)) == [["honest", "small"], ["hostile0", "hostile1", "hostile2"]]

    def test_a_client_with_few_steps_left_shares_again(self):
        matcher = PatternMatcher()
        matcher.put("honest", (".*:page:.*",), owner="ann")
        for n in range(3):
            matcher.put(f"q{n}", (hostile(n),), owner="eve")
        for n in range(3):
            matcher.put(f"q{n}", ("eve:.*",) if n == 0 else None, owner="eve")
        [lookup] = matcher.search(["a:b:c"]).lookups

        assert len(lookup.sets) == 1
        assert matcher.match("eve:page:x") == ("honest", "q0")

    def test_the_same_pattern_of_many_queues_is_compiled_once(self):
        matcher = PatternMatcher()
        for n in range(1000):
            matcher.put(f"q{n}", (".*",), owner="ann")

        assert matcher.steps("ann") == matcher.steps_total == steps_of(".*")
        assert len(matcher.match("a:b:c")) == 1000
        matcher.put("q7", None)
        assert len(matcher.match("a:b:c")) == 999

    def test_a_full_set_of_costly_patterns_misses_no_match(self):
        """RE2 says that nothing matches when a set runs out of memory."""
        matcher = PatternMatcher()
        patterns = {f"q{n}": hostile(n) for n in range(60)}
        for name, pattern in patterns.items():
            matcher.put(name, (pattern,), owner="eve")

        for key in new_keys(20):
            expected = {name for name, pattern in patterns.items() if re.fullmatch(pattern, key)}
            assert set(matcher.match(key)) == expected


class TestSearching:
    async def test_others_have_their_turn_while_new_keys_are_matched(self):
        """One request with hundreds of new keys held the loop for seconds."""
        registry = Registry()
        registry.put_queues(
            [RegisteredQueue(f"q{n}", "eve", tuple(hostile(8 * n + at) for at in range(8))) for n in range(4)]
        )
        kinds = [EventKind(topic, type_, tenant) for tenant, topic, type_ in (key.split(":") for key in new_keys(60))]
        [(matcher, search)] = registry.searches(kinds)
        pieces = len(list(search.pieces()))
        turns = 0

        async def take_turns() -> None:
            nonlocal turns
            while True:
                await asyncio.sleep(0)
                turns += 1

        searcher = Searcher()
        others = asyncio.create_task(take_turns())
        await searcher.run(search)
        others.cancel()
        searcher.close()

        matcher.take(search)
        assert turns >= pieces // 10
        assert registry.searches(kinds) == []

    async def test_what_a_search_finds_is_what_matching_at_once_finds(self):
        patterns = [".*:page:.*", "[a-m]+:.*", ".*[aeiou]{2}.*", hostile(3)]
        registry, other = Registry(), Registry()
        for each in (registry, other):
            each.put_queues([RegisteredQueue(f"q{n}", "ann", (pattern,)) for n, pattern in enumerate(patterns)])
        kinds = [EventKind("page", "view", tenant) for tenant in ("abba", "zoo", "aeon", "x" * 60)]
        [(matcher, search)] = registry.searches(kinds)
        searcher = Searcher()
        await searcher.run(search)
        searcher.close()
        matcher.take(search)

        found = [[queue.name for queue in registry.route(kind).queues] for kind in kinds]
        assert found == [[queue.name for queue in other.route(kind).queues] for kind in kinds]

    def test_a_change_while_a_search_runs_is_not_missed(self):
        registry = Registry()
        registry.put_queues([RegisteredQueue("old", "ann", (".*",)), RegisteredQueue("gone", "ann", (".*",))])
        kind = EventKind("page", "view", "acme")
        [(matcher, search)] = registry.searches([kind])
        registry.put_queue("new", RegisteredQueue("new", "ann", ("acme:.*",)))
        registry.put_queue("gone", None)
        for lookup, named in search.pieces():
            lookup.add(named.match(lookup.key))
        matcher.take(search)

        assert [queue.name for queue in registry.route(kind).queues] == ["new", "old"]


class TestCache:
    def test_keys_used_once_push_out_no_key_that_was_used_again(self):
        cache: ScanResistantCache[int, str] = ScanResistantCache(new_max=10, kept_max=20)
        for key in range(5):
            cache.put(key, f"kept {key}")
            assert cache.get(key)
        for key in range(100, 10_000):
            cache.put(key, "seen once")

        assert [cache.get(key) for key in range(5)] == [f"kept {key}" for key in range(5)]

    def test_it_is_bounded_and_keeps_what_was_used_last(self):
        cache: ScanResistantCache[int, int] = ScanResistantCache(new_max=10, kept_max=20)
        for key in range(1_000):
            cache.put(key, key + 1)
            assert cache.get(key) == key + 1
            assert len(cache) <= 30
            assert cache.get(max(0, key - 5)) == max(0, key - 5) + 1

    def test_a_value_is_replaced_wherever_its_key_is(self):
        cache: ScanResistantCache[str, int] = ScanResistantCache(new_max=2, kept_max=2)
        for value in (1, 2, 3):
            cache.put("a", value)
            assert cache.get("a") == value
        cache.put("b", 1)
        assert cache.get("b") == 1
        cache.put("a", 4)

        assert (cache.get("a"), cache.get("b")) == (4, 1)


def test_a_hundred_thousand_tenants_that_publish_in_turn_are_remembered():
    matcher = PatternMatcher()
    matcher.put("q", (".*:page:.*",))
    keys = [f"tenant-{n}:page:view" for n in range(100_000)]
    for _ in range(3):
        unknown = [key for key in keys if not matcher.knows(key)]
        search = matcher.search(unknown)
        for lookup, named in search.pieces():
            lookup.add(named.match(lookup.key))
        matcher.take(search)

    assert all(map(matcher.knows, keys))
