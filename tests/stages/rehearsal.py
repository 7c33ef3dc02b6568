"""How the tests of stages run: in virtual time, with answers that take as long as they say."""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass
from random import Random
from typing import TypeVar

from doubledecker.stages import Bound, Chain, Event, Notice, Stage, VirtualLoop

R = TypeVar("R")


class Broken(Exception):
    """What a dependency of the tests raises."""

    def __init__(self, retry_after_s: float | None = None) -> None:
        super().__init__("broken")
        self.retry_after_s = retry_after_s


def virtually(main: Coroutine[object, object, R]) -> R:
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(main)


def now() -> float:
    return asyncio.get_running_loop().time()


def bind(chain: Chain | Stage, listener: Callable[[Notice], None] | None = None) -> Bound:
    whole = chain if isinstance(chain, Chain) else Chain((chain,))
    return whole.bind(random=Random(1), listener=listener)


def a_call(takes_s: float = 0.0, *, fails: bool = False, key: str | None = None, **fields: object) -> Event:
    return Event(key, function=answer, args=(takes_s, fails), **fields)


async def answer(takes_s: float, fails: bool) -> str:
    if takes_s:
        await asyncio.sleep(takes_s)
    if fails:
        raise Broken
    return "answer"


@dataclass(frozen=True)
class Ending:
    """How a call ended, and when."""

    how: str
    at: float


async def ending(call: Awaitable[object]) -> Ending:
    try:
        await call
    except asyncio.CancelledError:
        return Ending("Cancelled", now())
    except Exception as error:  # noqa: BLE001 - however it ends
        return Ending(type(error).__name__, now())
    return Ending("ok", now())


async def at(moment: float, bound: Bound, event: Event) -> Ending:
    """Send the event at that moment of virtual time."""
    await asyncio.sleep(moment - now())
    return await ending(bound.run(event))
