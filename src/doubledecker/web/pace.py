"""Pace: how often a client may ask for something costly, in a web process.

A client may do as much at once as in a minute; what it did is paid for at that rate, and beyond it waits. No person and
no script of a deployment comes near; a loop does, and takes the servers' time from the others no longer.
"""

import asyncio
import math

from doubledecker.errors import TooOften

_MINUTE_S = 60.0
# Clients whose pace is kept; beyond, those that may do as much as ever are forgotten.
_CLIENTS_MAX = 1_000


class ClientPace:
    """Counts what each client does of one kind."""

    def __init__(self, done: str, noun: str) -> None:
        self._done, self._noun = done, noun
        # Until when what a client did is paid for, at its rate.
        self._paid_until: dict[str, float] = {}

    def pay(self, client: str, *, minute_max: int) -> None:
        """Count one more of a client's; raises TooOften when it did too much in the last minute."""
        now_s = asyncio.get_running_loop().time()
        paid_until = max(now_s, self._paid_until.get(client, 0.0)) + _MINUTE_S / minute_max
        wait_s = math.ceil(paid_until - now_s - _MINUTE_S)
        if wait_s > 0:
            raise TooOften(f"this client has {self._done} {minute_max} {self._noun} in a minute", retry_after_s=wait_s)
        if len(self._paid_until) >= _CLIENTS_MAX:
            self._paid_until = {each: until for each, until in self._paid_until.items() if until > now_s}
        self._paid_until[client] = paid_until
