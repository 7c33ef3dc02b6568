"""Memory: what queued events cost in Valkey, with the journal that keeps them for readers and without."""

from redis.asyncio import Redis

from bench.bus import a_bus
from bench.scale import Scale

_NOBODY = "http://127.0.0.1:9/"
_WARM = 100  # loads the script and opens what every bus has
# Whatever the scale: with fewer, buffers that come and go would show.
_EVENTS = 100_000


async def measure(_scale: Scale) -> dict[str, float]:
    async with a_bus() as bus, Redis.from_url(bus.server.url) as redis:
        await bus.subscribe(1, _NOBODY)
        await bus.fill(_WARM)
        before, journal_before = await _used(redis)
        await bus.fill(_EVENTS)
        after, journal_after = await _used(redis)
        [bid] = await redis.zrange("rm:batches:index", 0, 0)
        chunk = await redis.lindex(f"rm:batch:{bid.decode()}", -1)
    all_bytes, journal_bytes = after - before, journal_after - journal_before
    line = chunk.partition(b"\n")[0]
    return {
        "memory.event_bytes": len(line),
        "memory.with_journal_bytes": all_bytes / _EVENTS,
        "memory.without_journal_bytes": (all_bytes - journal_bytes) / _EVENTS,
        "memory.backlog_mib": all_bytes / 2**20,
    }


async def _used(redis: Redis) -> tuple[int, int]:
    """Bytes in all, and of the journal's streams."""
    # The lists of a stream are measured whole: a sample would be multiplied by a guess.
    journal = [await redis.memory_usage(key, samples=0) or 0 async for key in redis.scan_iter("rm:journal:*")]
    return (await redis.info("memory"))["used_memory"], sum(journal)
