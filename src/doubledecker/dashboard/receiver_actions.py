"""What is done to a receiver from its page: pausing, resuming, enabling, testing, a new secret, the end."""

from collections.abc import Mapping
from dataclasses import dataclass

from doubledecker.dashboard.bus_view import BusView
from doubledecker.dashboard.forms import whole
from doubledecker.dashboard.pages import HOME, AnswerPage, Field, Question, Visit, api_of, part
from doubledecker.errors import NotFound

SUBSCRIBERS = f"{HOME}/subscribers"
_DAY_S = "86400"


@dataclass(frozen=True)
class State:
    """A change of whether a receiver is sent to."""

    path: str
    does: str
    done: str

    async def ask(self, visit: Visit) -> Mapping[str, object]:
        receiver = visit.path["receiver"]
        return {"question": Question(f"{receiver}: {self.does}", self.path.capitalize(), at(receiver))}

    async def act(self, visit: Visit, _form: Mapping[str, str]) -> str:
        receiver = visit.path["receiver"]
        await visit.send("POST", f"{api_of(receiver)}/{self.path}")
        return f"{at(receiver)}?done={self.done}"


STATES = (
    State("pause", "nothing is sent to it until it is resumed, and all that waits is kept.", "paused"),
    State("resume", "what waited is sent.", "resumed"),
    State("enable", "it answered that it is gone; it is sent to again.", "enabled"),
)


def at(receiver: str) -> str:
    """Where its page is."""
    return f"{SUBSCRIBERS}/{part(receiver)}"


class ReceiverActions:
    def __init__(self, bus: BusView) -> None:
        self._bus = bus

    async def ask_test(self, visit: Visit) -> Mapping[str, object]:
        receiver = visit.path["receiver"]
        text = f"{receiver} gets one event on the topic of tests, now. It is not tried again, and leaves no trace."
        return {"question": Question(text, "Send a test", at(receiver))}

    async def test(self, visit: Visit, _form: Mapping[str, str]) -> AnswerPage:
        """Send a test event; the page shows what is answered."""
        receiver = visit.path["receiver"]
        trial = await visit.send("POST", f"{api_of(receiver)}/test")
        return AnswerPage("trial.html", "Test", {"receiver": receiver, "trial": trial, "back": at(receiver)})

    async def ask_rotate(self, visit: Visit) -> Mapping[str, object]:
        receiver = visit.path["receiver"]
        overlap = Field(
            "overlap_s",
            "Seconds in which former secrets sign too",
            visit.query.get("overlap_s", _DAY_S),
            hint="0 ends them now",
        )
        text = f"Requests to {receiver} are signed with a new secret, which is shown once."
        return {"question": Question(text, "Rotate the secret", at(receiver), fields=[overlap])}

    async def rotate(self, visit: Visit, form: Mapping[str, str]) -> AnswerPage:
        """Replace the secret; the page shows the new one."""
        receiver = visit.path["receiver"]
        body = whole(form, "overlap_s")
        told = await visit.send("POST", f"{api_of(receiver)}/rotate-secret", body)
        return AnswerPage(
            "secret.html",
            "New secret",
            {
                "what": f"Requests to {receiver} are signed with this secret",
                "secret": told["secret"],
                "former_until": told["former_until"],
                "back": at(receiver),
            },
        )

    async def ask_end(self, visit: Visit) -> Mapping[str, object]:
        """What is lost with a subscription."""
        receiver = visit.path["receiver"]
        found = await self._bus.receiver(receiver, visit)
        if receiver.startswith("@"):
            raise NotFound(f"{receiver[:80]!r} is a queue, which its own page deletes")
        warning = f"{found.events:,} waiting events and {found.dead:,} dead letters are destroyed with it."
        return {
            "question": Question(f"{receiver} gets nothing any more.", "End the subscription", at(receiver), warning)
        }

    async def end(self, visit: Visit, _form: Mapping[str, str]) -> str:
        """End a subscription."""
        await visit.send("DELETE", f"/subscribers/{part(visit.path['receiver'])}")
        return f"{SUBSCRIBERS}?done=ended"
