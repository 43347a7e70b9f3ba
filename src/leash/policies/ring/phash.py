"""erlang:phash2/1, one term at a time.

Every term is folded into one 32-bit hash, in order: a compound adds its size, then its parts; a leaf adds
itself with a constant for its kind. The mixing is Bob Jenkins' lookup2. Python values stand for Erlang terms:
bytes (or str, as UTF-8) is a binary, int, float, tuple and list are themselves, bool and None are the atoms
true, false and undefined, and any other atom is an `Atom`.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Iterable

from leash.errors import ConfigError

WORD = 0xFFFFFFFF
RANGE = (1 << 27) - 1
"""phash2/1 returns 27 bits."""

GOLDEN = 0x9E3779B9
"""lookup2's arbitrary constant; n times it, mod 2^32, marks the n-th kind of term."""

BINARY = 13 * GOLDEN & WORD
_NIL, _ATOM, _BYTES, _TUPLE, _NEGATIVE, _POSITIVE, _FLOAT = (
    n * GOLDEN & WORD for n in (2, 3, 4, 9, 10, 11, 12)
)
_NIL_ALONE = 3468870702
_NIL_TAG = 2
_DOUBLE = struct.Struct(">d")
_HALVES = struct.Struct(">II")
_BLOCK = struct.Struct("<III")


class Atom(str):
    """An Erlang atom."""

    __slots__ = ()


UNDEFINED = Atom("undefined")


def phash2(term: object) -> int:
    """The hash that the broker computes for a term.

    >>> phash2(b"hello")
    47480723
    """
    return fold(0, term) & RANGE


def fold(seed: int, term: object) -> int:
    """The 32-bit hash after `term`; `seed` is the hash of everything before it (0: nothing)."""
    if isinstance(term, Atom) or term is None or isinstance(term, bool):
        value = _atom(_name(term))
        return _mix(_ATOM + value, _ATOM, seed)[2] if seed else value
    if isinstance(term, str | bytes):
        return lookup2(binary(term), BINARY + seed & WORD)
    if isinstance(term, int):
        return _integer(seed, term)
    if isinstance(term, float):
        return _float(seed, term)
    if isinstance(term, tuple):
        return fold_tuple(seed, len(term), term)
    if isinstance(term, list):
        return _list(seed, term)
    raise ConfigError("term", term, "bytes, str, int, float, bool, None, Atom, or tuples and lists of those")


def fold_tuple(seed: int, size: int, parts: Iterable[object]) -> int:
    """Like `fold`, for the first parts of a tuple of `size`: the rest can be folded later."""
    seed = _mix(_TUPLE + size, _TUPLE, seed)[2]
    for part in parts:
        seed = fold(seed, part)
    return seed


def binary(text: str | bytes) -> bytes:
    """Text as UTF-8; escaped bytes become those bytes again."""
    if isinstance(text, bytes):
        return text
    try:
        return text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError as error:
        raise ConfigError("key", text, "text that UTF-8 can carry") from error


def lookup2(data: bytes, c: int) -> int:
    """Jenkins' hash of a block of bytes, started with c."""
    if not data:
        return c
    a = b = GOLDEN
    whole = len(data) - len(data) % 12
    for x, y, z in _BLOCK.iter_unpack(data[:whole]):
        a, b, c = _mix(a + x, b + y, c + z)
    # The last block leaves the low byte of c to the length.
    tail = data[whole:].ljust(11, b"\0")
    x, y, z = _BLOCK.unpack(tail[:8] + b"\0" + tail[8:])
    return _mix(a + x, b + y, c + z + len(data))[2]


def _mix(a: int, b: int, c: int) -> tuple[int, int, int]:
    a = (a - b - c ^ (c & WORD) >> 13) & WORD
    b = (b - c - a ^ a << 8) & WORD
    c = (c - a - b ^ b >> 13) & WORD
    a = (a - b - c ^ c >> 12) & WORD
    b = (b - c - a ^ a << 16) & WORD
    c = (c - a - b ^ b >> 5) & WORD
    a = (a - b - c ^ c >> 3) & WORD
    b = (b - c - a ^ a << 10) & WORD
    c = (c - a - b ^ b >> 15) & WORD
    return a, b, c


def _name(term: str | bool | None) -> str:
    if term is None:
        return "undefined"
    return term if isinstance(term, str) else str(term).lower()


def _atom(name: str) -> int:
    """The atom table's hash (P. J. Weinberger's), which works on Latin-1 characters if possible."""
    h = 0
    for char in name:
        for byte in (ord(char),) if ord(char) < 256 else char.encode():
            h = (h << 4) + byte
            top = h & 0xF0000000
            h ^= top | top >> 24
    return h


def _integer(seed: int, value: int) -> int:
    if -(1 << 27) <= value < 1 << 27:
        if value < 0:  # a small negative is mixed twice
            seed = _mix(GOLDEN - value, GOLDEN, seed)[2]
        return _mix(GOLDEN + value, GOLDEN, seed)[2]
    mark, rest = (_NEGATIVE, -value) if value < 0 else (_POSITIVE, value)
    while rest:
        seed = _mix(mark + (rest & WORD), mark + (rest >> 32 & WORD), seed)[2]
        rest >>= 64
    return seed


def _float(seed: int, value: float) -> int:
    if not math.isfinite(value):
        raise ConfigError("term", value, "a finite float: Erlang has no other")
    high, low = _HALVES.unpack(_DOUBLE.pack(value or 0.0))  # -0.0 hashes as 0.0
    return _mix(_FLOAT + high, _FLOAT + low, seed)[2]


def _list(seed: int, items: list[object]) -> int:
    """Runs of bytes are packed by four, as Erlang strings are; the empty tail counts as a term."""
    run: list[int] = []
    for item in items:
        if isinstance(item, int) and not isinstance(item, bool) and 0 <= item < 256:
            run.append(item)
        else:
            seed = fold(_bytes(seed, run), item)
            run.clear()
    seed = _bytes(seed, run)
    return _mix(_NIL + _NIL_TAG, _NIL, seed)[2] if seed else _NIL_ALONE


def _bytes(seed: int, run: list[int]) -> int:
    for i in range(0, len(run), 4):
        seed = _mix(_BYTES + int.from_bytes(run[i : i + 4], "big"), _BYTES, seed)[2]
    return seed
