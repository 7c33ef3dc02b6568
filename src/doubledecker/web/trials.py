"""Test events: sent to a receiver at once, by the code of any attempt, and what it answers is shown.

A test leaves nothing behind: it is in no journal and no counter, is not tried again, and says nothing of the receiver's
health; one that is paused, failing or disabled can be tested too. Web sends it itself, so that it needs no worker and
waits for nothing. A client that tests a receiver that hangs holds a request of its own until the attempt times out;
how many may do so at a time is bounded, and so is how often.
"""

import contextlib
from collections import Counter
from collections.abc import AsyncIterator
from typing import Annotated

import msgspec
from msgspec import Meta

from doubledecker import clock, log
from doubledecker.delivery import formats
from doubledecker.delivery.attempt import Dialer
from doubledecker.delivery.http import ANSWER_BYTES_KEPT
from doubledecker.errors import OutOfDescriptors, Overloaded, TooManyAtOnce
from doubledecker.model import dead_letter, event, uid
from doubledecker.model.event import AcceptedEvent
from doubledecker.model.outcome import OutcomeKind
from doubledecker.model.reserved import TEST
from doubledecker.model.schema import Count, Shape, one_of
from doubledecker.model.subscriber import Subscriber
from doubledecker.model.token import Caller
from doubledecker.store.partitions import Partitions
from doubledecker.web.pace import ClientPace

# Under way in a process: of one client, and of all together.
CLIENT_TRIALS_MAX = 4
TRIALS_MAX = 64
# After so many at once a client may begin one more every other second, in all processes together.
MINUTE_TRIALS_MAX = 30

_log = log.get("web")


class TrialAnswer(Shape):
    """The outcome of a test event."""

    receiver: Annotated[str, Meta(description="A subscriber's id, or `@` and a queue's name")]
    event: Annotated[str, Meta(description="The id of the test event, and of the message if it was signed")]
    signed: bool
    outcome: Annotated[str, one_of([kind.value for kind in OutcomeKind])]
    status: Annotated[Count, Meta(description="Of the answer, if there was one")] | None
    took_ms: Count
    detail: Annotated[str, Meta(description="What went wrong; empty when it was delivered")]
    retry_after_ms: Annotated[Count, Meta(description="The patience that it asked for, if it did")] | None
    headers: Annotated[list[str], Meta(description="The first headers of the answer")]
    answer: Annotated[
        str,
        Meta(description=f"Its first {ANSWER_BYTES_KEPT} bytes; what is no UTF-8 is shown by escapes"),
    ]


class Trials:
    """Sends test events, for one web process."""

    def __init__(self, partitions: Partitions, dialer: Dialer) -> None:
        self._dialer = dialer
        self._under_way: Counter[str] = Counter()
        self._pace = ClientPace(partitions, "tests", "begun", "test events")

    async def send(self, receiver: Subscriber, *, caller: Caller) -> TrialAnswer:
        """Send one event now; raises TooManyAtOnce, TooOften or Overloaded when there is no room for that."""
        now_ms = clock.now_ms()
        made = AcceptedEvent(
            topic=TEST,
            type="test",
            t=now_ms,
            data=msgspec.Raw(msgspec.json.encode({"receiver": receiver.token})),
            id=uid.event_id(now_ms),
        )
        line = event.encode(made)
        request = await formats.formatted(receiver.format, b"[%b]" % line, [line], have_urls=False)
        async with self._place(caller):
            try:
                outcome = await self._dialer.attempt(receiver, request, message=made.id, kept_bytes=ANSWER_BYTES_KEPT)
            except OutOfDescriptors as error:
                raise Overloaded("the process may open no further connection now") from error
        _log.info(
            "subscriber.tested",
            subscriber=receiver.token,
            client=caller.id,
            outcome=outcome.kind.value,
            status=outcome.status,
            took_ms=outcome.took_ms,
        )
        return TrialAnswer(
            receiver=receiver.token,
            event=made.id,
            signed=receiver.signing is not None,
            outcome=outcome.kind.value,
            status=outcome.status,
            took_ms=outcome.took_ms,
            detail=outcome.detail,
            retry_after_ms=outcome.retry_after_ms,
            headers=list(outcome.answer_headers),
            answer=dead_letter.text(outcome.answer),
        )

    @contextlib.asynccontextmanager
    async def _place(self, caller: Caller) -> AsyncIterator[None]:
        """A place among the tests under way, for a client that may begin one now."""
        client = caller.share
        if self._under_way[client] >= CLIENT_TRIALS_MAX:
            raise TooManyAtOnce(f"{CLIENT_TRIALS_MAX} test events of this client are under way; wait for one to end")
        if self._under_way.total() >= TRIALS_MAX:
            raise Overloaded(f"{TRIALS_MAX} test events are under way; try again soon")
        self._under_way[client] += 1
        try:
            await self._pace.pay_by(caller, minute_max=MINUTE_TRIALS_MAX)
            yield
        finally:
            self._under_way[client] -= 1
            if not self._under_way[client]:
                del self._under_way[client]
