"""The embedded server's maxmemory: what a machine or a container has, and that data never starts above it."""

import os
from pathlib import Path

import pytest
from redis.asyncio import Redis

from doubledecker.store import machine
from doubledecker.store.embedded import EmbeddedServer

PHYSICAL = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


@pytest.mark.parametrize(
    ("group", "limits", "found"),
    [
        ("0::/app/worker", {"sys/fs/cgroup/app/memory.max": "1048576"}, 1_048_576),
        (
            "0::/app/worker",
            {"sys/fs/cgroup/app/memory.max": "2097152", "sys/fs/cgroup/app/worker/memory.max": "1048576"},
            1_048_576,
        ),
        ("0::/app", {"sys/fs/cgroup/app/memory.max": "max"}, PHYSICAL),
        ("0::/of/the/host", {"sys/fs/cgroup/memory.max": "1048576"}, 1_048_576),
        ("5:cpu,memory:/app", {"sys/fs/cgroup/memory/app/memory.limit_in_bytes": "1048576"}, 1_048_576),
        ("5:memory:/", {"sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712"}, PHYSICAL),
        ("0::/", {}, PHYSICAL),
    ],
    ids=["a parent's", "the least", "none", "in a container", "version 1", "version 1 without", "no file"],
)
def test_the_least_limit_of_machine_and_control_groups_holds(
    tmp_path: Path, group: str, limits: dict[str, str], found: int
):
    for name, text in {"proc/self/cgroup": group, **limits}.items():
        place = tmp_path / name
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(text + "\n")

    assert machine.memory_bytes(tmp_path) == found


def test_without_control_groups_it_is_the_machines(tmp_path: Path):
    assert machine.memory_bytes(tmp_path) == PHYSICAL


async def test_data_that_takes_more_than_was_asked_for_has_headroom_at_each_start(data_dir: Path):
    server = await EmbeddedServer.start(data_dir)
    async with Redis.from_url(server.url) as client:
        await client.set("large", b"x" * 20_000_000)
    await server.stop()

    server = await EmbeddedServer.start(data_dir, maxmemory_bytes=5_000_000, headroom_bytes=1_000_000)
    try:
        for _ in range(2):
            async with Redis.from_url(server.url, decode_responses=True) as client:
                assert (await client.config_get("maxmemory"))["maxmemory"] == str(server.maxmemory_bytes)
                used = (await client.info("memory"))["used_memory"]
                assert 20_000_000 < server.maxmemory_bytes < used + 2_000_000
                assert await client.set("small", "still room") is True
            await server.restart()
    finally:
        await server.stop()
