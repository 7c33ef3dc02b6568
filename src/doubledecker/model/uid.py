"""Identifiers: random UIDs for batches and slots, time-ordered UUIDs for events."""

import base64
import hashlib
import os
import random
import re
import uuid
from collections.abc import Iterator
from itertools import count, islice

_UID_BYTES = 15  # 120 bits
_BLOCK_DIGITS = 3
_BLOCK = 16**_BLOCK_DIGITS
_ENDINGS = [f"{number:0{_BLOCK_DIGITS}x}" for number in range(_BLOCK)]
# The year 9999, beyond which calendars do not go; a UUIDv7 can hold a thousand years more.
_MADE_AT_MAX = 253_370_764_800_000
_UUID7 = re.compile(r"([0-9a-f]{8})-([0-9a-f]{4})-7[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}", re.IGNORECASE)
# Seeded by the system for each process: event ids have to differ, not to be secret, and this is ten times faster.
_chance = random.Random()  # noqa: S311


def uid() -> str:
    """20 characters of URL-safe Base64: a 120-bit random number."""
    return uids(1)


def uids(count: int) -> str:
    """Many UIDs in one string, each 20 characters, for a script to cut from."""
    return base64.urlsafe_b64encode(os.urandom(_UID_BYTES * count)).decode()


def repeatable_uid(*words: str) -> str:
    """Like a UID, and it depends on nothing but the words, none of which may hold a blank."""
    digest = hashlib.blake2b(" ".join(words).encode(), digest_size=_UID_BYTES).digest()
    return base64.urlsafe_b64encode(digest).decode()


def event_id(now_ms: int) -> str:
    """A UUIDv7: sorts by time, and needs no coordination."""
    tail = _chance.getrandbits(74)
    parts = (now_ms >> 16, now_ms & 0xFFFF, tail >> 62, 0x8000 | ((tail >> 48) & 0x3FFF), tail & 0xFFFF_FFFF_FFFF)
    return "%08x-%04x-7%03x-%04x-%012x" % parts  # noqa: UP031 - an f-string takes half as long again


def event_ids(now_ms: int, count: int) -> list[str]:
    """Many UUIDv7 for events of one request, in ascending order: they share 62 random bits and differ in a counter."""
    heads = sorted(event_id(now_ms)[:-_BLOCK_DIGITS] for _ in range(0, count, _BLOCK))
    return list(islice((head + ending for head in heads for ending in _ENDINGS), count))


def made_at(id_: str) -> int | None:
    """When an event's id was made, in milliseconds since 1970; None for one that is no UUIDv7, or of no real time."""
    found = _UUID7.fullmatch(id_)
    at = int(found[1] + found[2], 16) if found else _MADE_AT_MAX
    return at if at < _MADE_AT_MAX else None


def repeatable_event_id(*parts: str) -> str:
    """A UUIDv8 that depends on nothing but its parts: a repeated request names the same event."""
    digest = bytearray(hashlib.sha256("\0".join(parts).encode()).digest()[:16])
    digest[6] = 0x80 | (digest[6] & 0x0F)
    digest[8] = 0x80 | (digest[8] & 0x3F)
    return str(uuid.UUID(bytes=bytes(digest)))


def repeatable_event_ids(*parts: str, first: int) -> Iterator[str]:
    """The ids of rows numbered from `first` on, each depending on nothing but the parts and its number.

    Rows in a row share a digest and differ in the last digits: making a digest for each would cost more than the rest.
    """
    for block in count(first // _BLOCK):
        head = repeatable_event_id(*parts, str(block))[:-_BLOCK_DIGITS]
        begin = first % _BLOCK if block == first // _BLOCK else 0
        yield from map(head.__add__, _ENDINGS[begin:])
