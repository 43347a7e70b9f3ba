"""Which finished batches' rows may still come back as copies, for deduplication. Pure.

An acknowledgement is not durable at once: a broker that is killed within seconds hands the messages out
again. So a batch is remembered until one unbroken connection has outlived that time; where the connection
broke, or an ack may never have been sent, until the window ends.
"""

from __future__ import annotations

from dataclasses import replace

from .offsets import Plan, Seen
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


def spent(start: Plan, remembered: tuple[Seen, ...]) -> tuple[str, ...]:
    """Other runs that `start` read from, or that were remembered until now: nobody needs them once it
    is committed."""
    read = [path.partition("/")[0] for path in start.adopted]
    known = [batch.folder.partition("/")[0] for batch in start.seen or ()]
    needed = {start.run, *(batch.folder.partition("/")[0] for batch in remembered)}
    return tuple(name for name in dict.fromkeys([*read, *known]) if name not in needed)
