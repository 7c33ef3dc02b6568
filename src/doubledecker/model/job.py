"""Jobs: units of the worker's work, as they are stored: MessagePack of a name and its arguments."""

from dataclasses import dataclass

import msgspec

# Deliveries, which have a form of their own (store/deliveries.py), and chores.
MAIN = "main"
AUX = "aux"


@dataclass(frozen=True)
class Job:
    """What to do, and on what; two jobs with the same name and arguments are the same job."""

    name: str
    args: tuple[str, ...] = ()

    def encode(self) -> bytes:
        return msgspec.msgpack.encode([self.name, self.args])

    @classmethod
    def decode(cls, packed: bytes) -> "Job":
        name, args = msgspec.msgpack.decode(packed, type=tuple[str, tuple[str, ...]])
        return cls(name, args)
