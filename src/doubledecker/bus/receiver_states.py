"""Whether a receiver is paused or disabled: kept with its registration at home, obeyed by each partition's ring.

So are the secrets by which it is signed, which no ring needs: the process that calls it reads them at home.

Home is written first, then each partition has the registry's new version and takes the receiver out of its ring, or
seats it again. Once a change has returned, no further call begins; calls under way end as they would have. A process
that dies in between leaves partitions that obey later: the sweep brings them in line with home.
"""

from msgspec import structs

from doubledecker import log
from doubledecker.errors import Conflict, NotFound
from doubledecker.model import signing
from doubledecker.model.queue import RegisteredQueue
from doubledecker.model.signing import SigningKeys
from doubledecker.model.subscriber import Subscriber
from doubledecker.store import receivers, registry, subscribers
from doubledecker.store.partitions import Partitions

# Concurrent changes of one receiver are tried again with what it is then, so many times at most.
_TRIES_MAX = 20

_log = log.get("registry")


class ReceiverStates:
    """Changes the state of receivers, by their tokens: a client's id, or `@` and the name of a queue."""

    def __init__(self, partitions: Partitions) -> None:
        self._partitions = partitions

    async def pause(self, token: str) -> Subscriber:
        """Send it nothing, and keep all that waits, until it is resumed; returns it as it is now."""
        await self._change(token, {"paused": 1})
        return await self._obey(token)

    async def resume(self, token: str) -> Subscriber:
        """Go on where the pause began; one that was failing still is, and is probed when that is due."""
        await self._change(token, {"paused": 0})
        return await self._obey(token)

    async def enable(self, token: str) -> Subscriber:
        """End what a 410 has begun; what it failed at before says nothing of it any more."""
        await self._change(token, {"disabled_at": 0, "disabled_why": ""})
        return await self._obey(token)

    async def disable(self, receiver: Subscriber, *, why: str, at: int) -> None:
        """Send it nothing until it is enabled or subscribes anew; not if it has moved or begun anew since its call."""
        fields: dict[str, int | str] = {"disabled_at": at, "disabled_why": why}
        try:
            if await self._change(receiver.token, fields, former=receiver):
                _log.warning("subscriber.disabled", subscriber=receiver.token, callback=receiver.callback, why=why)
            await self._obey(receiver.token)
        except NotFound:
            return  # it left meanwhile

    async def rotate_secret(self, token: str, *, overlap_s: int, now_ms: int) -> SigningKeys:
        """Give it a new signing secret, its first or another; calls that begin once this has returned are signed by it.

        Raises TooMany when too many former secrets would sign as well.
        """
        home = self._partitions.home
        for _ in range(_TRIES_MAX):
            known, queue = await self._read(token)
            keys = signing.rotate(known.signing, overlap_s=overlap_s, now_ms=now_ms)
            if queue is None:
                seen = {"signing": signing.encode(known.signing)}
                version = await subscribers.mark(home, token, {"signing": signing.encode(keys)}, seen=seen)
            else:
                version = await registry.save_queue(home, structs.replace(queue, signing=keys), former=queue)
            if version:
                await registry.copy_version(self._partitions, version)
                _log.info("subscriber.secret_rotated", subscriber=token, former_until=keys.former_until)
                return keys
        raise _contended(token)

    async def _change(self, token: str, fields: dict[str, int | str], former: Subscriber | None = None) -> bool:
        """Change some fields of its registration; returns whether that changed anything.

        Nothing of one that has moved or begun anew since it was `former`, or that was disabled before.
        """
        for _ in range(_TRIES_MAX):
            known, queue = await self._read(token)
            if former and (known.disabled_at or not _is_still(former, known)):
                return False
            if queue is None:
                since = known.anew_since and str(known.anew_since)
                seen = {"callback": known.callback, "anew_since": since or ""} if former else {}
                version = await subscribers.mark(self._partitions.home, token, fields, seen=seen)
            else:
                values = {name: bool(value) if name == "paused" else value for name, value in fields.items()}
                wanted = structs.replace(queue, **values)
                if wanted == queue:
                    return False
                version = await registry.save_queue(self._partitions.home, wanted, former=queue)
            if version:
                await registry.copy_version(self._partitions, version)
            if version or queue is None:
                return version > 0
        raise _contended(token)

    async def _obey(self, token: str) -> Subscriber:
        """Have each partition's ring know it as the registry has it now."""
        for partition in self._partitions.all:
            for _ in range(_TRIES_MAX):
                # The version first: what is read after it is no older.
                version = await registry.version(self._partitions.home)
                known, _ = await self._read(token)
                if await receivers.save(partition, token, known, version=version):
                    break
        return known

    async def _read(self, token: str) -> tuple[Subscriber, RegisteredQueue | None]:
        """A receiver as home has it now, and its queue if it is one's."""
        home = self._partitions.home
        if token.startswith("@"):
            queue = await registry.queue(home, token.removeprefix("@"))
            if queue is not None and queue.callback:
                return queue.receiver, queue
        else:
            found = (await subscribers.load_many(home, [token])).get(token)
            if found is not None:
                return found, None
        raise NotFound(f"no receiver named {token[:80]!r}; it is gone")


def _is_still(former: Subscriber, known: Subscriber) -> bool:
    """Whether what was learnt of a receiver as it was holds for it now."""
    return (known.callback, known.anew_since) == (former.callback, former.anew_since)


def _contended(token: str) -> Conflict:
    return Conflict(f"{token!r} is being changed by others at the same time; try again")
