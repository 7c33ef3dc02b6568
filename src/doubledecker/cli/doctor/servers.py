"""Checks of Redis: whether it is there, is new enough, keeps what it is given, and has the clock that we have."""

import asyncio
from collections.abc import Callable
from functools import partial
from pathlib import Path

from doubledecker.assembly.settings import Settings
from doubledecker.cli import folder, words
from doubledecker.cli.doctor.finding import Finding, failed, ok, warning
from doubledecker.errors import BusAway, SettingInvalid
from doubledecker.store import server_facts
from doubledecker.store.server_facts import POLICY, VERSIONS_MIN, ServerFacts

# Receivers allow a signature five minutes; a minute leaves them most of that. A second already shows in latencies.
_CLOCK_MS_MAX, _CLOCK_MS_ODD = 60_000, 1_000
_FULL_SHARE = 0.9


def check(settings: Settings, data: Path | None, now_ms: Callable[[], int]) -> list[Finding]:
    """All checks of each server; one finding where none answers."""
    is_set = settings.redis_url != Settings.redis_url
    try:
        url = folder.find(settings, data, is_url_set=is_set).redis_url
    except BusAway as error:
        return [failed("Redis", str(error), "start that bus, or leave out --data")]
    is_own = not is_set and url == settings.redis_url
    try:
        servers = asyncio.run(server_facts.examine(url))
    except (BusAway, SettingInvalid) as error:
        if is_own:
            remedy = "nothing for `doubledecker up`, which runs a server of its own; else start one"
            return [warning("Redis", str(error), remedy)]
        return [failed("Redis", str(error), "start it, or set DOUBLEDECKER_REDIS_URL to where it is")]
    local_ms = now_ms()
    looks = (_version, _policy, _keeping, partial(_memory, settings), partial(_clock, local_ms=local_ms))
    return [look(each) for each in servers for look in looks]


def _version(each: ServerFacts) -> Finding:
    found = f"{each.product} {each.version} at {each.server}"
    least = " or ".join(f"{product} {version}" for product, version in VERSIONS_MIN.items())
    return ok("Redis", found) if each.is_recent else failed("Redis", found, f"{least} is the least: upgrade it")


def _policy(each: ServerFacts) -> Finding:
    if each.policy == POLICY:
        return ok("Redis policy", f"maxmemory-policy is {each.policy}")
    found = f"maxmemory-policy is {each.policy}: events would vanish when memory is full"
    return failed("Redis policy", found, f"CONFIG SET maxmemory-policy {POLICY}, and set it in its file too")


def _keeping(each: ServerFacts) -> Finding:
    if each.failed_write:
        found = f"its last write to disk failed ({each.failed_write})"
        return failed("Redis persistence", found, "look at its log, and at its disk")
    if each.appends:
        return ok("Redis persistence", "appendonly is yes")
    found = "a crash loses what came since the last snapshot" if each.saves else "nothing is on disk: its end loses all"
    return warning("Redis persistence", found, "CONFIG SET appendonly yes, and set it in its file too")


def _memory(settings: Settings, each: ServerFacts) -> Finding:
    used, bounds = words.size(each.used_bytes), [each.limit_bytes, settings.redis_max_mem_bytes]
    if not any(bounds):
        found = f"{used} used, no limit: the system may end it when the machine's memory is full"
        return warning("Redis memory", found, "CONFIG SET maxmemory, to what it may use of the machine")
    limit = min(filter(None, bounds))
    found = f"{used} of {words.size(limit)} used"
    if each.used_bytes > min(_FULL_SHARE * limit, limit - settings.redis_min_free_bytes):
        return warning("Redis memory", found, "raise maxmemory; `doubledecker status` shows what waits")
    return ok("Redis memory", found)


def _clock(each: ServerFacts, local_ms: int) -> Finding:
    apart_ms = abs(local_ms - each.now_ms)
    found = f"{words.age(apart_ms)} apart from the clock of Redis"
    remedy = "synchronise both machines by NTP (timedatectl set-ntp true)"
    if apart_ms > _CLOCK_MS_MAX:
        return failed("clock", found, remedy)
    return warning("clock", found, remedy) if apart_ms > _CLOCK_MS_ODD else ok("clock", found)
