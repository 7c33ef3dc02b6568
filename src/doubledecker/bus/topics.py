"""Topics: who owns which and who may publish there, and the changes that owners and root make to them."""

from collections.abc import AsyncIterator, Sequence
from typing import TYPE_CHECKING

from doubledecker.errors import BadRequest, Forbidden, NotFound, TopicOwned, TopicReserved
from doubledecker.model import quota
from doubledecker.model import topic as topics
from doubledecker.model.reserved import is_reserved
from doubledecker.model.token import Caller
from doubledecker.model.topic import NOBODYS, TopicRights, TopicView, TopicWanted
from doubledecker.store import registry
from doubledecker.store.partitions import Partitions
from doubledecker.store.registry import TopicRecord

if TYPE_CHECKING:
    from doubledecker.bus.registry import LiveRegistry

# What the store returns instead of a version.
_NOBODYS, _ANOTHERS, _TOO_MANY = 0, -1, -2


class Topics:
    """The topics of a process's copy of the registry, and the changes that it makes to them."""

    def __init__(self, partitions: Partitions, live: "LiveRegistry") -> None:
        self._partitions = partitions
        self._registry = live

    async def claim(self, names: Sequence[str], *, publisher: str) -> dict[str, TopicRights]:
        """Who may publish on each topic; those without an owner become the publisher's, unless it has too many.

        Then nobody may, as on reserved topics.
        """
        known = self._registry.snapshot.rights
        unknown = [name for name in names if name not in known]
        if not unknown:
            return known
        barred = dict.fromkeys(filter(is_reserved, unknown), NOBODYS)
        unknown = [name for name in unknown if name not in barred]
        if not unknown:
            return {**known, **barred}
        version = self._registry.snapshot.version
        most = self._registry.quotas.client_topics_max
        claimed = await registry.claim_topics(self._partitions.home, unknown, publisher=publisher, most=most)
        found = dict(zip(unknown, claimed, strict=True))
        # A change meanwhile may have been the end of one of these topics.
        if self._registry.snapshot.version == version:
            known.update({name: rights for name, rights in found.items() if rights.owner})
        return {**known, **found, **barred}

    async def barred(self, names: Sequence[str], *, publisher: str) -> dict[str, TopicRights]:
        """Those of the topics on which a client may not publish, with who may; claims nothing."""
        found = await registry.topic_rights(self._partitions.home, names)
        return {
            name: rights or NOBODYS
            for name, rights in zip(names, found, strict=True)
            if is_reserved(name) or (rights and not rights.allow(publisher))
        }

    async def check_publisher(self, names: Sequence[str], *, client: str) -> None:
        """Raise Forbidden for the first topic on which a client may not publish, or that is not there."""
        found = await registry.topic_rights(self._partitions.home, names) if names else []
        for name, rights in zip(names, found, strict=True):
            if is_reserved(name) or not rights or not rights.allow(client):
                raise Forbidden(
                    f"a portal token may not subscribe to topic {name[:80]!r}; GET /topics lists its topics"
                )

    async def put(self, name: str, asked: TopicWanted, *, caller: Caller) -> bool:
        """Keep what is asked of a topic, which is the caller's then if it was nobody's; returns whether it is new."""
        if is_reserved(name):
            raise TopicReserved(name)
        await self._registry.refresh()
        # One that is revoked right then does no harm: nobody can publish in its name.
        topics.check_publishers(asked, self._registry.snapshot.tokens)
        most = self._registry.quotas.client_topics_max
        version, is_new = await registry.save_topic(self._partitions.home, name, asked, caller=caller, most=most)
        if version == _NOBODYS:
            raise NotFound(
                f"no topic named {name[:80]!r}; a client has to publish on it first, or PUT it: root owns none"
            )
        if version == _ANOTHERS:
            raise await self._owned(name)
        if version == _TOO_MANY:
            raise quota.too_many_topics(self._registry.quotas, name)
        await self._registry.spread(version)
        return is_new

    async def delete(self, name: str, *, publisher: str) -> int:
        """Forget a topic; `publisher` is empty for root. Returns how many subscriptions ended."""
        version, ended = await registry.delete_topic(self._partitions.home, name, publisher=publisher)
        if version == _NOBODYS:
            raise NotFound(f"no topic named {name!r}")
        if version == _ANOTHERS:
            raise await self._owned(name)
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

    async def show(self, name: str) -> TopicView:
        """A topic, with who owns it, who may publish on it, and how many events it had."""
        await self._registry.refresh()
        for record in await registry.topics_named(self._partitions, [name]):
            return self._view(record)
        raise NotFound(f"no topic named {name[:80]!r}")

    async def list_(self) -> AsyncIterator[TopicView]:
        """All topics by name; others have their turn in between."""
        await self._registry.refresh()
        async for record in registry.topics(self._partitions):
            yield self._view(record)

    def _view(self, record: TopicRecord) -> TopicView:
        tokens, owner = self._registry.snapshot.tokens, record.rights.owner
        return TopicView(
            name=record.name,
            publisher=tokens[owner].name if owner in tokens else owner.rpartition("-")[0],
            publisher_id=owner,
            events=record.events,
            description=record.description,
            publishers=sorted(record.rights.publishers & tokens.keys()),
        )

    async def _owned(self, name: str) -> TopicOwned:
        [rights] = await registry.topic_rights(self._partitions.home, [name])
        return TopicOwned(name, rights.owner if rights else "one that has left")
