"""Whole columns of keys to their hashes: Jenkins' lookup2 on numpy words.

A column is one buffer of bytes with a start and a length for each key; lists, numpy arrays and Arrow arrays
are converted to that, Arrow's without a copy. The keys are processed in step, block by block, longest first,
so that a step is a few array operations on a prefix, however mixed the lengths are.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from leash.errors import ConfigError
from leash.policies.ring.phash import BINARY, GOLDEN, RANGE, WORD, lookup2

_SLICE = 1 << 15
"""Keys processed at once."""
_LONG = 4096
"""Longer keys are hashed one by one: a single huge key would need a step for every 12 of its bytes."""

_REST = np.arange(12)
_WHOLE = np.array([WORD >> 32 - 8 * n if n else 0 for n in range(5)], np.uint32)
_FIRST, _SECOND, _THIRD = (_WHOLE[np.clip(_REST - at, 0, 4)] for at in (0, 4, 8))
"""Which bits of the last block's three words belong to the key, by the number of bytes left."""


class Column(NamedTuple):
    """Keys as bytes. `text` tells what they were: str (True), bytes (False), or some of each (None)."""

    data: NDArray[np.uint8]
    starts: NDArray[np.int64]
    lengths: NDArray[np.int64]
    missing: NDArray[np.bool_] | None
    text: bool | None


def columns(keys: Any, one_kind: bool = False) -> Iterator[Column | list[object]]:
    """The parts of a column in order: as bytes if all are bytes or text, otherwise as a list of values.

    With `one_kind`, a list that holds both bytes and text stays a list.
    """
    if type(keys).__module__.partition(".")[0] == "pyarrow":
        for chunk in getattr(keys, "chunks", [keys]):
            yield _from_arrow(chunk)
        return
    if isinstance(keys, str | bytes | bytearray | memoryview) or not hasattr(keys, "__iter__"):
        raise ConfigError("keys", keys, "a list, a numpy array or an Arrow column of keys")
    if hasattr(keys, "__array__"):
        keys = np.asarray(keys)
        if keys.ndim != 1:
            raise ConfigError("keys", keys.shape, "one dimension")
        if keys.dtype.kind == "S":
            yield _from_fixed(keys)
            return
        keys = keys.tolist()
    values = keys if isinstance(keys, list) else list(keys)
    column = from_list(values)
    yield values if column is None or (one_kind and column.text is None) else column


def hash_column(column: Column, seed: int) -> NDArray[np.uint32]:
    """phash2 of every key as a binary; `seed` is the hash of what precedes it in its term."""
    initial = BINARY + seed & WORD
    found = np.empty(len(column.starts), np.uint32)
    for low in range(0, len(found), _SLICE):
        high = low + _SLICE
        found[low:high] = _slice(column.data, column.starts[low:high], column.lengths[low:high], initial)
    return found & np.uint32(RANGE)


def from_list(keys: list[Any]) -> Column | None:
    """The column of keys that are all bytes, str or None; None if there are others."""
    parts: list[bytes] = []
    text = missing = 0
    try:
        for key in keys:
            if isinstance(key, bytes):
                parts.append(key)
            elif isinstance(key, str):
                parts.append(key.encode("utf-8", "surrogateescape"))
                text += 1
            elif key is None:
                parts.append(b"")
                missing += 1
            else:
                return None
    except UnicodeEncodeError:
        return None
    lengths = np.fromiter(map(len, parts), np.int64, len(parts))
    return Column(
        np.frombuffer(b"".join(parts), np.uint8),
        np.cumsum(lengths) - lengths,
        lengths,
        np.fromiter((key is None for key in keys), np.bool_, len(keys)) if missing else None,
        True if text == len(keys) - missing else None if text else False,
    )


def _from_fixed(keys: NDArray[np.bytes_]) -> Column:
    width = keys.dtype.itemsize
    data = np.ascontiguousarray(keys).view(np.uint8)
    starts = np.arange(len(keys), dtype=np.int64) * width
    return Column(data, starts, np.char.str_len(keys).astype(np.int64), None, False)


def _from_arrow(chunk: Any) -> Column | list[object]:
    kind = str(chunk.type)
    if kind.startswith("dictionary"):
        return _from_arrow(chunk.dictionary_decode())
    if kind in ("string_view", "binary_view") or kind.startswith("fixed_size_binary"):
        return _from_arrow(chunk.cast("large_string" if kind == "string_view" else "large_binary"))
    if kind not in ("string", "binary", "large_string", "large_binary"):
        values: list[object] = chunk.to_pylist()
        return values
    _, offsets, data = chunk.buffers()
    size = np.dtype(np.int64 if kind.startswith("large") else np.int32)
    edges = np.zeros(1, np.int64)
    if len(chunk):
        edges = np.frombuffer(offsets, size, len(chunk) + 1, chunk.offset * size.itemsize).astype(np.int64)
    raw = np.frombuffer(data, np.uint8) if data is not None and data.size else np.zeros(0, np.uint8)
    missing = np.asarray(chunk.is_null()) if chunk.null_count else None
    return Column(raw, edges[:-1], np.diff(edges), missing, kind.endswith("string"))


def _slice(
    data: NDArray[np.uint8], starts: NDArray[np.int64], lengths: NDArray[np.int64], initial: int
) -> NDArray[np.uint32]:
    long = np.flatnonzero(lengths > _LONG)
    if len(long):
        lengths = lengths.copy()
        singles = [lookup2(data[starts[i] : starts[i] + lengths[i]].tobytes(), initial) for i in long]
        lengths[long] = 0
    order = np.argsort(-(lengths // 12), kind="stable")
    found = np.empty(len(order), np.uint32)
    found[order] = _lookup2(data, starts[order], lengths[order], initial)
    if len(long):
        found[long] = singles
    return found


def _lookup2(
    data: NDArray[np.uint8], starts: NDArray[np.int64], lengths: NDArray[np.int64], initial: int
) -> NDArray[np.uint32]:
    """`phash.lookup2` for keys sorted by decreasing number of whole blocks."""
    words, base = _words(data, starts, lengths)
    at = starts - base
    whole = lengths // 12
    a, b = np.full(len(at), GOLDEN, np.uint32), np.full(len(at), GOLDEN, np.uint32)
    c, spare = np.full(len(at), initial, np.uint32), np.empty(len(at), np.uint32)
    for block in range(int(whole[0]) if len(whole) else 0):
        n = int(np.searchsorted(-whole, -block))
        head = at[:n]
        a[:n] += words[head]
        b[:n] += words[head + 4]
        c[:n] += words[head + 8]
        _mix(a[:n], b[:n], c[:n], spare[:n])
        head += 12
    rest = lengths - 12 * whole
    a += words[at] & _FIRST[rest]
    b += words[at + 4] & _SECOND[rest]
    c += (words[at + 8] & _THIRD[rest]) << np.uint32(8)
    c += lengths.astype(np.uint32)
    _mix(a, b, c, spare)
    c[lengths == 0] = initial
    return c


def _words(
    data: NDArray[np.uint8], starts: NDArray[np.int64], lengths: NDArray[np.int64]
) -> tuple[NDArray[np.uint32], int]:
    """A little-endian word at every byte of what the keys span, with room to read past the last key's end."""
    ends = starts + lengths
    low, high = (int(starts.min()), int(ends.max())) if len(starts) else (0, 0)
    room = np.zeros(high - low + 16, np.uint8)
    room[: high - low] = data[low:high]
    return np.ndarray((len(room) - 3,), "<u4", room, 0, (1,)), low


def _mix(
    a: NDArray[np.uint32], b: NDArray[np.uint32], c: NDArray[np.uint32], spare: NDArray[np.uint32]
) -> None:
    for right, left, last in ((13, 8, 13), (12, 16, 5), (3, 10, 15)):
        a -= b
        a -= c
        a ^= np.right_shift(c, np.uint32(right), out=spare)
        b -= c
        b -= a
        b ^= np.left_shift(a, np.uint32(left), out=spare)
        c -= a
        c -= b
        c ^= np.right_shift(b, np.uint32(last), out=spare)
