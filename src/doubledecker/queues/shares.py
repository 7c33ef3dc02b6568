"""How many messages of a pull come from which partition, so that the partitions' rings turn as one.

Each partition has a ring of its own with its own virtual time. The one whose least tag is lowest is the one furthest
behind, and a message served there moves it on by its cost over the number of facets that share the turn.
"""

import heapq
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class RingState:
    """A partition's ring: least tag (None: nothing can be served), mean cost of a message, facets."""

    head: float | None = None
    cost: float = 1.0
    facets: int = 1


def divide(most: int, standings: Sequence[RingState], *, floor: float) -> list[int]:
    """So many from each; all tags below the floor count as the floor."""
    shares = [0] * len(standings)
    turns = [
        (max(standing.head, floor), i, (standing.cost or 1.0) / max(1, standing.facets))
        for i, standing in enumerate(standings)
        if standing.head is not None
    ]
    heapq.heapify(turns)
    for _ in range(most if turns else 0):
        tag, i, step = turns[0]
        shares[i] += 1
        heapq.heapreplace(turns, (tag + step, i, step))
    return shares


def virtual_time(standings: Sequence[RingState], *, before: float) -> float:
    """How far the queue as a whole is: the least tag that waits anywhere; it never falls."""
    heads = [standing.head for standing in standings if standing.head is not None]
    return max(before, min(heads)) if heads else before
