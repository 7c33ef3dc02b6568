"""Dead letters: found by what is known of them without a look at the others, and gone without a trace."""

from collections import Counter
from typing import cast

import pytest

from doubledecker.model import dead_letter
from doubledecker.model.dead_letter import DeadLetter, LetterFilter
from doubledecker.store import dead_letters
from doubledecker.store.partitions import Partition, Partitions
from doubledecker.store.shared_connection import words
from letters import RECEIVER, a_letter, keep, means

MANY = 100_000
TOPICS, TENANTS, STATUSES = 10, 100, (0, 400, 500)


@pytest.fixture
async def home(plain: Partitions) -> Partition:
    return plain.home


async def ids_of(home: Partition, chosen: LetterFilter, *, most: int = 1_000, after: int = 0) -> list[str]:
    return [each.id for each in await dead_letters.choose(home, RECEIVER, chosen, most=most, after=after)]


async def test_a_letter_has_all_that_is_known_of_it(home: Partition):
    headers = ("Content-Type: text/html", "Retry-After: 9")
    given = a_letter(1, answer="<b>no</b>", answer_headers=headers, accepted_at=77, status=422, reason="rejected")

    await dead_letters.add(home, RECEIVER, [given])

    [letter] = await dead_letters.read(home, RECEIVER, ["0-unknown", given.id])
    assert abs(letter.died_at - await home.time_ms()) < 60_000
    assert letter == DeadLetter(**{**vars(given), "died_at": letter.died_at})


async def test_letters_are_chosen_by_every_value_and_by_several(home: Partition):
    letters = [a_letter(n, topic=f"t{n % 3}", tenant=f"x{n % 5}", status=(0, 500)[n % 2]) for n in range(60)]
    await keep(home, letters)

    for chosen in (
        LetterFilter(),
        LetterFilter(topic="t1"),
        LetterFilter(tenant="x4"),
        LetterFilter(status=0),
        LetterFilter(reason="attempts"),
        LetterFilter(reason="age"),
        LetterFilter(topic="t2", status=500),
        LetterFilter(topic="t0", tenant="x0", status=0, reason="attempts"),
    ):
        meant = [each.id for each in letters if means(chosen, each)]
        assert await ids_of(home, chosen) == meant
        assert await dead_letters.count(home, RECEIVER, chosen) == len(meant)


async def test_letters_are_chosen_by_the_time_of_death(home: Partition):
    died_at = []
    for n in range(3):
        await keep(home, [a_letter(n)])
        [letter] = await dead_letters.read(home, RECEIVER, [a_letter(n).id])
        died_at.append(letter.died_at)
        home.shift_ms += 1_000

    later = LetterFilter(from_ms=died_at[1])
    assert await ids_of(home, later) == [a_letter(1).id, a_letter(2).id]
    assert await ids_of(home, LetterFilter(to_ms=died_at[1])) == [a_letter(0).id]
    assert await ids_of(home, LetterFilter(from_ms=died_at[0] + 1, to_ms=died_at[2], topic="orders", status=500)) == [
        a_letter(1).id
    ]
    assert await dead_letters.count(home, RECEIVER, later) == 2


async def test_pages_follow_each_other_also_among_letters_that_died_at_once(home: Partition):
    letters = [a_letter(n) for n in range(25)]
    await keep(home, letters)

    found, after = [], 0
    while page := await dead_letters.choose(home, RECEIVER, LetterFilter(topic="orders"), most=10, after=after):
        found += [each.id for each in page]
        after = page[-1].stamp

    assert found == [each.id for each in letters]


async def test_totals_count_what_each_value_has(home: Partition):
    await keep(home, [a_letter(n, topic=f"t{n % 2}", status=500 + n % 3) for n in range(12)])

    totals = await dead_letters.totals(home, RECEIVER)

    assert totals.count == 12
    assert totals.by["topic"] == {"t0": 6, "t1": 6}
    assert totals.by["status"] == {"500": 4, "501": 4, "502": 4}
    assert totals.by["tenant"] == {"acme": 12}
    assert await dead_letters.sizes(home) == {RECEIVER: totals.bytes}


async def test_purged_letters_leave_no_key_behind(home: Partition):
    letters = [a_letter(n, topic=f"t{n % 7}") for n in range(700)]
    await keep(home, letters)

    ids = [*(each.id for each in letters), letters[0].id, "0-none"]
    assert (await dead_letters.purge(home, RECEIVER, ids, version=0)).letters == 700
    # Whoever had a queue of this name may not know yet that it is another client's.
    assert (await dead_letters.purge(home, RECEIVER, ids, version=-1)).through == 0

    assert await home.command("KEYS", home.key("dead:*")) == []


async def test_a_receiver_that_goes_takes_its_letters_along_and_no_others(home: Partition):
    await keep(home, [a_letter(n, topic=f"t{n % 7}") for n in range(70)])
    await keep(home, [a_letter(1)], receiver="bob-00000002")

    await dead_letters.destroy(home, RECEIVER, version=0)

    left = words(await home.command("KEYS", home.key("dead:*")))
    assert all("bob-00000002" in key or key.endswith("dead:bytes") for key in left)
    assert await dead_letters.counts(home, [RECEIVER, "bob-00000002"]) == {RECEIVER: 0, "bob-00000002": 1}


async def test_of_very_many_letters_a_few_commands_list_and_count_those_with_a_value(home: Partition):
    await keep(home, [a_letter(n, topic=f"t{n % TOPICS}", tenant=f"x{n % TENANTS}") for n in range(MANY)])
    await home.command("CONFIG", "RESETSTAT")

    listed = await ids_of(home, LetterFilter(topic="t3"), most=100)
    counted = await dead_letters.count(home, RECEIVER, LetterFilter(topic="t3"))
    last = await ids_of(home, LetterFilter(tenant="x7"), most=100)
    both = await dead_letters.count(home, RECEIVER, LetterFilter(topic="t7", tenant="x7"))
    totals = await dead_letters.totals(home, RECEIVER)

    calls = await calls_of(home)
    assert listed == [a_letter(n).id for n in range(3, 1_000, 10)]
    assert (counted, len(last), both, totals.count) == (MANY // TOPICS, 100, MANY // TENANTS, MANY)
    # Of two values the rarer one is walked, a thousand letters a page: its thousand letters and an empty page.
    assert calls["zrange"] == 1 + 1 + 2 + len(totals.by)
    assert calls["zcount"] == calls["zmscore"] == 1
    assert sum(calls.values()) < 20


async def test_what_letters_are_said_to_take_is_about_what_they_take(home: Partition):
    await keep(home, [a_letter(n, topic=f"t{n % TOPICS}", tenant=f"x{n % TENANTS}") for n in range(20_000)])

    keys = words(await home.command("KEYS", home.key("dead:*")))
    taken = sum([cast("int", await home.command("MEMORY", "USAGE", key, "SAMPLES", 0)) for key in keys])

    assert 0.8 < taken / (await dead_letters.totals(home, RECEIVER)).bytes < 1.2


def test_an_answer_that_is_no_text_is_kept_as_one():
    assert dead_letter.text(b"\xff\x00ok" + b"x" * 5_000).startswith("\\xff\x00ok")
    assert len(dead_letter.text(b"x" * 5_000)) == 2_048


async def calls_of(home: Partition) -> Counter[str]:
    """How often the server ran each command."""
    info = cast("bytes", await home.command("INFO", "commandstats")).decode()
    rows = (line.removeprefix("cmdstat_").split(":calls=") for line in info.splitlines() if "calls=" in line)
    counts = {name: int(numbers.split(",")[0]) for name, numbers in rows}
    return Counter({name: count for name, count in counts.items() if name not in {"info", "config|resetstat"}})
