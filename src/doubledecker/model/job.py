"""Jobs: units of the worker's work, as they are stored: MessagePack of a name and its arguments."""

from dataclasses import dataclass

import msgspec

MAIN = "main"
# Batches whose subscriber failed last time wait here, apart from first tries.
RETRY = "retry"
AUX = "aux"


@dataclass(frozen=True)
class Job:
    """What to do, and on what; two jobs with the same name and arguments are the same job.

    The job `batch` has two: the batch's UID and its subscriber's token id. The publish script makes it.
    """

    name: str
    args: tuple[str, ...] = ()

    def encode(self) -> bytes:
        return msgspec.msgpack.encode([self.name, self.args])

    @classmethod
    def decode(cls, packed: bytes) -> "Job":
        name, args = msgspec.msgpack.decode(packed, type=tuple[str, tuple[str, ...]])
        return cls(name, args)
