"""What is remembered of requests."""

from doubledecker.store import quotas
from doubledecker.store.partitions import Partitions


async def test_a_nonce_count_is_used_once_and_the_nonce_is_remembered_for_its_lifetime(plain: Partitions):
    home = plain.home

    taken = [await quotas.use_nonce(home, nonce="abc", count=count, lifetime_ms=60_000) for count in (1, 2, 1)]

    assert taken == [True, True, False]
    assert 0 < await home.command("PTTL", home.key("nonce:abc")) <= 60_000  # type: ignore[operator]
