"""What the servers report of themselves, to check whether they fit; nothing is written."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

from doubledecker.store import nodes
from doubledecker.store.shared_connection import Reply

# By product: the first major version that runs our scripts.
VERSIONS_MIN = {"Valkey": 8, "Redis": 7}
POLICY = "noeviction"


@dataclass(frozen=True)
class ServerFacts:
    """One server: which it is, how it keeps data, what it may use, and its clock."""

    server: str
    product: str
    version: str
    policy: str
    used_bytes: int
    # 0: nothing bounds it.
    limit_bytes: int
    appends: bool
    saves: bool
    failed_write: str
    now_ms: int

    @property
    def is_recent(self) -> bool:
        return int(self.version.split(".")[0]) >= VERSIONS_MIN[self.product]


async def examine(url: str) -> list[ServerFacts]:
    """Ask each server; raises BusAway when one does not answer."""
    found = nodes.Nodes(url)
    try:
        await found.discover()
        replies = await found.everywhere([["INFO"], ["CONFIG", "GET", "save"], ["TIME"]])
        return [_facts(nodes.shown(at), reply) for at, reply in zip(found.urls, replies, strict=True)]
    finally:
        await found.close()


def _facts(server: str, reply: Sequence[Reply]) -> ServerFacts:
    info, save, time = cast("tuple[bytes, list[bytes], list[bytes]]", tuple(reply))
    fields = dict(line.split(":", 1) for line in info.decode().splitlines() if ":" in line)
    product = "Valkey" if "valkey_version" in fields else "Redis"
    failed = [name for name in ("rdb_last_bgsave_status", "aof_last_write_status") if fields.get(name, "ok") != "ok"]
    return ServerFacts(
        server=server,
        product=product,
        version=fields["valkey_version" if product == "Valkey" else "redis_version"],
        policy=fields["maxmemory_policy"],
        used_bytes=int(fields["used_memory"]),
        limit_bytes=int(fields["maxmemory"]),
        appends=fields.get("aof_enabled") == "1",
        saves=len(save) > 1 and bool(save[1]),
        failed_write=", ".join(failed),
        now_ms=int(time[0]) * 1000 + int(time[1]) // 1000,
    )
