"""What is remembered of requests: idempotency keys and used Digest nonces."""

from typing import cast

from doubledecker.model import quota
from doubledecker.model.quota import Quotas
from doubledecker.store.partitions import Partition
from doubledecker.store.scripts import load

WINDOW_MS = 86_400_000
# Repeats come within minutes: a key is not forgotten before, however many there are.
KEEP_MS = 300_000

_CLAIM, _USE_NONCE = load("idempotency_claim"), load("nonce_use")


async def claim_key(home: Partition, *, token: str, key: str, record: str, quotas: Quotas) -> str | None:
    """Remember a request under its key, or say what is remembered already.

    Raises QuotaExceeded when the client has used its number of keys within the time for which none is forgotten.
    """
    keys_max = quotas.client_idempotency_keys_max
    reply = await home.run(
        _CLAIM, token=token, key=key, record=record, window_ms=WINDOW_MS, keys_max=keys_max, keep_ms=KEEP_MS
    )
    if reply == -1:
        raise quota.too_many_keys(quotas, window_s=KEEP_MS // 1000)
    return cast("bytes", reply).decode() if reply else None


async def update_key(home: Partition, *, token: str, key: str, record: str) -> None:
    await home.write("HSET", home.key(f"idempotency:{token}"), key, record)


async def forget_key(home: Partition, *, token: str, key: str) -> None:
    kept, ages = home.key(f"idempotency:{token}"), home.key(f"ages:{token}")
    await home.commands([["HDEL", kept, key], ["ZREM", ages, key]])


async def use_nonce(home: Partition, *, nonce: str, count: int, lifetime_ms: int) -> bool:
    """Mark a nonce count as used; False when it was used before."""
    return await home.run(_USE_NONCE, nonce=nonce, count=count, lifetime_ms=lifetime_ms) == 0
