"""What the figures were measured on: nothing that names the machine or its owner."""

import hashlib
import importlib.util
import os
import platform
import re
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path

from redis.asyncio import Redis

import doubledecker
from bench import floors, simulation, stages
from bench.bus import a_server
from bench.peers import PEERS
from doubledecker.store import embedded


async def facts() -> dict[str, str]:
    """What to know of the machine, read before anything is measured."""
    peers = [f"{peer.title} {peer.version}" for peer in PEERS if peer.is_installed]
    others = (*stages.PEERS, *simulation.PEERS)
    peers += [f"{name.capitalize()} {metadata.version(name)}" for name in others if importlib.util.find_spec(name)]
    return {
        "date": datetime.now(UTC).strftime("%Y-%m-%d"),
        "processor": f"{_found('/proc/cpuinfo', 'model name') or platform.machine()}, {os.cpu_count()} cores",
        "memory": f"{int((_found('/proc/meminfo', 'MemTotal') or '0').split()[0]) / 2**20:.0f} GiB",
        "load before the run": f"{os.getloadavg()[0]:.1f} processes",
        "source": f"{doubledecker.__version__}, digest {source_digest()}",
        "Python": platform.python_version(),
        "Valkey": await _valkey_version(),
        "peers": ", ".join(peers) or "none installed",
        "client for Valkey's floor": floors.valkey_client(),
    }


def source_digest() -> str:
    """Names the code that is measured: every file of the package, as it is on disk now."""
    folder = Path(doubledecker.__file__).parent
    digest = hashlib.sha256()
    for path in sorted(path for path in folder.rglob("*") if path.suffix in {".py", ".lua"}):
        digest.update(str(path.relative_to(folder)).encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()[:12]


def _found(path: str, name: str) -> str:
    match = re.search(rf"^{name}\s*:\s*(.+)$", Path(path).read_text(), re.MULTILINE)
    return match[1] if match else ""


async def _valkey_version() -> str:
    async with a_server() as server, Redis.from_url(server.url) as redis:
        about = await redis.info("server")
        used = "jemalloc" if embedded.jemalloc() else "oneTBB's" if embedded.tbb() else "the C library's"
        return f"{about.get('valkey_version', about['redis_version'])}, allocator: {used}"
