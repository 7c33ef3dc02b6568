"""A cache that new keys cannot empty: what was used again is kept apart from what was seen once."""

from itertools import islice
from typing import Generic, TypeVar

K = TypeVar("K")
V = TypeVar("V")


class ScanResistantCache(Generic[K, V]):
    """Values by key, bounded in number; None is not a value.

    A key enters among the `new`, which are forgotten all at once when they are too many. Used again, it moves to the
    `young`; when these are too many they become the `old`, and an old key that is used becomes young again. So a
    stream of keys that are used once only pushes out keys of its own sort.
    """

    def __init__(self, *, new_max: int, kept_max: int) -> None:
        self._new_max = new_max
        self._young_max = max(1, kept_max // 2)
        self._new: dict[K, V] = {}
        self._young: dict[K, V] = {}
        self._old: dict[K, V] = {}

    def get(self, key: K) -> V | None:
        """The value of a key, which counts as a use of it."""
        value = self._young.get(key)
        return value if value is not None else self._promote(key)

    def put(self, key: K, value: V) -> None:
        """Take over a value; a key that is known stays where it is."""
        for kept in (self._young, self._old):
            if key in kept:
                kept[key] = value
                return
        if len(self._new) >= self._new_max:
            self._new.clear()
        self._new[key] = value

    def recent(self, most: int) -> list[K]:
        """Some of the keys that were put or used last."""
        return [key for kept in (self._young, self._new) for key in islice(reversed(kept), most // 2)]

    def clear(self) -> None:
        """Forget everything."""
        for kept in (self._new, self._young, self._old):
            kept.clear()

    def __len__(self) -> int:
        return len(self._new) + len(self._young) + len(self._old)

    def _promote(self, key: K) -> V | None:
        value = self._old.pop(key, None)
        if value is None:
            value = self._new.pop(key, None)
        if value is not None:
            if len(self._young) >= self._young_max:
                self._old, self._young = self._young, {}
            self._young[key] = value
        return value
