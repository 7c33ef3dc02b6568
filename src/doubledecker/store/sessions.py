"""Sessions of the dashboard, and the one-time codes that begin one; each kept by its hash, and ending by itself."""

import hashlib
from typing import cast

import msgspec

from doubledecker.store.partitions import Partition
from doubledecker.store.scripts import Encoded

# A working day: the next day begins with signing in.
SESSION_S = 43_200
# Long enough to start a browser on a slow machine.
CODE_S = 900


class SessionRecord(msgspec.Struct, frozen=True):
    """Whose a session is; `bond` proves that its token's secret is still the one that it began with."""

    token: str
    bond: str
    began_at: int
    # One that changes nothing, whatever its token may.
    only_looks: bool = False


_decode = msgspec.json.Decoder(SessionRecord).decode


async def begin(home: Partition, session: str, record: SessionRecord) -> None:
    await home.write("SET", _key(home, session), msgspec.json.encode(record), "EX", SESSION_S)


async def find(home: Partition, session: str) -> SessionRecord | None:
    kept = cast("bytes | None", await home.command("GET", _key(home, session)))
    return _decode(kept) if kept else None


async def end(home: Partition, session: str) -> None:
    await home.command("DEL", _key(home, session))


async def keep_code(home: Partition, code: str) -> None:
    """Keep a code that signs root in, once."""
    await home.write("SET", home.key(f"session:code:{_hash(code)}"), "root", "EX", CODE_S)


async def use_code(home: Partition, code: str) -> bool:
    """Whether this code was kept and not used before; it is used from now on."""
    used: list[Encoded] = ["DEL", home.key(f"session:code:{_hash(code)}")]
    return await home.command(*used) == 1


def _key(home: Partition, session: str) -> str:
    return home.key(f"session:{_hash(session)}")


def _hash(secret: str) -> str:
    return hashlib.sha256(secret.encode()).hexdigest()
