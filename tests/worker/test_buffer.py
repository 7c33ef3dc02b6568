"""A buffer: closed by count or by bytes, and what does not fit is left for the next."""

from doubledecker.store.queues import Message
from doubledecker.worker.buffer import Buffer


def messages(*sizes: int) -> list[Message]:
    return [Message(f"0-{i}", 1, "acme", b"x" * size, 0) for i, size in enumerate(sizes)]


def test_it_is_full_at_its_count():
    buffer = Buffer(count_max=3, bytes_max=100)

    rest = buffer.add(messages(1, 1, 1, 1, 1))

    assert [message.id for message in rest] == ["0-3", "0-4"]
    assert [message.id for message in buffer.messages] == ["0-0", "0-1", "0-2"]
    assert buffer.is_full


def test_it_is_full_when_the_next_would_be_too_large_and_order_is_kept():
    buffer = Buffer(count_max=10, bytes_max=100)

    rest = buffer.add(messages(60, 50, 1))

    assert [message.id for message in rest] == ["0-1", "0-2"]
    assert buffer.is_full


def test_a_single_message_may_be_larger_than_all_bounds():
    buffer = Buffer(count_max=10, bytes_max=100)

    rest = buffer.add(messages(500, 1))

    assert [message.id for message in rest] == ["0-1"]
    assert buffer.is_full


def test_it_asks_for_as_many_as_are_likely_to_fit():
    buffer = Buffer(count_max=10, bytes_max=100)
    at_first = buffer.room
    buffer.add(messages(20, 20))

    assert (at_first, buffer.room, buffer.is_full) == (10, 3, False)
