"""Notices of receivers, as scripts write them (lua/receiver_notices.lua), until a worker has published them."""

from collections.abc import Sequence
from typing import cast

import msgspec

from doubledecker.model.position import Position
from doubledecker.store.partitions import Partition
from doubledecker.store.shared_connection import Reply

_KEY = "notices"
# As lua/receiver_notices.lua has it, about.
_KEPT_MAX = 11_000
# That one command reads or removes: a millisecond or two of the server's time.
_PAGE = 1_000


class PendingNotice(msgspec.Struct, frozen=True):
    """What happened to a receiver; `why` is empty, or an outcome and a status, 0 for none."""

    id: str
    type: str
    receiver: str
    why: str
    failures: int
    since: int

    @property
    def at(self) -> int:
        """When it was written, by the server's clock."""
        return Position.parse(self.id).ms


async def read(partition: Partition, *, count: int, after: str = "") -> list[PendingNotice]:
    """The oldest that are yet to be published, or those after one of them."""
    first = f"({after}" if after else "-"
    reply = await partition.command("XRANGE", partition.key(_KEY), first, "+", "COUNT", count)
    return [_notice(id_.decode(), flat) for id_, flat in cast("list[tuple[bytes, list[bytes]]]", reply)]


async def read_all(partition: Partition) -> list[PendingNotice]:
    """All that are yet to be published, the oldest first."""
    found = await read(partition, count=_PAGE)
    while len(found) % _PAGE == 0 and len(found) < _KEPT_MAX:
        more = await read(partition, count=_PAGE, after=found[-1].id) if found else []
        if not more:
            break
        found += more
    return found


async def remove(partition: Partition, ids: Sequence[str]) -> None:
    """Forget those that are published, or that nobody will be notified of."""
    for first in range(0, len(ids), _PAGE):
        await partition.command("XDEL", partition.key(_KEY), *ids[first : first + _PAGE])


async def forget(partition: Partition, receiver: str) -> None:
    """Forget those of one receiver: they concern a client that has it no longer."""
    await remove(partition, [each.id for each in await read_all(partition) if each.receiver == receiver])


def _notice(id_: str, flat: Sequence[Reply]) -> PendingNotice:
    words = [cast("bytes", each).decode() for each in flat]
    fields = dict(zip(words[0::2], words[1::2], strict=True))
    failures, since = int(fields["failures"]), int(float(fields["since"]))
    return PendingNotice(id_, fields["type"], fields["receiver"], fields["why"], failures, since)
