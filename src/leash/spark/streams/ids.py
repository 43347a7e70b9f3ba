"""Publishing ids that make a retried batch publish each row once, and that tell a retry with other rows.

An id is the batch (28 bits), the row's number from 1 on (24 bits), and a checksum of all rows up to this one
(12 bits). A stream takes rising ids only, and knows the last one of every publisher: so it drops what it has,
and a retry compares the checksum of its own row of that number. Pure.
"""

from __future__ import annotations

import zlib
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

BATCHES, ROWS, CHECKS = 1 << 28, 1 << 24, 1 << 12

Words = NDArray[np.uint64]


class Id(NamedTuple):
    """A publishing id taken apart."""

    batch: int
    row: int
    check: int


def split(number: int) -> Id | None:
    """None for 0: the stream knows no id of this publisher."""
    if not number:
        return None
    return Id(number // (ROWS * CHECKS), number // CHECKS % ROWS, number % CHECKS)


class Numbering:
    """The ids of one batch's rows, in their order, in pieces of any size."""

    def __init__(self, batch: int) -> None:
        self._batch = np.uint64(batch * ROWS * CHECKS)
        self._sum = np.uint64(0)
        self.rows = 0

    def next(self, *columns: Any) -> Words:
        """The ids of the next rows. The columns, as Arrow has them, are all that is published of them."""
        count = len(columns[0])
        numbers = np.arange(self.rows + 1, self.rows + 1 + count, dtype=np.uint64)
        mixed = numbers * _GOLDEN
        for column in columns:
            mixed = _mixed(mixed ^ _hashes(column))
        sums = np.cumsum(mixed, dtype=np.uint64) + self._sum
        if count:
            self._sum = sums[-1]
        self.rows += count
        return self._batch + numbers * np.uint64(CHECKS) + (_mixed(sums) >> np.uint64(52))


def _hashes(column: Any) -> Words:
    """A CRC of each value; a null is unlike any."""
    values = column.to_numpy(zero_copy_only=False)
    if column.null_count:
        return np.array([_NULL if value is None else _crc(value) for value in values], np.uint64)
    return np.fromiter(map(_crc, values), np.uint64, len(values))


def _crc(value: bytes | str) -> int:
    return zlib.crc32(value.encode() if isinstance(value, str) else value)


def _mixed(words: Words) -> Words:
    """The finaliser of splitmix64: every bit of a word decides about every bit of the result."""
    words = (words ^ words >> np.uint64(30)) * np.uint64(0xBF58476D1CE4E5B9)
    words = (words ^ words >> np.uint64(27)) * np.uint64(0x94D049BB133111EB)
    return words ^ words >> np.uint64(31)


_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_NULL = 1 << 32
