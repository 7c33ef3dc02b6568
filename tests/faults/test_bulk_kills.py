"""Kill -9 of the pipeline and all its Spark in mid-delivery: what was accepted for a bulk subscriber is delivered.

What must hold in any order: every accepted event arrives, and no more come twice than can have been on their way.
"""

import asyncio
import os
import random
import signal
from pathlib import Path

import aiohttp
import pytest

from cli.commands import children
from faults.test_pipeline_kills import Ground, a_ground, publishing
from harness import ROOT_KEY, basic, until_ready
from processes import Process
from receiver import Receiver

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

# Each costs a start of Spark.
KILLS = 4
MAX, CONCURRENCY = 50, 4


async def subscribe(ground: Ground, url: str) -> None:
    async with aiohttp.ClientSession() as http:
        await until_ready(http, ground.fleet.url, path="/version")
        async with http.post(
            f"{ground.fleet.url}/api_tokens", json={"name": "mail"}, headers=basic(ROOT_KEY)
        ) as answer:
            secret = str((await answer.json())["token"])
        body = {"topics": ["topic_a", "topic_b", "topic_c"], "callback": url, "tier": "bulk"}
        body |= {"max": MAX, "concurrency": CONCURRENCY}
        async with http.post(f"{ground.fleet.url}/subscription", json=body, headers=basic(secret)) as answer:
            assert answer.status == 204, await answer.text()


async def kill_everything(ground: Ground) -> None:
    for pid in [*children(ground.pipeline.pid), ground.pipeline.pid]:
        os.kill(pid, signal.SIGKILL)
    await ground.pipeline.kill()


async def deliver_the_rest(ground: Ground) -> None:
    once = Process("once", "pipeline", "run", "--once", environment=ground.fleet.environment, logs=ground.lake.parent)
    await once.start()
    assert await once.wait(within_s=300) == 0, once.log


async def test_nothing_is_lost_when_the_pipeline_is_killed_while_it_delivers(tmp_path: Path):
    in_flight: list[int] = []
    async with Receiver(delay_s=0.02) as mail, a_ground(tmp_path, partitions=3) as ground:
        await subscribe(ground, mail.url)
        # As much as can be delivered meanwhile: each start of Spark takes its time.
        async with publishing(ground, pause_s=0.2):
            for _ in range(KILLS):
                await ground.pipeline.start()
                await mail.until_attempts(mail.attempts + 2, within_s=240)
                await asyncio.sleep(random.uniform(0.0, 0.5))
                await mail.until(lambda: mail.in_flight > 0, within_s=120)
                in_flight.append(mail.in_flight)
                await kill_everything(ground)
        await deliver_the_rest(ground)

        assert ground.accepted - set(mail.ids) == set()
        assert len(ground.accepted) > 1000
        assert all(count > 0 for count in in_flight)
        assert len(mail.ids) - len(set(mail.ids)) <= KILLS * CONCURRENCY * MAX
        assert mail.in_flight_max <= CONCURRENCY
