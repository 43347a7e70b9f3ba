"""The driver's side of a run: settle a finished batch, commit, collect, take over what an earlier life
left behind."""

from __future__ import annotations

import json
import os
import socket
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from . import fence, seals
from .files import Files
from .offsets import Plan, Split, splits_of
from .seals import Seal

_OWNER_ALIVE = 120.0  # seconds without a sign of life from another host until its run counts as abandoned


Each = Callable[..., Iterable[Any]]
"""`map`, or one that works on several at a time."""


@dataclass(frozen=True, slots=True)
class Settled:
    """What really came of a batch: one seal per split, in order, and whether the broker heard every ack."""

    splits: tuple[Split, ...]
    seals: tuple[Seal, ...]
    acked: bool

    def pairs(self) -> Iterable[tuple[Split, Seal]]:
        return zip(self.splits, self.seals, strict=True)


def begin(files: Files, run: str) -> None:
    """Make a new run's fence. Never for a run that has begun: a wiped folder must stay recognisable."""
    fence.write_fence(files, run, fence.Fence(floor=0))


def settle(files: Files, plan: Plan, each: Each = map) -> Settled:
    """Close the batch before the next is planned: what nobody read can be read by nobody from now on."""
    splits = tuple(splits_of(plan))

    def close(split: Split) -> Seal:
        found = seals.read_seal(files, split.seal_path)
        if found is None and split.adopted:
            return Seal(attempt="gone", void=True)
        return found if found is not None else seals.void_seal(files, split.seal_path)

    found = tuple(each(close, splits))
    names = set(files.names(plan.folder)) if plan.seen is not None else set()
    acked = all(
        seal.void or not seal.rows or f"{split.index:05d}.acked" in names
        for split, seal in zip(splits, found, strict=True)
    )
    return Settled(splits, found, acked)


def note_done(files: Files, split: Split) -> None:
    """Spark has taken the last row of this split."""
    files.replace(f"{split.stem}.done", str(time.time_ns()).encode())


def done_at(files: Files, plan: Plan) -> int | None:
    """When the last of the batch's splits was done, if all of them say so."""
    notes = [files.read(f"{split.stem}.done") for split in splits_of(plan)]
    times = [int(note) for note in notes if note is not None]
    return max(times) if times and len(times) == len(notes) else None


def commit(files: Files, plan: Plan) -> None:
    """The floor first: whoever is still at work on these batches must find it before its files go."""
    fence.raise_floor(files, plan.run, plan.seq)
    remembered = {seen.folder for seen in plan.seen or ()}
    for seq, folder in batches(files, plan.run):
        if seq >= plan.seq:
            continue
        if folder in remembered:
            drop_chunks(files, folder)
        else:
            files.delete_folder(folder)
    for run in plan.spent:
        files.delete_folder(run)


def drop_chunks(files: Files, folder: str) -> None:
    """Keep the seals, for deduplication; the rows themselves are committed."""
    for name in files.names(folder):
        if name.endswith(".chunk"):
            files.delete(f"{folder}/{name}")


def batches(files: Files, run: str) -> list[tuple[int, str]]:
    """The run's batch folders by sequence number."""
    found = []
    for name in files.names(run):
        number, dash, _ = name.partition("-")
        if dash and number.isdecimal():
            found.append((int(number), f"{run}/{name}"))
    return sorted(found)


def sealed_beyond(files: Files, run: str, seq: int) -> list[tuple[str, Seal]]:
    """Seals with rows in batches after `seq`: a checkpoint that was rolled back does not know them."""
    found = []
    for number, folder in batches(files, run):
        names = files.names(folder) if number > seq else []
        for path in (f"{folder}/{name}" for name in names if name.endswith(".seal")):
            seal = seals.read_seal(files, path)
            if seal is not None and not seal.void and seal.rows:
                found.append((path, seal))
    return found


# --- other runs in the same location ---


def orphans(files: Files, own: str) -> dict[str, list[tuple[str, Seal]]]:
    """Runs that nobody drives any more, with the seals that nobody committed."""
    found = {}
    for run in files.names(""):
        mark = fence.read_fence(files, run)
        if run == own or mark is None or owner_alive(files, run, time.time()):
            continue
        paths = sealed_beyond(files, run, mark.floor)
        if paths:
            found[run] = paths
    return found


def claim(files: Files, run: str) -> None:
    """Say that this process drives the run, now."""
    files.replace(
        f"{run}/owner.json",
        json.dumps(
            {"host": socket.gethostname(), "pid": os.getpid(), "born": _born(os.getpid()), "at": time.time()}
        ).encode(),
    )


def owner_alive(files: Files, run: str, now: float) -> bool:
    data = files.read(f"{run}/owner.json")
    if data is None:
        return False
    owner = json.loads(data)
    if owner["host"] == socket.gethostname():
        return bool(owner["born"] == _born(owner["pid"]))
    return bool(now - owner["at"] < _OWNER_ALIVE)


def _born(pid: int) -> str:
    """When the process started, in the kernel's words: a process id alone may have been given to
    another since."""
    try:
        with open(f"/proc/{pid}/stat", encoding="ascii", errors="replace") as file:
            return file.read().rpartition(")")[2].split()[19]
    except OSError:
        return "gone"
