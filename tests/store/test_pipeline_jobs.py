"""Pipeline jobs in Redis: changed by whoever saw them last, bounded in number; and the pace of replays."""

import asyncio

import msgspec
import pytest
from msgspec import structs

from doubledecker.errors import BadRequest, NotFound, TooMany
from doubledecker.model.pipeline_job import FAILURES_MAX, PipelineJob, condensed
from doubledecker.store import pipeline_jobs
from doubledecker.store.partitions import Partitions
from doubledecker.store.pipeline_jobs import ACTIVE_MAX, KEPT_MAX, REPLAYS


def an_job(number: int, **fields: object) -> PipelineJob:
    return PipelineJob(f"job-{number}", "owner", msgspec.Raw(b"{}"), created_at=number, **fields)


async def test_changes_of_many_are_made_one_after_the_other(partitions: Partitions):
    home = partitions.home
    await pipeline_jobs.create(home, REPLAYS, an_job(1))
    grown = [
        pipeline_jobs.change(home, REPLAYS, "job-1", lambda now: structs.replace(now, done=now.done + 1))
        for _ in range(50)
    ]
    await asyncio.gather(*grown)

    assert (await pipeline_jobs.read(home, REPLAYS, "job-1")).done == 50
    with pytest.raises(NotFound, match="no replay 'job-2'"):
        await pipeline_jobs.change(home, REPLAYS, "job-2", lambda now: now)


async def test_those_that_are_over_are_forgotten_and_those_that_are_not_never(plain: Partitions):
    home = plain.home
    await pipeline_jobs.create(home, REPLAYS, an_job(0))
    for number in range(1, KEPT_MAX + 20):
        await pipeline_jobs.create(home, REPLAYS, an_job(number, state="done"))
    kept = await pipeline_jobs.read_all(home, REPLAYS)

    assert len(kept) == KEPT_MAX
    assert [job.created_at for job in kept] == [0, *range(21, KEPT_MAX + 20)]


async def test_jobs_of_one_millisecond_are_listed_as_they_were_made(plain: Partitions):
    for number in (2, 1, 3):
        await pipeline_jobs.create(plain.home, REPLAYS, structs.replace(an_job(number), created_at=7))
    kept = await pipeline_jobs.read_all(plain.home, REPLAYS)

    assert [job.id for job in kept] == ["job-2", "job-1", "job-3"]


async def test_only_so_many_may_wait(plain: Partitions):
    for number in range(ACTIVE_MAX):
        await pipeline_jobs.create(plain.home, REPLAYS, an_job(number))

    with pytest.raises(TooMany, match=f"{ACTIVE_MAX} replays are not done yet"):
        await pipeline_jobs.create(plain.home, REPLAYS, an_job(ACTIVE_MAX))


async def test_all_tasks_together_keep_the_pace_and_a_pause_is_not_made_up_for(plain: Partitions):
    """The server's clock goes on by itself, so turns are told apart by far more than that takes."""
    home = plain.home
    turns = [await pipeline_jobs.keep_turn(home, "a", count=100, rate=1) for _ in range(4)]
    other = await pipeline_jobs.keep_turn(home, "b", count=1, rate=1)
    home.shift_ms = 1_000_000
    later = [await pipeline_jobs.keep_turn(home, "a", count=100, rate=1) for _ in range(2)]

    assert [round(turn / 10_000) for turn in turns] == [0, 10, 20, 30]
    assert other == 0
    assert [round(turn / 10_000) for turn in later] == [0, 10]


def test_counts_are_kept_in_a_bounded_number_of_rows_and_none_is_left_out():
    few = [(topic, f"2026-11-{day:02}", 3) for topic in ("users", "orders") for day in range(1, 11)]
    days = [("orders", f"day-{n:04}", n) for n in range(2_000)]
    topics = [(f"topic-{n:04}", "2026-11-15", n) for n in range(2_000)]

    assert condensed(few) == tuple(sorted(few))
    assert condensed(days) == (("orders", "all", sum(range(2_000))),)
    assert len(condensed(topics)) == 1_000
    assert condensed(topics)[0] == ("topic-1999", "all", 1_999)
    assert sum(count for _, _, count in condensed(topics)) == sum(range(2_000))


def test_an_job_that_fails_is_given_up_after_some_times():
    job = an_job(1, state="running")
    for _ in range(FAILURES_MAX):
        assert job.state == "running"
        job = job.failed(BadRequest("no\n good"), now_ms=7, is_final=False)

    assert (job.state, job.error, job.changed_at) == ("failed", "no good", 7)
    assert an_job(1).failed(BadRequest(""), now_ms=7, is_final=True).error == "BadRequest"
