"""What becomes of a batch after an attempt, and what that says of its receiver."""

from typing import Literal

import msgspec

# delivered: it is done. refused: its content is to blame. failed: its receiver is. returned: nobody was called.
# gone: its receiver is not there any more.
What = Literal["delivered", "refused", "failed", "returned", "gone"]
FIRST = -1


class Settlement(msgspec.Struct, frozen=True, gc=False):
    """How an attempt is settled.

    `raises` says that it is evidence of its own that the receiver fails, and not the same batch once more; `probe_ms`
    is how long a failing receiver is left alone. The batch is tried again after `retry_ms`, or first of all when the
    receiver is called next (`FIRST`).
    """

    what: What
    raises: bool = False
    probe_ms: int = 0
    retry_ms: int = FIRST


DELIVERED = Settlement("delivered")
RETURNED = Settlement("returned")
GONE = Settlement("gone")
