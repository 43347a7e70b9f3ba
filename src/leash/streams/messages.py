"""Where messages are in the joined data of chunks, and where the body of each is: for all of them at once.

Each message is four bytes of length and then itself. Three ways to find them, the first that fits: entries of
one length by arithmetic; many small chunks in lockstep, the k-th entry of all of them at once; else one loop
over the lengths.

A message is AMQP 1.0 sections in a row. Every round of the loop in `bodies` skips one section of every
message that is not done. A message that is anything but sections and then one data section, or one text or
binary value, is decoded by itself.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from leash.streams import amqp10

_MANY = 128  # entries from which on a chunk is looked at for one length
_CROWD = 48  # chunks whose k-th entries are worth a step together

_FIRST, _LAST = amqp10.HEADER, amqp10.APPLICATION_PROPERTIES  # the sections that may stand before a body
_SHORT = np.zeros(256, bool)
_SHORT[[0xA0, 0xA1, 0xA3, 0xC0, 0xC1]] = True  # binary, string, symbol, list and map with a size of one byte
_LONG = np.zeros(256, bool)
_LONG[[0xB0, 0xB1, 0xB3, 0xD0, 0xD1]] = True  # ... of four
_EMPTY = 0x45  # a list without items

Numbers = NDArray[np.int64]
Places = tuple[Numbers, Numbers]


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


def _lockstep(buffer: bytes, lengths: Numbers, counts: Numbers) -> Places:
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


def big_endian(view: NDArray[np.uint8], at: Numbers) -> Numbers:
    """Numbers of four bytes, at many places at once."""
    wide = view[at].astype(np.int64)
    for place in (1, 2, 3):
        wide = wide << 8 | view[at + place]
    return wide


def bodies(buffer: bytes, starts: Numbers, sizes: Numbers) -> tuple[Numbers, Numbers, dict[int, bytes]]:
    """Where each message's body begins and ends, and the bodies that are not in one piece, by row.

    Raises Cut, with the row, for a message that begins as AMQP 1.0 and does not go on like it.
    """
    view = np.frombuffer(buffer, np.uint8)
    stops = starts + sizes
    begins, ends = starts.copy(), stops.copy()
    rows = np.arange(len(starts))
    at = starts
    odd: list[NDArray[np.intp]] = []
    first = True
    while len(rows):
        marked = (view[at] == 0) & (view[at + 1] == 0x53) & (at + 3 < stops[rows])
        if first:  # what does not begin as AMQP 1.0 is a body as a whole
            first = False
            if not marked.all():
                strange = rows[~marked]
                odd.append(strange[[amqp10.is_amqp(_piece(buffer, starts, stops, row)) for row in strange]])
                rows, at, marked = rows[marked], at[marked], marked[marked]
        kind, form = view[at + 2], view[at + 3]
        short = _SHORT[form]
        size = np.where(short, view[at + 4], 0).astype(np.int64)
        long = _LONG[form]
        if long.any():
            size[long] = big_endian(view, at[long] + 4)
        inner = at + 4 + short + 4 * long
        after = inner + size
        fits = marked & (short | long | (form == _EMPTY)) & (after <= stops[rows])
        body = (
            fits
            & (after == stops[rows])
            & (form >= 0xA0)
            & (form < 0xC0)
            & ((kind == amqp10.DATA) | (kind == amqp10.VALUE))
        )
        before = fits & (kind >= _FIRST) & (kind <= _LAST)
        done = rows[body]
        begins[done], ends[done] = inner[body], after[body]
        strange = ~(body | before)
        if strange.any():
            odd.append(rows[strange])
        rows, at = rows[before], after[before]
        ended = at >= stops[rows]  # a message without a body
        if ended.any():
            done = rows[ended]
            begins[done] = ends[done] = stops[done]
            rows, at = rows[~ended], at[~ended]
    return begins, ends, {int(row): _one(buffer, starts, stops, row) for each in odd for row in each}


def _piece(buffer: bytes, starts: Numbers, stops: Numbers, row: int) -> memoryview:
    return memoryview(buffer)[starts[row] : stops[row]]


def _one(buffer: bytes, starts: Numbers, stops: Numbers, row: int) -> bytes:
    try:
        return amqp10.decode(_piece(buffer, starts, stops, row)).body
    except ValueError as error:
        raise Cut(int(row), str(error)) from error
