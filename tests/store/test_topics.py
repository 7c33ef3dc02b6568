"""Topics of data that did not note who owns them."""

from doubledecker.store import registry
from doubledecker.store.partitions import Partitions

TOPICS = 2_500


async def test_topics_without_a_note_of_their_owner_get_one_some_at_a_time(plain: Partitions):
    home = plain.home
    names = [f"topic_{number}" for number in range(TOPICS)]
    owners = {name: f"client-{number % 2}" for number, name in enumerate(names)}
    await home.command("SADD", home.key("topics"), *names, "unowned")
    await home.commands([["HSET", home.key(f"topic:{name}"), "publisher", owner] for name, owner in owners.items()])
    await home.command("CONFIG", "RESETSTAT")
    await registry.index_topics(home)
    stats = (await home.command("INFO", "commandstats")).decode()
    counts = await registry.counts_of(home, ["client-0", "client-1"])
    await home.command("DEL", home.key("owned:client-0"))
    await registry.index_topics(home)

    assert [topics for topics, _ in counts] == [TOPICS // 2, TOPICS // 2]
    assert int(stats.partition("cmdstat_sscan:calls=")[2].partition(",")[0]) > 1
    assert await home.command("HGET", home.key("registry"), "owned") == b"1"
    assert [topics for topics, _ in await registry.counts_of(home, ["client-0"])] == [0]
