"""What a new routing key costs at the bounds of patterns: CPU time, by kind of pattern and by steps in all.

python -m bench.patterns
"""

import random
import resource
import string
import time

from doubledecker.model.matching import PatternMatcher, steps_of

_KEYS = 100
_SORTS = {
    "catch-all": lambda n: ".*" + "x?" * (n % 3),
    "one topic": lambda n: f".*:topic{n}:.*",
    "worst found": lambda n: f".*[^{string.ascii_lowercase[n % 26]}]{{{30 + n // 26 % 8}}}z.*",
}


def main() -> None:
    """Print a row for each kind of pattern and each bound."""
    print(f"{'patterns':12} {'steps':>8} {'60 characters':>14} {'194 characters':>14} {'memory':>8}")
    for steps in (2_000, 10_000, 100_000):
        for sort, pattern in _SORTS.items():
            matcher = PatternMatcher()
            number = 0
            while matcher.steps_total < steps - 400:
                matcher.put(f"q{number}", (pattern(number),), f"client-{matcher.steps_total // 10_000}")
                number += 1
                if number > 1_000 * max(1, steps // 10_000):
                    break
            matcher.match("compile:it:first")
            cost = [_cost(matcher, length) for length in (19, 64)]
            memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
            row = f"{matcher.steps_total:>8} {cost[0]:>11.3f} ms {cost[1]:>11.3f} ms {memory:>5} MB"
            print(f"{sort:12} {row}")


def _cost(matcher: PatternMatcher, part_length: int) -> float:
    """Milliseconds of CPU for a key that was never seen."""
    chance = random.Random(part_length)
    parts = ["".join(chance.choices(string.ascii_lowercase, k=part_length)) for _ in range(3 * _KEYS)]
    keys = [":".join(parts[at : at + 3]) for at in range(0, len(parts), 3)]
    started = time.process_time()
    for key in keys:
        matcher.match(key)
    return (time.process_time() - started) / len(keys) * 1000


if __name__ == "__main__":
    assert steps_of(".*") > 0
    main()
