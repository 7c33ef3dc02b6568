"""Whose filters the events of a request fit: found before the events are gathered, so that the loop is never held long.

What filters cost a publish is bounded (model/quota.py), but a request may have ten thousand events. Others have their
turn a millisecond at a time.
"""

import asyncio
import time
from collections.abc import Iterable

from doubledecker.model.event import Draft
from doubledecker.model.event_filter import EventFacts
from doubledecker.model.routing import Registry, Route, RouteFilters, Selection

# How long the loop is held before others have their turn.
_SLICE_S = 0.001


class Selections:
    """What was found of one request, by the index of its events, as of one version of the registry."""

    def __init__(self) -> None:
        self._version = -1
        self._found: dict[int, tuple[RouteFilters, Selection]] = {}

    async def find(self, publisher: str, drafts: Iterable[Draft], snapshot: Registry) -> None:
        """Check events by all filters that may concern them, unless that was done."""
        if not snapshot.is_filtering:
            return
        until = time.perf_counter() + _SLICE_S
        for draft in drafts:
            filters = snapshot.route(draft.kind, publisher).filters
            if filters is not None:
                self._selection(draft, filters, snapshot.version)
            if time.perf_counter() > until:
                await asyncio.sleep(0)
                until = time.perf_counter() + _SLICE_S

    def route(self, publisher: str, draft: Draft, snapshot: Registry) -> Route:
        """Where an event goes by the registry as it is now; it is checked again if that has changed since."""
        route = snapshot.route(draft.kind, publisher)
        if route.filters is None:
            return route
        return snapshot.narrow(route, self._selection(draft, route.filters, snapshot.version), publisher)

    def _selection(self, draft: Draft, filters: RouteFilters, version: int) -> Selection:
        if version != self._version:
            self._found.clear()
            self._version = version
        known = self._found.get(draft.index)
        # Places are those of the same receivers; what is remembered of routes is forgotten at other times too.
        if known is None or known[0].receivers is not filters.receivers or known[0].names is not filters.names:
            known = filters, filters.select(EventFacts(draft.kind, draft.key, draft.message))
            self._found[draft.index] = known
        return known[1]
