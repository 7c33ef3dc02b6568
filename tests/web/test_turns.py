"""Heavy work takes turns: one piece at a time, the event loop goes round between two, and clients alternate."""

import asyncio
from contextlib import suppress

from doubledecker.web.turns import Turns


async def test_one_piece_runs_at_a_time_and_other_work_runs_between_two():
    turns, order = Turns(), list[str]()

    async def other_work() -> None:
        while len(order) < 12:
            order.append("other")
            await asyncio.sleep(0)

    async def heavy_work() -> None:
        for _ in range(4):
            async with turns.taken("ann"):
                order.append("heavy")

    await asyncio.gather(heavy_work(), other_work())

    assert "heavy heavy" not in " ".join(order)


async def test_a_client_waits_for_one_piece_of_another_client_however_many_it_has_in_line():
    turns, order = Turns(), list[str]()

    async def piece(client: str) -> None:
        async with turns.taken(client):
            order.append(client)

    await asyncio.gather(*(piece("greedy") for _ in range(50)), piece("modest"))

    assert order.index("modest") <= 2
    assert order.count("greedy") == 50


async def test_a_piece_that_fails_or_is_cancelled_passes_the_turn_on():
    turns = Turns()
    with suppress(ValueError):
        async with turns.taken("ann"):
            raise ValueError
    async with turns.taken("bob"):
        waiting = asyncio.create_task(turns.taken("ann").__aenter__())
        await asyncio.sleep(0)
        waiting.cancel()
        await asyncio.wait([waiting])

    async with asyncio.timeout(5), turns.taken("ann"):
        pass
