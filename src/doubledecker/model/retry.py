"""How often, how long and at which intervals a receiver wants what it did not take to be tried again."""

from typing import Annotated

import msgspec

from doubledecker.errors import BadRequest
from doubledecker.model import schema
from doubledecker.model.schema import between

# More would be a `retry` that never ends, which is what there is without one.
ATTEMPTS_MAX = 1_000
DELAYS_MAX = 100
_DAY_MS, _MONTH_S = 86_400_000, 2_592_000

_Attempts = Annotated[int, between(1, ATTEMPTS_MAX, "After so many an event is a dead letter")]
_AgeS = Annotated[int, between(1, _MONTH_S, "An event that waits for longer, and then fails, is a dead letter")]
_DelayMs = Annotated[int, between(1, _DAY_MS)]


class RetryWanted(msgspec.Struct, forbid_unknown_fields=True):
    """Without a bound on attempts or age, a receiver that fails is never given up. An empty one asks for nothing."""

    attempts_max: _Attempts | None = None
    age_max_s: _AgeS | None = None
    base_ms: Annotated[_DelayMs, msgspec.Meta(description="The longest first delay; it doubles with each")] | None = (
        None
    )
    cap_ms: Annotated[_DelayMs, msgspec.Meta(description="The longest delay")] | None = None


RetryDelays = Annotated[
    list[_DelayMs],
    msgspec.Meta(description="The delay before each further attempt; after the last an event is a dead letter"),
]
Retry = Annotated[RetryWanted | RetryDelays, msgspec.Meta(description="When to try again, and when to give up")]


class RetryPolicy(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a receiver asked for; 0 is no bound, or the settings' own. `delays_ms` go before other delays."""

    attempts_max: int = 0
    age_max_s: int = 0
    base_ms: int = 0
    cap_ms: int = 0
    delays_ms: tuple[int, ...] = ()

    @property
    def shown(self) -> RetryWanted | list[int]:
        """As it was asked for."""
        if self.delays_ms:
            return list(self.delays_ms)
        return RetryWanted(*(value or None for value in (self.attempts_max, self.age_max_s, self.base_ms, self.cap_ms)))


def policy(asked: RetryWanted | list[int]) -> RetryPolicy | None:
    """What is asked for, checked; None for what asks for nothing."""
    if not isinstance(asked, list):
        schema.check(asked)
    if isinstance(asked, list):
        if not 1 <= len(asked) <= DELAYS_MAX:
            raise BadRequest(f"retry has {len(asked)} delays; it must have 1 to {DELAYS_MAX}")
        for delay in asked:
            if not 1 <= delay <= _DAY_MS:
                raise BadRequest(f"retry has a delay of {delay} ms; one must be from 1 to {_DAY_MS}")
        return RetryPolicy(attempts_max=len(asked) + 1, delays_ms=tuple(asked))
    if asked.base_ms and asked.cap_ms and asked.base_ms > asked.cap_ms:
        raise BadRequest(f"retry.base_ms is {asked.base_ms}; it must be at most retry.cap_ms, {asked.cap_ms}")
    wanted = RetryPolicy(asked.attempts_max or 0, asked.age_max_s or 0, asked.base_ms or 0, asked.cap_ms or 0)
    return None if wanted == RetryPolicy() else wanted


_STORED = msgspec.json.Decoder(RetryPolicy)


def stored(record: str) -> RetryPolicy | None:
    """Read a policy from what is kept; empty for none."""
    return _STORED.decode(record) if record else None
