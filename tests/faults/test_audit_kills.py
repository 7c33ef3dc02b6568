"""The audit trail though web is killed between a change and its record."""

import asyncio
import sys
from pathlib import Path

import aiohttp
import pytest

from conftest import Topology
from doubledecker.model.audit import AuditFilter
from doubledecker.store import audit
from doubledecker.store.partitions import Partitions
from harness import basic, until_ready
from processes import ROOT_KEY, Fleet

pytestmark = pytest.mark.slow

# A web process that dies in the moment when it would write a record.
DYING = """
import os, signal, sys
from doubledecker.store import audit

async def die(*_):
    os.kill(os.getpid(), signal.SIGKILL)

audit.end = die
sys.argv = ["doubledecker", "web"]
from doubledecker.cli import main
main()
"""


async def test_a_change_is_recorded_though_web_is_killed_before_it_can_write_that(
    one: Topology, plain: Partitions, tmp_path: Path
):
    home = plain.home
    fleet = Fleet(one, tmp_path, workers=0)
    dying = await asyncio.create_subprocess_exec(sys.executable, "-c", DYING, env=fleet.environment)
    try:
        async with aiohttp.ClientSession(headers=basic(ROOT_KEY)) as http:
            await until_ready(http, fleet.url, path="/version")
            with pytest.raises(aiohttp.ClientError):
                await http.post(f"{fleet.url}/api_tokens", json={"name": "ann"})
        assert await dying.wait() == -9
    finally:
        if dying.returncode is None:
            dying.kill()
            await dying.wait()
    assert await home.command("HLEN", home.key("api_tokens")) == 1
    assert (await audit.newest(home, AuditFilter(), limit=9)).records == []
    assert await audit.end_left(home, now_ms=2**53) == 1
    [found] = (await audit.newest(home, AuditFilter(), limit=9)).records
    assert (found.record.action, found.record.actor, found.record.outcome) == ("token.created", "root", "unknown")
