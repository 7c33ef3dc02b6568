"""The numbers that an event's `data` may have: those that every common reader of JSON can hold.

A reader decodes many events at once: in a batch, or in the answer to a pull. A number that its decoder refuses would
cost it all of them. Most decoders refuse what a double cannot hold, and Java's most used one long numbers too.
"""

import math
import re
import sys

from doubledecker.errors import BadRequest

# Jackson's bound, and with it Spark's.
LENGTH_MAX = 1_000
# Fewer digits are in the range of a double, also with an exponent of two digits.
_DIGITS_MIN = 200
_AS_ZEROS = bytes.maketrans(b"123456789E", b"000000000e")
_RUN = b"0" * _DIGITS_MIN
_EXPONENT, _SIGNED_EXPONENT = b"0e000", b"0e+000"
# What is shorter than 1e309 is in the range too.
_LONG_NUMBER = re.compile(rb"-?[0-9][0-9.eE+-]{4,}")
_SHOWN_LENGTH_MAX = 40


def check(text: bytes) -> None:
    """Raise BadRequest if a valid JSON text has a number that is not allowed; nothing is decoded."""
    if are_plain(text):
        return
    long_numbers = _LONG_NUMBER.findall(_without_strings(text))
    # In C for all of them: an event may have ten thousand.
    if max(map(len, long_numbers), default=0) > LENGTH_MAX or not all(map(math.isfinite, map(float, long_numbers))):
        _refuse(long_numbers)


def are_plain(text: bytes) -> bool:
    """Whether all numbers of a valid JSON text surely are allowed; False means that `check` has to look closer.

    It is not decoded: some valid numbers take a decoder 8 µs each.
    """
    zeros = text.translate(_AS_ZEROS)
    if _EXPONENT in zeros or _SIGNED_EXPONENT in zeros:
        return False
    return len(text) < _DIGITS_MIN or _RUN not in zeros


def _refuse(long_numbers: list[bytes]) -> None:
    """Raise BadRequest for the first number that is not allowed."""
    for number in long_numbers:
        if len(number) > LENGTH_MAX or not math.isfinite(float(number)):
            raise BadRequest(
                f"data has the number {_shown(number)}; a number must be from -{sys.float_info.max} to "
                f"{sys.float_info.max}, written in at most {LENGTH_MAX} characters: send it as a string"
            )


def _without_strings(text: bytes) -> bytes:
    """A valid JSON text with its strings left out; backslashes are in strings alone."""
    unescaped = text.replace(rb"\\", b"").replace(rb"\"", b"")
    return b'"'.join(unescaped.split(b'"')[::2])


def _shown(number: bytes) -> str:
    text = number.decode()
    if len(text) <= _SHOWN_LENGTH_MAX:
        return text
    return f"{text[:_SHOWN_LENGTH_MAX]}… ({len(text)} characters)"
