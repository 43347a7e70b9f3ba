"""Which finished batches' rows may still come back as copies, for deduplication. Pure.

An acknowledgement is not durable at once: a broker that is killed within seconds hands the messages out
again. So a batch is remembered until one unbroken connection has outlived that time; where the connection
broke, or an ack may never have been sent, until the window ends.
"""

from __future__ import annotations

from dataclasses import replace

from .offsets import Seen
from .units import SECOND

DURABLE_AFTER = 60 * SECOND


def remember(
    seen: tuple[Seen, ...], new: list[Seen], now: int, unbroken_since: int, window: int, max_rows: int
) -> tuple[tuple[Seen, ...], int]:
    """What to remember from now on, oldest first, and how many rows fell out for lack of room."""
    kept = []
    for batch in [*seen, *new]:
        if now - batch.at > window:
            continue
        if unbroken_since > batch.at:
            kept.append(replace(batch, kept=True))
        elif batch.kept or now - batch.at < DURABLE_AFTER:
            kept.append(batch)
    overflow = 0
    while sum(batch.rows for batch in kept) - max_rows > 0 and kept:
        overflow += kept.pop(0).rows
    return tuple(kept), overflow
