"""Watch processes: which of them are alive, by their heartbeats in the home partition."""

from typing import cast

from doubledecker.store.partitions import Partition


async def beat(home: Partition, watcher: str, *, dead_ms: int) -> None:
    """Say that a watch process is alive, by the server's clock, and forget those that died long ago."""
    now_ms = await home.time_ms()
    key = home.key("watchers")
    await home.write("ZADD", key, now_ms, watcher)
    await home.command("ZREMRANGEBYSCORE", key, "-inf", now_ms - dead_ms)


async def alive(home: Partition, *, silent_ms_max: int) -> int:
    now_ms = await home.time_ms()
    return cast("int", await home.command("ZCOUNT", home.key("watchers"), now_ms - silent_ms_max, "+inf"))


async def sign_off(home: Partition, watcher: str) -> None:
    """One that ends cleanly is not missed."""
    await home.command("ZREM", home.key("watchers"), watcher)
