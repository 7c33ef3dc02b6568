"""The routes of topics, but for publishing."""

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from doubledecker.bus.registry import LiveRegistry
from doubledecker.bus.snapshots import SnapshotCache
from doubledecker.errors import TopicReserved
from doubledecker.model import topic as topics
from doubledecker.model.event import check_topic
from doubledecker.model.reserved import is_reserved
from doubledecker.model.scopes import Scopes
from doubledecker.model.token import Caller
from doubledecker.model.topic import TopicView
from doubledecker.store import registry
from doubledecker.store.partitions import Partitions
from doubledecker.web import auditing, gift, shapes
from doubledecker.web import body as bodies
from doubledecker.web.body import BodyLimits
from doubledecker.web.paging import EncodedRows


class TopicRoutes:
    """Lists topics for everyone, and changes them for their owners and root."""

    def __init__(self, partitions: Partitions, registry: LiveRegistry, limits: BodyLimits) -> None:
        self._partitions = partitions
        self._registry = registry
        self._limits = limits
        self._listed = SnapshotCache(self._look_at_all)

    async def list_(self, request: Request, caller: Caller) -> Response:
        """All topics that the token may see, or a page of them when `limit` is given."""
        known = await self._listed.get(rows=await registry.count_topics(self._partitions.home))
        if caller.scopes.limits_events:
            known = _within(caller.scopes, known)
        if caller.portal is not None:
            known = self._published_by(caller.id, known)
        return known.answer(request.query_params)

    def _published_by(self, client: str, known: EncodedRows) -> EncodedRows:
        """The topics on which a client may publish, without what its customers need not know: who else may."""
        found: list[TopicView] = []
        for row in map(_ROW.decode, known.rows):
            if client == row.publisher_id or client in row.publishers:
                name = self._registry.snapshot.tokens[client].name
                found.append(msgspec.structs.replace(row, publisher=name, publisher_id=client, publishers=[]))
        return EncodedRows([row.name for row in found], list(map(msgspec.json.encode, found)))

    async def _look_at_all(self) -> EncodedRows:
        names: list[str] = []
        rows: list[bytes] = []
        async for topic in self._registry.topics.list_():
            names.append(topic.name)
            rows.append(msgspec.json.encode(topic))
        return EncodedRows(names, rows)

    async def show(self, request: Request, caller: Caller) -> Response:
        """A topic: whose it is, who may publish on it, and how many events it had."""
        name = request.path_params["name"]
        caller.scopes.check_topics([name], to="see")
        return shapes.json(_seen(caller.scopes, await self._registry.topics.show(name)))

    async def put(self, request: Request, caller: Caller) -> Response:
        """Say who may publish on a topic and what it is for, as its owner or an admin; make it, if nobody owns it."""
        name = request.path_params["name"]
        asked = topics.parse(await self._body(request))
        check_topic(name)
        caller.scopes.check_topics([name], to="manage")
        is_new = await self._registry.topics.put(name, asked, caller=caller)
        shown = _seen(caller.scopes, await self._registry.topics.show(name))
        return shapes.json(shown, status=201 if is_new else 200)

    async def delete(self, request: Request, caller: Caller) -> Response:
        """Forget a topic, as its owner or root; the subscriptions to it end, and its name is free.

        How many ended is in a header: the original's clients want no body.
        """
        publisher, name = "" if caller.is_admin else caller.id, request.path_params["name"]
        caller.scopes.check_topics([name], to="delete")
        ended = await self._registry.topics.delete(name, publisher=publisher)
        auditing.learn(request, count=ended)
        return Response(status_code=204, headers={"Ended-Subscriptions": str(ended)})

    async def give(self, request: Request, _caller: Caller) -> Response:
        """Make another client the owner of a topic, as an admin; its subscriptions and its count stay.

        No client itself: it could fill up what another may own.
        """
        name, to = request.path_params["name"], gift.new_owner(await self._body(request))
        if is_reserved(name):
            raise TopicReserved(name)
        await self._registry.topics.give(name, to=to)
        auditing.learn(request, detail=f"to {to}")
        return Response(status_code=204)

    async def _body(self, request: Request) -> bytes:
        return await bodies.read(request.scope, request.receive, self._limits)


def _within(scopes: Scopes, known: EncodedRows) -> EncodedRows:
    """The topics that a token is limited to."""
    rows = [(name, row) for name, row in zip(known.names, known.rows, strict=True) if scopes.has_topic(name)]
    if scopes.tenants is not None:
        rows = [(name, msgspec.json.encode(_seen(scopes, _ROW.decode(row)))) for name, row in rows]
    return EncodedRows([name for name, _ in rows], [row for _, row in rows])


def _seen(scopes: Scopes, topic: TopicView) -> TopicView:
    """A topic as a token may see it: how many events it had says something of all its tenants."""
    return topic if scopes.tenants is None else msgspec.structs.replace(topic, events=None)


_ROW = msgspec.json.Decoder(TopicView)
