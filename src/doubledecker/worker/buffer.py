"""A buffer: messages of a queue that will go to its receiver together. Pure, so that a test needs no queue."""

from collections.abc import Sequence

from doubledecker.store.queues import Message


class Buffer:
    """Takes messages until one more would be too many or too large; a single one may be as large as it is."""

    def __init__(self, *, count_max: int, bytes_max: int) -> None:
        self.messages: list[Message] = []
        self.is_full = False
        self._count_max = count_max
        self._bytes_max = bytes_max
        self._bytes = 0

    def add(self, messages: Sequence[Message]) -> list[Message]:
        """Take messages in their order; returns those from the first on that found no room."""
        for i, message in enumerate(messages):
            size = len(message.event)
            if self.is_full or (self.messages and self._bytes + size > self._bytes_max):
                self.is_full = True
                return list(messages[i:])
            self.messages.append(message)
            self._bytes += size
            self.is_full = len(self.messages) >= self._count_max or self._bytes >= self._bytes_max
        return []

    @property
    def room(self) -> int:
        """How many more are likely to fit, if they are like those that are here; at least one."""
        left = self._count_max - len(self.messages)
        if not self.messages:
            return left
        mean = max(1, self._bytes // len(self.messages))
        return max(1, min(left, (self._bytes_max - self._bytes) // mean))
