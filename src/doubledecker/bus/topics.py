"""Topics: who owns which, and the changes that owners and root make to them."""

from collections.abc import AsyncIterator, Sequence
from typing import TYPE_CHECKING

from doubledecker.errors import BadRequest, NotFound, TopicOwned
from doubledecker.model.reserved import is_reserved
from doubledecker.model.topic import TopicView
from doubledecker.store import registry
from doubledecker.store.partitions import Partitions

if TYPE_CHECKING:
    from doubledecker.bus.registry import LiveRegistry


class Topics:
    """The topics of a process's copy of the registry, and the changes that it makes to them."""

    def __init__(self, partitions: Partitions, live: "LiveRegistry") -> None:
        self._partitions = partitions
        self._registry = live

    async def claim(self, names: Sequence[str], *, publisher: str) -> dict[str, str]:
        """Whose each topic is; those without an owner become the publisher's, or have none if it has too many.

        Reserved topics have none.
        """
        known = self._registry.snapshot.owners
        unknown = [name for name in names if name not in known]
        if not unknown:
            return known
        barred = dict.fromkeys(filter(is_reserved, unknown), "")
        unknown = [name for name in unknown if name not in barred]
        if not unknown:
            return {**known, **barred}
        version = self._registry.snapshot.version
        most = self._registry.quotas.client_topics_max
        claimed = await registry.claim_topics(self._partitions.home, unknown, publisher=publisher, most=most)
        found = dict(zip(unknown, claimed, strict=True))
        # A change meanwhile may have been the end of one of these topics.
        if self._registry.snapshot.version == version:
            known.update({name: owner for name, owner in found.items() if owner})
        return {**known, **found, **barred}

    async def foreign(self, names: Sequence[str], *, publisher: str) -> dict[str, str]:
        """Those of the topics that another client owns, or none can, with their owners; claims nothing."""
        owners = await registry.topic_owners(self._partitions.home, names)
        pairs = zip(names, owners, strict=True)
        return {name: owner or "" for name, owner in pairs if is_reserved(name) or owner not in {None, publisher}}

    async def delete(self, name: str, *, publisher: str) -> int:
        """Forget a topic; `publisher` is empty for root. Returns how many subscriptions ended."""
        version, ended = await registry.delete_topic(self._partitions.home, name, publisher=publisher)
        if version == 0:
            raise NotFound(f"no topic named {name!r}")
        if version < 0:
            foreign = await self.foreign([name], publisher=publisher)
            raise TopicOwned(name, foreign.get(name, "one that has left"))
        # The version first: a publisher with an older copy would count it again.
        await self._registry.spread(version)
        await registry.end_topic(self._partitions, name)
        return ended

    async def give(self, name: str, *, to: str) -> None:
        """Make another client the owner of a topic; what was published stays, and so do the subscriptions."""
        version = await registry.give_topic(self._partitions.home, name, to=to)
        if version == 0:
            raise NotFound(f"no topic named {name[:80]!r}")
        if version < 0:
            raise BadRequest(f"to is {to[:80]!r}; no client has that id, GET /api_tokens lists them")
        await self._registry.spread(version)

    async def list_(self) -> AsyncIterator[TopicView]:
        """All topics by name, with who owns them and how many events they had; others have their turn in between."""
        await self._registry.refresh()
        async for name, owner, events in registry.topics(self._partitions):
            token = self._registry.snapshot.tokens.get(owner)
            yield TopicView(name, token.name if token else owner.rpartition("-")[0], owner, events)
