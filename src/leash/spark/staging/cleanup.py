"""When files in the staging folder are deleted: after a batch is committed, and after a run is used up."""

from __future__ import annotations

from collections.abc import Container, Iterable

from leash.spark.offsets import Plan
from leash.spark.staging import fence, paths, seals
from leash.spark.staging.files import Files
from leash.spark.staging.seals import Seal


def begin(files: Files, run: str) -> None:
    """Create a new run's fence; never an old run's, so that a wiped folder is recognised."""
    fence.write_fence(files, run, fence.Fence(floor=0))


def commit(files: Files, plan: Plan) -> None:
    """Delete what a committed batch no longer needs. The floor is raised first: a task that is still working
    on these batches must see it before its files are deleted."""
    fence.raise_floor(files, plan.run, plan.seq)
    remembered = {seen.folder for seen in plan.seen or ()}
    for seq, folder in batches(files, plan.run):
        if seq >= plan.seq:
            continue
        if folder in remembered:
            drop_chunks(files, folder)
        else:
            files.delete_folder(folder)
    use_up(files, plan.spent, remembered)


def drop_chunks(files: Files, folder: str) -> None:
    """Delete the rows, which are committed; keep the seals, for deduplication."""
    for name in files.names(folder):
        if paths.is_chunk(name):
            files.delete(f"{folder}/{name}")


def batches(files: Files, run: str) -> list[tuple[int, str]]:
    """The run's batch folders by sequence number."""
    numbered = [(paths.batch_number(name), f"{run}/{name}") for name in files.names(run)]
    return sorted((number, folder) for number, folder in numbered if number is not None)


def sealed_beyond(files: Files, run: str, seq: int) -> list[tuple[str, Seal]]:
    """Seals with rows in batches after `seq`, which a rolled-back checkpoint does not know."""
    found = []
    for number, folder in batches(files, run):
        names = files.names(folder) if number > seq else []
        for path in (f"{folder}/{name}" for name in names if paths.is_seal(name)):
            seal = seals.read_seal(files, path)
            if seal is not None and not seal.void and seal.rows:
                found.append((path, seal))
    return found


# --- other runs in the same location ---


def use_up(files: Files, spent: Iterable[str], remembered: Container[str] = ()) -> None:
    """Delete seals of other runs, and their rows; remembered ones keep their hashes.

    Nothing else is deleted: the rest of such a run may be other queues' messages. (Earlier versions wrote
    names of runs into `spent`, not paths of seals.)
    """
    for path in spent:
        seal = seals.read_seal(files, path) if paths.is_seal(path) else None
        if seal is None:
            continue
        if path in remembered:
            used = Seal(attempt=seal.attempt, queue=seal.queue, void=True, at=seal.at, ids=seal.ids)
            files.replace(path, used.encode())
        else:
            files.delete(path)
        if seal.file:
            files.delete(f"{paths.folder_of(path)}/{seal.file}")
    for run in dict.fromkeys(paths.run_of(path) for path in spent):
        _sweep(files, run)


def _sweep(files: Files, run: str) -> None:
    """Delete a run that was taken over once nothing in it is needed."""
    mark = fence.read_fence(files, run)
    if mark is None or not mark.closed:
        return
    for number, folder in batches(files, run):
        if number > mark.floor and any(seal.rows or seal.ids for seal in seals.seals_in(files, folder)):
            return
    files.delete_folder(run)
