"""The finished batches whose rows may still be redelivered as copies, for deduplication. Pure.

An acknowledgement is not durable at once: a broker that is killed within seconds redelivers the messages. So
a batch is remembered until one unbroken connection has outlived that time; if the connection broke, or an ack
may never have been sent, it is remembered until the window ends.
"""

from __future__ import annotations

from dataclasses import replace

from leash.spark.offsets import Plan, Seen
from leash.spark.staging import paths
from leash.units import SECOND

DURABLE_AFTER = 60 * SECOND


def remember(
    seen: tuple[Seen, ...], new: list[Seen], now: int, unbroken_since: int, window: int, max_rows: int
) -> tuple[tuple[Seen, ...], int]:
    """What to remember from now on, oldest first, and how many rows were forgotten for lack of room."""
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


def adopted(taken: list[str], own: str, now: int) -> list[Seen]:
    """Rows in seals of an earlier run may be redelivered too: it is unknown whether their acks arrived.

    Other runs are remembered seal by seal: the rest of their batches may belong to another source.
    """
    places = [paths.folder_of(path) if paths.run_of(path) == own else path for path in taken]
    return [Seen(place, now, 0, kept=True) for place in dict.fromkeys(places)]


def spent(start: Plan, remembered: tuple[Seen, ...]) -> tuple[str, ...]:
    """Seals of other runs that `start` read, or that were remembered until now: their rows are not needed
    once it is committed."""
    kept = {batch.folder for batch in remembered}
    forgotten = [batch.folder for batch in start.seen or () if batch.folder not in kept]
    return tuple(
        path for path in dict.fromkeys([*start.adopted, *forgotten]) if paths.run_of(path) != start.run
    )
