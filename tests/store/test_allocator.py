"""The embedded server's allocator, seen from the kernel: what is loaded, and what its process was started with."""

import os
import platform
import shutil
import sys
from pathlib import Path

import pytest
from redis.asyncio import Redis

from doubledecker.store import embedded
from doubledecker.store.embedded import EmbeddedServer

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only Linux has LD_PRELOAD and tells by /proc")


@pytest.fixture(autouse=True)
def _bare(monkeypatch):
    for name in ("LD_PRELOAD", "GLIBC_TUNABLES"):
        monkeypatch.delenv(name, raising=False)


async def server_facts(data: Path) -> tuple[set[str], dict[str, str]]:
    """The libraries and the environment of a server that has answered."""
    server = await EmbeddedServer.start(data)
    try:
        async with Redis.from_url(server.url) as redis:
            assert await redis.set("key", "value")
        return read(server.pid)
    finally:
        await server.stop()


def read(pid: int) -> tuple[set[str], dict[str, str]]:
    lines = Path(f"/proc/{pid}/maps").read_text().splitlines()
    loaded = {Path(line.split(maxsplit=5)[5]).name for line in lines if line.count("/")}
    words = Path(f"/proc/{pid}/environ").read_text().rstrip("\0").split("\0")
    return loaded, dict(word.split("=", 1) for word in words)


@pytest.mark.skipif(not embedded.jemalloc(), reason="this system has no jemalloc")
async def test_the_server_runs_on_the_systems_jemalloc(tmp_path):
    loaded, environment = await server_facts(tmp_path)

    assert any(name.startswith("libjemalloc") for name in loaded)
    assert environment["LD_PRELOAD"] == str(*embedded.jemalloc())
    assert environment["PATH"] == os.environ["PATH"]


@pytest.mark.skipif(not embedded.tbb(), reason="this platform has no wheel of oneTBB")
async def test_without_jemalloc_the_server_runs_on_the_allocator_that_was_installed_for_it(tmp_path, monkeypatch):
    monkeypatch.setattr(embedded, "FOLDERS", ("/no/such/folder",))
    loaded, environment = await server_facts(tmp_path)

    assert not any(name.startswith("libjemalloc") for name in loaded)
    assert any(name.startswith("libtbbmalloc_proxy") for name in loaded)
    assert environment["LD_PRELOAD"] == ":".join(map(str, embedded.tbb()))


async def test_without_both_the_c_library_keeps_more_at_hand(tmp_path, monkeypatch):
    monkeypatch.setattr(embedded, "FOLDERS", ("/no/such/folder",))
    monkeypatch.setattr(embedded, "ENVIRONMENT", tmp_path / "no" / "such")
    loaded, environment = await server_facts(tmp_path)

    assert not any(name.startswith(("libjemalloc", "libtbbmalloc")) for name in loaded)
    assert "LD_PRELOAD" not in environment
    assert environment["GLIBC_TUNABLES"] == "glibc.malloc.tcache_count=2000"


@pytest.mark.parametrize("own", [{"LD_PRELOAD": ""}, {"GLIBC_TUNABLES": "glibc.malloc.tcache_count=9"}])
async def test_what_the_user_has_chosen_stays(tmp_path, monkeypatch, own):
    for name, value in own.items():
        monkeypatch.setenv(name, value)
    _, environment = await server_facts(tmp_path)

    assert environment.items() >= own.items()


def test_a_library_is_found_where_distributions_put_it(tmp_path, monkeypatch):
    monkeypatch.setattr(embedded, "FOLDERS", (f"{tmp_path}/lib/*-linux-gnu", f"{tmp_path}/lib64"))
    debian, fedora = tmp_path / "lib" / f"{platform.machine()}-linux-gnu", tmp_path / "lib64"
    assert embedded.jemalloc() == []
    for folder in (debian, fedora):
        folder.mkdir(parents=True)
        (folder / "libjemalloc.so.2").touch()
    assert embedded.jemalloc() == [debian / "libjemalloc.so.2"]
    shutil.rmtree(debian)
    assert embedded.jemalloc() == [fedora / "libjemalloc.so.2"]


@pytest.mark.parametrize(("folder", "is_taken"), [("plain", True), ("with space", False), ("with:colon", False)])
def test_a_place_that_the_loader_would_split_is_not_named_to_it(tmp_path, monkeypatch, folder, is_taken):
    place = tmp_path / folder
    place.mkdir()
    monkeypatch.setattr(embedded, "ENVIRONMENT", place)
    for name in ("libtbbmalloc.so.2", "libtbbmalloc_proxy.so.2"):
        assert embedded.tbb() == []
        (place / name).touch()
    assert bool(embedded.tbb()) is is_taken
