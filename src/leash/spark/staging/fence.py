"""The fence of a run: which batches are over, so that an attempt that outlived its batch takes nothing.

A task that cannot find the fence refuses too: then the folder is not the one that the driver uses.
"""

from __future__ import annotations

import json
from dataclasses import dataclass

from leash.errors import Fenced
from leash.spark.offsets import Split
from leash.spark.staging import paths
from leash.spark.staging.files import Files


@dataclass(frozen=True, slots=True)
class Fence:
    """Batches up to `floor` are committed. `closed`: the whole run is over, and another one took over."""

    floor: int
    closed: bool = False


def read_fence(files: Files, run: str) -> Fence | None:
    data = files.read(paths.fence(run))
    if data is None:
        return None
    table = json.loads(data)
    return Fence(table["floor"], table["closed"])


def write_fence(files: Files, run: str, fence: Fence) -> None:
    files.replace(
        paths.fence(run), json.dumps({"run": run, "floor": fence.floor, "closed": fence.closed}).encode()
    )


def raise_floor(files: Files, run: str, floor: int) -> None:
    """Raise the floor, never lower it: a replayed commit must not reopen a batch."""
    fence = read_fence(files, run)
    if fence is not None and floor > fence.floor:
        write_fence(files, run, Fence(floor, fence.closed))


def close_run(files: Files, run: str) -> None:
    """Close a run. The floor stays: it tells the finished batches from those that were never committed."""
    fence = read_fence(files, run)
    write_fence(files, run, Fence(0 if fence is None else fence.floor, closed=True))


def check_fence(files: Files, split: Split) -> None:
    """Called before anything is consumed: raises Fenced unless this split's batch is still to be read."""
    _check(files, split, split.seq)


def check_seal(files: Files, split: Split) -> None:
    """Called after a seal was made or found: raises Fenced unless it counts.

    Until the floor passes a batch, seals are only added to it, and the driver makes the missing ones before
    it plans the next batch. So a seal that exists while the floor is not above its batch is the one that the
    driver has seen, or will see, and it stays. Once the floor has passed, the batch's seals are deleted, and
    one that is made after that decides nothing: no task may read it or ack its messages.
    """
    _check(files, split, split.seq + 1)


def _check(files: Files, split: Split, over: int) -> None:
    fence = read_fence(files, split.run)
    if fence is None:
        raise Fenced(
            f"run {split.run} has no fence under stagingLocation: the folder was changed or wiped, or the "
            "executors do not share it with the driver. Nothing was consumed"
        )
    if fence.closed or fence.floor >= over:
        raise Fenced(
            f"batch {split.seq} of run {split.run} is over; this attempt is too late. Nothing was consumed"
        )
