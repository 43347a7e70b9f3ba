"""Notes that the attempts at a split leave for each other and for the driver, beside its seal."""

from __future__ import annotations

import time

from leash.spark.offsets import Plan, Split, splits_of
from leash.spark.staging import paths
from leash.spark.staging.files import Files


def note_window(files: Files, split: Split, window: int) -> None:
    """Note how many messages an attempt may return."""
    files.replace(paths.window(split.folder, split.index), str(window).encode())


def known_window(files: Files, split: Split) -> int | None:
    """How many messages an attempt at the split may have returned; None if unknown."""
    if split.window is not None:
        return split.window
    noted = files.read(paths.window(split.folder, split.index))
    return None if noted is None else int(noted)


def note_limbo(files: Files, split: Split) -> None:
    """Note that the queue counts deliveries, unlike when the split was planned: it was declared anew."""
    files.replace(paths.limbo(split.folder, split.index), b"")


def has_limbo(files: Files, split: Split) -> bool:
    """True if the split's queue counts deliveries, as far as is known."""
    return split.limbo or files.read(paths.limbo(split.folder, split.index)) is not None


def note_acked(files: Files, split: Split, left_behind: int | None) -> None:
    """Note that the broker got the ack, and how many messages may have been returned before."""
    behind = "" if left_behind is None else str(left_behind)
    files.replace(paths.acked(split.folder, split.index), behind.encode())


def left_behind(files: Files, split: Split) -> int | None:
    """How many messages of its queue may have been returned once the split is sealed; None if unknown."""
    acked = files.read(paths.acked(split.folder, split.index))
    return int(acked) if acked else known_window(files, split)


def note_done(files: Files, split: Split) -> None:
    """Note that Spark has taken the last row of this split."""
    files.replace(paths.done(split.folder, split.index), str(time.time_ns()).encode())


def done_at(files: Files, plan: Plan) -> int | None:
    """When the last of the batch's splits was done; None unless all are."""
    notes = [files.read(paths.done(split.folder, split.index)) for split in splits_of(plan)]
    times = [int(note) for note in notes if note is not None]
    return max(times) if times and len(times) == len(notes) else None
