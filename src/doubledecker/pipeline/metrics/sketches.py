"""Sketches: percentiles, distinct counts and fairness from what can be added up.

**Durations** are counted in buckets of whole milliseconds: up to 127 ms each has its own, above that 64 buckets lie
between a power of two and the next. Histograms merge by adding, and a percentile is the middle of the bucket that holds
it: exact up to 127 ms, and within 1/128 (0.8 %) of the true one above.

**Distinct keys** are estimated from the 1024 least of their hashes, which lie evenly over all numbers: the nearer the
1024th is to the lower end, the more there are. Up to 1023 keys the count is exact (but for two with the same 64-bit
hash); above, its standard error is 1 / √1022 (3.1 %). Two of these merge to the 1024 least of both.
"""

from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate

from doubledecker.model.summary import Spread

# The more, the closer the estimate and the larger the row: at most 8 KiB.
LEAST_MAX = 1024
_HASHES = 1 << 64
# Buckets between a power of two and the next, as bits.
BITS = 6


def bucket(ms: int) -> int:
    """The bucket that a duration is counted in."""
    shift = max(ms.bit_length() - BITS - 1, 0)
    return (shift << BITS) + (ms >> shift)


def middle(number: int) -> float:
    """The middle of a bucket, in milliseconds."""
    shift = max((number >> BITS) - 1, 0)
    return ((number - (shift << BITS)) << shift) + ((1 << shift) - 1) / 2


def spread(counts: Mapping[int, int]) -> Spread | None:
    """The percentiles of a histogram, each the least duration that so many do not exceed; None of nothing."""
    total = sum(counts.values())
    if not total:
        return None
    numbers = sorted(counts)
    reached = list(accumulate(counts[number] for number in numbers))

    def at(percent: int) -> float:
        rank = -(-total * percent // 100)
        return middle(next(number for number, upto in zip(numbers, reached, strict=True) if upto >= rank))

    return Spread(total, at(50), at(95), at(99))


def merge(least: Iterable[Sequence[int]]) -> list[int]:
    """What the union of several sets of keys would have given."""
    return sorted({each for one in least for each in one})[:LEAST_MAX]


def distinct(least: Sequence[int]) -> int:
    """How many different keys there were."""
    if len(least) < LEAST_MAX:
        return len(least)
    share = (least[-1] + _HASHES // 2 + 1) / _HASHES
    return round((LEAST_MAX - 1) / share)


def jain(amounts: Sequence[float]) -> float | None:
    """Jain's index of fairness: 1 when all got the same, 1/n when one of n got everything; None of nothing."""
    squares = sum(amount * amount for amount in amounts)
    return sum(amounts) ** 2 / (len(amounts) * squares) if squares else None
