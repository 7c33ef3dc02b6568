"""JSON arrays of events, as items that are decoded or still encoded, in pieces that each hold the event loop shortly.

msgspec decodes as a whole. An array of megabytes takes it up to a hundred milliseconds, and one of millions of tiny
items builds all of them. So a large array is cut before: where one object seems to end and the next to begin, some way
ahead, and what lies before is decoded as an array of its own. If it is none, the cut was inside an item; then the next
items are cut off one by one, by what the decoder says of the bytes behind a value. An item larger than an event can be
ends this.
"""

import contextlib
import re
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import msgspec
from msgspec import Raw

from doubledecker.errors import TooLarge
from doubledecker.model import schema
from doubledecker.model.event import Offered

# An event of a body: decoded, or still encoded.
Item = Offered | bytes | Raw

# So much is decoded at once: half a millisecond, whatever is in it.
PIECE_BYTES = 65_536
_PIECE_ITEMS = 200
_WHAT = "a JSON array"
BEGIN = re.compile(rb"[ \t\r\n]*\[")
_EMPTY = re.compile(rb"[ \t\r\n]*\[[ \t\r\n]*\]")
_BLANK = re.compile(rb"[ \t\r\n]*")
_KEY = re.compile(rb'[ \t\r\n]*\[[ \t\r\n]*\{[ \t\r\n]*("[a-z]{1,20}")')
_BEHIND = re.compile(r"trailing characters \(byte (\d+)\)")
_LIST = msgspec.json.Decoder(list[Raw])
_EVENTS = msgspec.json.Decoder(list[Offered])
_ITEM = msgspec.json.Decoder(Raw)


class Arrays:
    """Reads arrays of at most so many items, none of which has more than so many bytes."""

    def __init__(self, items_max: int, item_bytes_max: int) -> None:
        self._items_max = items_max
        self._item_bytes_max = item_bytes_max

    def pieces(self, body: bytes, *, is_raw: bool) -> Iterator[Sequence[Item]]:
        """The items, a piece at a time, none decoded if they are to be raw; raises BadRequest or TooLarge."""
        if len(body) <= PIECE_BYTES or not BEGIN.match(body) or _EMPTY.match(body):
            yield _decoded(body, is_raw=is_raw)
            return
        at: int | None = _skip(body, _skip(body, 0) + 1)
        count, between = 0, _between(body)
        while at is not None:
            items, at = _many(body, at, between, is_raw=is_raw) or self._few(body, at)
            count += len(items)
            if count > self._items_max:
                raise TooLarge(f"more than {self._items_max} events; so many are allowed in one request")
            yield items

    def _few(self, body: bytes, at: int) -> "_Cut":
        """The next items, one by one."""
        items, view, first = list[Item](), memoryview(body), at
        while len(items) < _PIECE_ITEMS and at - first < PIECE_BYTES:
            end = self._end(view, at)
            items.append(body[at:end])
            if body[end : end + 1] == b"]":
                schema.decode(_LIST, b"[" + body[end : end + 1 + PIECE_BYTES], what=_WHAT)
                return _Cut(items, None)
            at = _skip(body, end + 1)
        return _Cut(items, at)

    def _end(self, view: memoryview, at: int) -> int:
        """Where the item that begins here ends; a comma or a bracket follows."""
        text = view[at : at + self._item_bytes_max]
        try:
            _ITEM.decode(text)
        except (msgspec.DecodeError, RecursionError) as error:
            behind = _BEHIND.search(str(error))
            # It counts from one.
            end = at + int(behind[1]) - 1 if behind else at
            if behind and bytes(view[end : end + 1]) in {b",", b"]"}:
                return end
            is_cut = schema.is_truncated(error, text)
        else:
            is_cut = True
        if is_cut and at + len(text) < len(view):
            raise TooLarge(
                f"the event that begins at byte {at} has more than {self._item_bytes_max} bytes, of which its data may "
                "have less than half; nothing was published"
            )
        # It is not closed, or it is no JSON: this says what is wrong.
        schema.decode(_LIST, b"[" + bytes(text), what=f"{_WHAT}, from byte {at}")
        raise AssertionError


class _Cut(NamedTuple):
    """Items, and where those behind them begin, if there are any."""

    items: Sequence[Item]
    following: int | None


def _between(body: bytes) -> re.Pattern[bytes]:
    """What there is between two events: nearly always each begins with the key that the first begins with."""
    found = _KEY.match(body)
    return re.compile(rb"\}[ \t\r\n]*,[ \t\r\n]*(?=\{[ \t\r\n]*%b)" % (found[1] if found else b""))


def _many(body: bytes, at: int, between: re.Pattern[bytes], *, is_raw: bool) -> _Cut | None:
    """What lies before the next place that looks like the end of an item; None when it is none."""
    end, following = len(body), None
    if body[at : at + 1] == b"]":
        return None  # behind a comma
    if len(body) - at > PIECE_BYTES:
        found = between.search(body, at + PIECE_BYTES, at + 2 * PIECE_BYTES)
        if found is None:
            return None
        end, following = found.start() + 1, found.end()
    text = b"[" + body[at:end] + (b"" if following is None else b"]")
    try:
        return _Cut(_tried(text, is_raw=is_raw), following)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
        return None


def _decoded(body: bytes, *, is_raw: bool) -> Sequence[Item]:
    with contextlib.suppress(msgspec.DecodeError, RecursionError, UnicodeDecodeError):
        return _tried(body, is_raw=is_raw)
    return schema.decode(_LIST, body, what=_WHAT)


def _tried(body: bytes, *, is_raw: bool) -> Sequence[Item]:
    """The items; where one is no event all are left encoded."""
    if not is_raw:
        with contextlib.suppress(msgspec.ValidationError):
            return _EVENTS.decode(body)
    return _LIST.decode(body)


def _skip(body: bytes, at: int) -> int:
    """Where the next token begins."""
    found = _BLANK.match(body, at)
    return found.end() if found else at
