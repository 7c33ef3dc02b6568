"""A buffer: closed by count or by bytes, and what does not fit is left for the next."""

import pytest

from doubledecker.store.queues import QueueMessage
from doubledecker.worker.receive import Buffer


def messages(*sizes: int, tries: int = 1) -> list[QueueMessage]:
    return [QueueMessage(f"0-{i}", 9, "acme", b"x" * size, 0, tries) for i, size in enumerate(sizes)]


def a_buffer(count_max: int) -> Buffer:
    return Buffer(count_max=count_max, bytes_max=100, attempts_max=10)


def test_it_is_full_at_its_count():
    buffer = a_buffer(3)

    rest = buffer.add(messages(1, 1, 1, 1, 1))

    assert [message.id for message in rest] == ["0-3", "0-4"]
    assert [message.id for message in buffer.messages] == ["0-0", "0-1", "0-2"]
    assert buffer.is_full


def test_it_is_full_when_the_next_would_be_too_large_and_order_is_kept():
    buffer = a_buffer(10)

    rest = buffer.add(messages(60, 50, 1))

    assert [message.id for message in rest] == ["0-1", "0-2"]
    assert buffer.is_full


def test_a_single_message_may_be_larger_than_all_bounds():
    buffer = a_buffer(10)

    rest = buffer.add(messages(500, 1))

    assert [message.id for message in rest] == ["0-1"]
    assert buffer.is_full


def test_it_asks_for_as_many_as_are_likely_to_fit():
    buffer = a_buffer(10)
    at_first = buffer.room
    buffer.add(messages(20, 20))

    assert (at_first, buffer.room, buffer.is_full) == (10, 3, False)


@pytest.mark.parametrize(("tries", "company"), [(1, 64), (2, 16), (3, 4), (4, 1), (9, 1)])
def test_a_message_that_was_tried_before_goes_with_fewer_others(tries: int, company: int):
    buffer = a_buffer(64)

    rest = buffer.add(messages(*[1] * 80, tries=tries))

    assert (len(buffer.messages), len(rest)) == (company, 80 - company)


def test_a_message_at_its_last_attempt_is_alone():
    buffer = Buffer(count_max=64, bytes_max=100, attempts_max=2)
    after_others = buffer.add([*messages(1, 1), *messages(1, tries=2)])
    alone = Buffer(count_max=64, bytes_max=100, attempts_max=2)
    others = alone.add([*messages(1, tries=2), *messages(1, 1)])

    assert (len(buffer.messages), len(after_others)) == (2, 1)
    assert (len(alone.messages), len(others)) == (1, 2)


def test_a_message_with_a_single_attempt_goes_with_all():
    buffer = Buffer(count_max=3, bytes_max=100, attempts_max=1)

    assert buffer.add(messages(1, 1, 1)) == []
