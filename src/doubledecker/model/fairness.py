"""Fairness of a queue against demand: max-min shares of what was asked for, and Jain's index over them. Pure.

A tenant asked for what it got and what it still waited for. What it could fairly have is its max-min share: everybody
gets what it asked for, as long as that is no more than an equal part (by weight) of what the queue handed out; what
these leave is divided among the others in the same way. Jain's index is of what each got over that share: 1 when all
got their fair share however uneven their load is, 1/n when one of n got everything and all wanted it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Claim:
    """What a tenant got of a queue, and what it had asked for: that, and what waited meanwhile on average."""

    got: float
    asked: float
    weight: float = 1.0


def index(claims: Mapping[str, Claim]) -> float | None:
    """Jain's index of what each tenant got over its fair share; None when nobody got anything."""
    wanted = {name: claim for name, claim in claims.items() if claim.asked > 0}
    fair = shares(wanted)
    return jain([claim.got / fair[name] for name, claim in wanted.items() if fair[name] > 0])


def shares(claims: Mapping[str, Claim]) -> dict[str, float]:
    """The max-min fair share of each, of what all of them got together."""
    left = sum(claim.got for claim in claims.values())
    weights = sum(claim.weight for claim in claims.values())
    found = {}
    # Those who ask for the least by weight come first: what they do not need is left to the others.
    for name, claim in sorted(claims.items(), key=lambda each: each[1].asked / each[1].weight):
        found[name] = min(claim.asked, left * claim.weight / weights)
        left -= found[name]
        weights -= claim.weight
    return found


def jain(amounts: Sequence[float]) -> float | None:
    """Jain's index of fairness: 1 when all got the same, 1/n when one of n got everything; None of nothing."""
    squares = sum(amount * amount for amount in amounts)
    return sum(amounts) ** 2 / (len(amounts) * squares) if squares else None
