"""CRC-32C, which snappy's framing wants, by numpy: a block of 64 KB in one go instead of byte by byte.

A CRC is linear: that of a block is the XOR of what each byte contributes at its place. The block is cut into
rows of 256 bytes. One table has what a byte contributes to its row, by its place there; another what each
byte of a row's CRC contributes to the block, by the number of rows that follow.
"""

from __future__ import annotations

import functools

import numpy as np
from numpy.typing import NDArray

_POLYNOMIAL = 0x82F63B78
_ROW = 256
_ROWS = 256
BLOCK = _ROW * _ROWS
"""Bytes that can be done in one go."""

Words = NDArray[np.uint32]


def masked_crc32c(data: bytes | memoryview) -> int:
    """Of at most BLOCK bytes, and turned as the framing wants it."""
    crc = crc32c(data)
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


def crc32c(data: bytes | memoryview) -> int:
    """Of at most BLOCK bytes."""
    in_row, in_block = _tables()
    raw = np.frombuffer(data, np.uint8)
    if len(raw) < 4:
        return _short(raw.tolist(), in_row[-1].tolist())
    rows = -(-len(raw) // _ROW)
    block = np.zeros(rows * _ROW, np.uint8)  # zeros before the data do not count
    block[len(block) - len(raw) :] = raw
    block[len(block) - len(raw) :][:4] ^= 0xFF  # what the register holds at first
    places = block.reshape(rows, _ROW).astype(np.intp) + np.arange(0, 256 * _ROW, 256)
    each = np.bitwise_xor.reduce(in_row.ravel().take(places), axis=1)
    parts = in_block[
        np.arange(rows)[::-1, None], np.arange(4), each.astype("<u4").view(np.uint8).reshape(rows, 4)
    ]
    return int(np.bitwise_xor.reduce(parts, axis=None)) ^ 0xFFFFFFFF


def _short(data: list[int], table: list[int]) -> int:
    crc = 0xFFFFFFFF
    for byte in data:
        crc = crc >> 8 ^ table[(crc ^ byte) & 0xFF]
    return crc ^ 0xFFFFFFFF


@functools.cache
def _tables() -> tuple[Words, Words]:
    table = np.arange(256, dtype=np.uint32)
    for _ in range(8):
        table = np.where(table & 1, table >> 1 ^ np.uint32(_POLYNOMIAL), table >> 1)
    in_row = np.empty((_ROW, 256), np.uint32)
    in_row[-1] = table
    for place in range(_ROW - 1, 0, -1):
        in_row[place - 1] = _followed(in_row[place], table)
    in_block = np.empty((_ROWS, 4, 256), np.uint32)
    in_block[0] = np.arange(256, dtype=np.uint32) << (8 * np.arange(4, dtype=np.uint32))[:, None]
    over_row = in_block[0]
    for _ in range(_ROW):
        over_row = _followed(over_row, table)
    for after in range(1, _ROWS):
        raw = in_block[after - 1].astype("<u4").view(np.uint8).reshape(4, 256, 4)
        in_block[after] = np.bitwise_xor.reduce(over_row[np.arange(4), raw], axis=2)
    return in_row, in_block


def _followed(words: Words, table: Words) -> Words:
    """What a CRC becomes when a byte of zero follows."""
    shifted: Words = words >> 8 ^ table[words & 0xFF]
    return shifted
