"""The bodies of many AMQP 1.0 messages at once: the sections before them are skipped for all together.

Every round of the loop reads one section of every message that is not done. A message that is anything but
sections in a row and one data section, or one text or binary value, is taken apart by itself.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from leash.streams import amqp10
from leash.streams.entries import Cut, big_endian

_FIRST, _LAST = amqp10.HEADER, amqp10.APPLICATION_PROPERTIES  # the sections that may stand before a body
_SHORT = np.zeros(256, bool)
_SHORT[[0xA0, 0xA1, 0xA3, 0xC0, 0xC1]] = True  # binary, string, symbol, list and map with a size of one byte
_LONG = np.zeros(256, bool)
_LONG[[0xB0, 0xB1, 0xB3, 0xD0, 0xD1]] = True  # ... of four
_EMPTY = 0x45  # a list without items

Places = NDArray[np.int64]


def bodies(buffer: bytes, starts: Places, sizes: Places) -> tuple[Places, Places, dict[int, bytes]]:
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


def _piece(buffer: bytes, starts: Places, stops: Places, row: int) -> memoryview:
    return memoryview(buffer)[starts[row] : stops[row]]


def _one(buffer: bytes, starts: Places, stops: Places, row: int) -> bytes:
    try:
        return amqp10.decode(_piece(buffer, starts, stops, row)).body
    except ValueError as error:
        raise Cut(int(row), str(error)) from error
