"""A buffer: messages of a queue that will go to its receiver together. Pure, so that a test needs no queue.

A message that was tried before goes with fewer others: each attempt quarters the number, and at its last attempt it is
alone. So no message dies for a neighbour's fault, and after an outage the first retries are not all calls of one.
"""

from collections.abc import Sequence

from doubledecker.store.queues import Message


class Buffer:
    """Takes messages until one more would be too many or too large; a single one may be as large as it is."""

    def __init__(self, *, count_max: int, bytes_max: int, attempts_max: int) -> None:
        self.messages: list[Message] = []
        self.is_full = False
        self._count_max = count_max
        self._bytes_max = bytes_max
        self._attempts_max = attempts_max
        self._share_max = count_max
        self._bytes = 0

    def add(self, messages: Sequence[Message]) -> list[Message]:
        """Take messages in their order; returns those from the first on that found no room."""
        for i, message in enumerate(messages):
            count, size = len(self.messages) + 1, self._bytes + len(message.event)
            share_max = min(self._share_max, self._company(message.tries))
            if self.is_full or (self.messages and (count > share_max or size > self._bytes_max)):
                self.is_full = True
                return list(messages[i:])
            self.messages.append(message)
            self._bytes, self._share_max = size, share_max
            self.is_full = count >= share_max or size >= self._bytes_max
        return []

    @property
    def room(self) -> int:
        """How many more are likely to fit, if they are like those that are here; at least one."""
        left = self._share_max - len(self.messages)
        if not self.messages:
            return left
        mean = max(1, self._bytes // len(self.messages))
        return max(1, min(left, (self._bytes_max - self._bytes) // mean))

    def _company(self, tries: int) -> int:
        """How many a message may go with, itself included."""
        if 1 < tries >= self._attempts_max:
            return 1
        return max(1, self._count_max >> 2 * (tries - 1))
