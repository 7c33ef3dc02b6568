"""An index of filters: which of many receivers want an event, without a look at each filter.

A filter that has literals alone for a field is looked up by the event's value there, its *anchor*. What is found so,
and filters without an anchor, are checked in full; how much that may be is bounded for each client (model/quota.py).
A kind of events settles once what it can: receivers that want none of it, or all of it, cost its events nothing.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from doubledecker.model.event import EventKind
from doubledecker.model.event_filter import EventFacts, EventFilter

# A receiver's place in the list that is indexed, and its filter.
_Entry = tuple[int, EventFilter]
_ByPath = dict[tuple[str, ...], dict[object, list[_Entry]]]

# Fields of which one kind of events has one value.
_OF_KIND = frozenset({("tenant",), ("type",), ("topic",)})


@dataclass(frozen=True, eq=False, slots=True)
class KindFilters:
    """Who wants an event of one kind, by place: those without a filter, those that want `all`, others as it fits."""

    unfiltered: Sequence[int]
    all: tuple[int, ...]
    anchored: _ByPath
    checked: tuple[_Entry, ...]

    def select(self, facts: EventFacts) -> tuple[int, ...]:
        """The places of those with a filter that want an event, in order."""
        found = {place for place, event_filter in self.checked if event_filter.fits(facts)}
        for path, by_value in self.anchored.items():
            for value in facts.values(path):
                for place, event_filter in by_value.get(value, ()):
                    if event_filter.is_anchor_alone or event_filter.fits(facts):
                        found.add(place)
        return tuple(sorted(found.union(self.all))) if found else self.all


class FilterIndex:
    """The filters of receivers, by their places in a list; those without a filter want every event."""

    def __init__(self, filters: Iterable[EventFilter | None]) -> None:
        self._unfiltered: list[int] = []
        self._by_kind: _ByPath = {}
        self._by_event: _ByPath = {}
        self._checked: list[_Entry] = []
        for place, event_filter in enumerate(filters):
            self._add(place, event_filter)

    @property
    def is_empty(self) -> bool:
        """Whether nobody has a filter."""
        return not (self._by_kind or self._by_event or self._checked)

    def of(self, kind: EventKind) -> KindFilters:
        """What is left to decide for events of a kind."""
        facts = EventFacts(kind, "", b"{}")
        fitted, checked = set[int](), []
        for place, event_filter in (*self._checked, *self._found(facts)):
            fits = event_filter.fits_kind(kind)
            if fits is None:
                checked.append((place, event_filter))
            elif fits:
                fitted.add(place)
        return KindFilters(self._unfiltered, tuple(sorted(fitted)), self._by_event, tuple(checked))

    def _add(self, place: int, event_filter: EventFilter | None) -> None:
        if event_filter is None:
            self._unfiltered.append(place)
        elif event_filter.anchor is None:
            self._checked.append((place, event_filter))
        else:
            path = event_filter.anchor.path
            by_value = (self._by_kind if path in _OF_KIND else self._by_event).setdefault(path, {})
            for value in event_filter.anchor.literals:
                by_value.setdefault(value, []).append((place, event_filter))

    def _found(self, facts: EventFacts) -> Iterator[_Entry]:
        """Those whose anchor is of the kind's, and fits it."""
        for path, by_value in self._by_kind.items():
            for value in facts.values(path):
                yield from by_value.get(value, ())
