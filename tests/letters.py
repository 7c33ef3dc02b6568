"""Dead letters for tests: made plainly, kept in Redis, and looked up by a plain model."""

from collections.abc import Sequence

from doubledecker.model import event
from doubledecker.model.dead_letter import DeadLetter, LetterFilter
from doubledecker.store import dead_letters
from doubledecker.store.partitions import Partition

RECEIVER = "ann-00000001"


def a_letter(number: int, **fields: object) -> DeadLetter:
    """A letter whose id tells its number, about an event of its topic and tenant."""
    known = {"topic": "orders", "tenant": "acme", "reason": "attempts", "status": 500, "attempts": 8, **fields}
    text = event.encode(
        event.AcceptedEvent(topic=str(known["topic"]), type="paid", t=1, id=f"e{number}", tenant=str(known["tenant"]))
    )
    made = {"id": f"0-{number:020}", "event": text, "detail": "status 500", "batch": "b" * 20, **known}
    return DeadLetter(**made)  # type: ignore[arg-type]


def means(chosen: LetterFilter, letter: DeadLetter) -> bool:
    """Whether a filter means a letter, in plain words."""
    return all(str(getattr(letter, name)) == value for name, value in chosen.values.items()) and (
        (chosen.from_ms or 0) <= letter.died_at < (chosen.to_ms or 2**53)
    )


async def keep(partition: Partition, letters: Sequence[DeadLetter], receiver: str = RECEIVER) -> None:
    """Keep any number of letters."""
    for start in range(0, len(letters), dead_letters.SETTLED_MAX):
        await dead_letters.add(partition, receiver, letters[start : start + dead_letters.SETTLED_MAX])
