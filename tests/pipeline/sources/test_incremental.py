"""The rounds of a source in batches: under which write each is published."""

import pytest

from doubledecker.pipeline.sources.incremental import RoundRecord

pytestmark = pytest.mark.slow


def test_all_rounds_are_versions_of_one_write_so_that_the_bus_keeps_a_record_of_the_last_alone():
    first = RoundRecord(id="x").next("10")
    second = first.done(refused=2).next("20")

    assert (first.write_of("orders"), second.write_of("orders")) == (("orders:x", 1), ("orders:x", 2))
    assert (second.after, second.upto, second.is_done) == ("10", "20", False)
    assert second.done(refused=5).refused == 5


def test_a_round_that_version_0_1_0_began_is_repeated_under_the_name_it_began_with():
    begun = RoundRecord(id="x", round=7, after="1", upto="2", is_done=False, refused=3)
    ended = begun.done(refused=1)
    later = ended.next("3")

    assert begun.write_of("orders") == ("orders:x:7", 0)
    assert ended.refused == 4
    assert later.write_of("orders") == ("orders:x", 8)
    assert later.done(refused=2).refused == 6
