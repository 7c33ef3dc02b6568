"""Pages of attempts and of the audit trail, newest first: recent rows from Redis, older ones from the lake."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from doubledecker.model.attempt import AttemptPlace


class Placed(Protocol):
    """A row that knows its place among all."""

    @property
    def place(self) -> AttemptPlace: ...


R = TypeVar("R", bound=Placed)


@dataclass(frozen=True)
class NewestPage(Generic[R]):
    """Rows, newest first; older ones follow `before`, if it is not None. `older` says why some are not listed."""

    rows: Sequence[R]
    before: AttemptPlace | None
    older: str = ""


@dataclass(frozen=True)
class WhyNotListed:
    """Why older rows are not listed."""

    not_kept: str
    elsewhere: str
    unreadable: str


def why_not_listed(rows: str) -> WhyNotListed:
    """The reasons, in words about rows of a kind."""
    return WhyNotListed(
        not_kept=f"older {rows} are not kept: nothing archives this bus; `doubledecker pipeline run` does",
        elsewhere=(
            f"older {rows} are in the lake, which this process cannot read: set DOUBLEDECKER_LAKE to its folder for "
            "web processes too, and install doubledecker[lake]"
        ),
        unreadable=f"older {rows} are in the lake, which cannot be read just now; the log of the bus says why",
    )


def join(recent: NewestPage[R], landed: NewestPage[R], *, limit: int) -> NewestPage[R]:
    """What both have, down to the place that both have been read to; a row that is in both is listed once."""
    reached = max((each for each in (recent.before, landed.before) if each is not None), default=None)
    by_place = {each.place: each for each in (*landed.rows, *recent.rows)}
    places = sorted((each for each in by_place if reached is None or each >= reached), reverse=True)
    if len(places) > limit:
        places, reached = places[:limit], places[limit - 1]
    return NewestPage([by_place[place] for place in places], reached)
