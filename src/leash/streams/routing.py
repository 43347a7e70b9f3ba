"""Which partition of a super stream a key belongs to, exactly as the Java client has it.

murmur3 of 32 bits, seed 104729, over the key's UTF-8; unsigned modulo the number of partitions, in the order
of `commands.partitions`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from leash.errors import ConfigError
from leash.streams.arrow import pa

SEED = 104729

_C1, _C2 = np.uint32(0xCC9E2D51), np.uint32(0x1B873593)

Hashes = NDArray[np.uint32]


def partition_of(keys: Any, count: int) -> NDArray[np.int64]:
    """The place of each key's partition among `count`. `keys` is a column of text, or a list."""
    if count < 1:
        raise ConfigError("partitions", count, "one at least")
    return (murmur3(keys) % np.uint32(count)).astype(np.int64)


def murmur3(keys: Any, seed: int = SEED) -> Hashes:
    """The hash of each key."""
    column = _column(keys)
    edges = np.frombuffer(column.buffers()[1], np.int64, len(column) + 1, column.offset * 8)
    data = column.buffers()[2]
    raw = np.frombuffer(data, np.uint8) if data is not None and data.size else np.empty(0, np.uint8)
    padded = np.concatenate([raw, np.zeros(4, np.uint8)])
    starts, sizes = edges[:-1], np.diff(edges)
    hashes = np.full(len(column), seed, np.uint32)
    # Shorter keys drop out as the blocks go on: those that are left stand together at the end of `order`.
    order = np.argsort(sizes, kind="stable")
    blocks = sizes[order] // 4
    for number in range(int(blocks[-1]) if len(blocks) else 0):
        live = order[np.searchsorted(blocks, number, side="right") :]
        mixed = hashes[live] ^ _scrambled(_word(padded, starts[live] + 4 * number))
        hashes[live] = _rotated(mixed, 13) * np.uint32(5) + np.uint32(0xE6546B64)
    rest = sizes % 4
    tail = _word(padded, starts + sizes - rest) & _MASK[rest]
    hashes ^= np.where(rest > 0, _scrambled(tail), np.uint32(0))
    return _finished(hashes ^ sizes.astype(np.uint32))


_MASK = np.array([0, 0xFF, 0xFFFF, 0xFFFFFF], np.uint32)


def _word(data: NDArray[np.uint8], at: NDArray[np.int64]) -> Hashes:
    word = data[at].astype(np.uint32)
    for place in (1, 2, 3):
        word |= data[at + place].astype(np.uint32) << np.uint32(8 * place)
    return word


def _rotated(word: Hashes, by: int) -> Hashes:
    return word << np.uint32(by) | word >> np.uint32(32 - by)


def _scrambled(word: Hashes) -> Hashes:
    return _rotated(word * _C1, 15) * _C2


def _finished(hashes: Hashes) -> Hashes:
    hashes = (hashes ^ hashes >> np.uint32(16)) * np.uint32(0x85EBCA6B)
    hashes = (hashes ^ hashes >> np.uint32(13)) * np.uint32(0xC2B2AE35)
    return hashes ^ hashes >> np.uint32(16)


def _column(keys: Any) -> Any:
    if isinstance(keys, pa.ChunkedArray):
        keys = keys.combine_chunks()
    elif not isinstance(keys, pa.Array):
        keys = pa.array(keys, pa.large_string() if _texts(keys) else pa.large_binary())
    if keys.null_count:
        raise ConfigError(
            "keys", f"{keys.null_count} nulls", "no nulls: a message without a key has no partition"
        )
    return keys.cast(pa.large_binary())


def _texts(keys: Sequence[Any]) -> bool:
    return len(keys) > 0 and isinstance(keys[0], str)
