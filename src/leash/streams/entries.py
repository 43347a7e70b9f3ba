"""Where messages begin in the joined data of chunks: each is four bytes of length and then itself.

Three ways, the first that fits: entries of one length by arithmetic; many small chunks in lockstep, the k-th
entry of all of them at once; else one loop over the lengths.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

_MANY = 128  # entries from which on a chunk is looked at for one length
_CROWD = 48  # chunks whose k-th entries are worth a step together

Places = tuple[NDArray[np.int64], NDArray[np.int64]]


class Cut(Exception):
    """The data of one chunk, or one message, end too early or too late: which, and how."""

    def __init__(self, chunk: int, text: str) -> None:
        super().__init__(text)
        self.chunk = chunk
        self.text = text


def entry_starts(buffer: bytes, lengths: Sequence[int], counts: Sequence[int]) -> Places:
    """Where each message begins, and how long it is. `lengths` bytes of the buffer belong to each chunk, with
    `counts` messages. The buffer is longer than all of them by at least four bytes.
    """
    if not counts:
        none = np.empty(0, np.int64)
        return none, none
    if len(counts) >= _CROWD and sum(counts) >= _CROWD * max(counts):
        return _lockstep(buffer, np.array(lengths, np.int64), np.array(counts, np.int64))
    starts, sizes, at = [], [], 0
    for chunk, (length, count) in enumerate(zip(lengths, counts, strict=True)):
        found = _alike(buffer, at, length, count) if count >= _MANY else None
        if found is None:
            found = _loop(buffer, at, length, count, chunk)
        starts.append(found[0])
        sizes.append(found[1])
        at += length
    return (starts[0], sizes[0]) if len(starts) == 1 else (np.concatenate(starts), np.concatenate(sizes))


def _alike(buffer: bytes, at: int, length: int, count: int) -> Places | None:
    """All entries of one length, if they are."""
    stride, rest = divmod(length, count)
    if rest or stride < 4:
        return None
    heads = np.frombuffer(buffer, np.uint8, length, at).reshape(count, stride)[:, :4]
    if (heads != np.frombuffer((stride - 4).to_bytes(4, "big"), np.uint8)).any():
        return None
    return np.arange(at + 4, at + length + 4, stride, dtype=np.int64)[:count], np.full(
        count, stride - 4, np.int64
    )


def _loop(buffer: bytes, at: int, length: int, count: int, chunk: int) -> Places:
    end = at + length
    unpack = struct.Struct(">I").unpack_from
    starts = [0] * count
    for number in range(count):
        if at >= end:
            raise Cut(chunk, f"{count} messages announced, and its data end after {number}")
        starts[number] = at + 4
        at += 4 + unpack(buffer, at)[0]
    if at != end:
        raise Cut(chunk, f"its data end {'within' if at > end else 'after'} the last of {count} messages")
    begins = np.array(starts, np.int64)
    return begins, np.append(begins[1:] - 4, end) - begins


def _lockstep(buffer: bytes, lengths: NDArray[np.int64], counts: NDArray[np.int64]) -> Places:
    view = np.frombuffer(buffer, np.uint8)
    stops = np.cumsum(lengths)
    at = stops - lengths
    base = np.cumsum(counts) - counts
    starts = np.empty(int(counts.sum()), np.int64)
    sizes = np.empty(len(starts), np.int64)
    live = np.arange(len(counts))
    for number in range(int(counts.max())):
        live = live[counts[live] > number]
        here = at[live]
        over = here >= stops[live]
        if over.any():
            chunk = int(live[over.argmax()])
            raise Cut(chunk, f"{counts[chunk]} messages announced, and its data end after {number}")
        size = big_endian(view, here)
        starts[base[live] + number] = here + 4
        sizes[base[live] + number] = size
        at[live] = here + 4 + size
    wrong = at != stops
    if wrong.any():
        chunk = int(wrong.argmax())
        how = "within" if at[chunk] > stops[chunk] else "after"
        raise Cut(chunk, f"its data end {how} the last of {counts[chunk]} messages")
    return starts, sizes


def big_endian(view: NDArray[np.uint8], at: NDArray[np.int64]) -> NDArray[np.int64]:
    """Numbers of four bytes, at many places at once."""
    wide = view[at].astype(np.int64)
    for place in (1, 2, 3):
        wide = wide << 8 | view[at + place]
    return wide
