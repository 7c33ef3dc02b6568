"""The settlement of a batch after an attempt, and what it means for the receiver."""

import math
from typing import Literal

import msgspec

# delivered: it is done. refused: its content is to blame. failed: its receiver is. returned: nobody was called, so its
# rate allows another call. cut: what came of a call is unknown. gone: its receiver is not there any more.
What = Literal["delivered", "refused", "failed", "returned", "cut", "gone"]
FIRST = -1
# Between the id of a batch as it was published and the path of a part of it: a 0 or 1 for each halving.
PATH = "."
# Of the largest batch; a path is longer where a batch also lost the events that were taken.
_DEPTH_MAX = 14


class Settlement(msgspec.Struct, frozen=True, gc=False):
    """How an attempt is settled.

    `raises` says that it is evidence of its own that the receiver fails, and not the same batch once more; `probe_ms`
    is how long a failing receiver is left alone. The batch is tried again after `retry_ms`, or first of all when the
    receiver is called next (`FIRST`); unless it is `split`: then its halves are, first of all. When it is `dead`, the
    reason why it is given up, it is not tried again. Of a batch that was delivered, all this is about the events that
    its receiver named as failed. So many parts of one batch in a row as `parts_max` are one piece of evidence. An
    attempt that is not `is_counted` uses up none of those that an event has: its receiver was failing anyway. For
    `pause_ms` nothing is sent to the receiver.
    """

    what: What
    raises: bool = False
    probe_ms: int = 0
    retry_ms: int = FIRST
    is_split: bool = False
    dead: str = ""
    parts_max: int = 0
    is_counted: bool = True
    pause_ms: int = 0


DELIVERED = Settlement("delivered")
# Nobody was called, so it is no attempt.
RETURNED = Settlement("returned", is_counted=False)
# A process that stops does not wait for the answer.
CUT = Settlement("cut", is_counted=False)
GONE = Settlement("gone")


def depth(batch: str) -> int:
    """How often it was halved until it was this part; 0 for a batch as it was published."""
    return len(batch.partition(PATH)[2])


def searches_max(batch: str, events: int) -> int:
    """How many parts of a batch in a row may be refused while one event is looked for: about 2·log2 of its events."""
    return 2 * math.ceil(math.log2(max(2, events << min(depth(batch), _DEPTH_MAX))))
