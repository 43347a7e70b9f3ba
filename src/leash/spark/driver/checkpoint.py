"""Resuming from a checkpoint, and the staged messages that earlier runs left behind.

A checkpoint of another kind or version is refused before that, by `spark/offsets.py` (queues) and
`spark/streams/offsets.py` (streams).
"""

from __future__ import annotations

from leash.errors import StagingMismatch
from leash.logfmt import logger
from leash.spark.offsets import Plan, first_plan
from leash.spark.settings import SourceSettings
from leash.spark.staging import cleanup, fence, owner
from leash.spark.staging.files import Files
from leash.spark.staging.seals import Seal

log = logger(__name__)


def resume(files: Files, settings: SourceSettings, start: Plan) -> Plan:
    """`start`, if its staged data exists; otherwise an error, or a new run if data loss is allowed."""
    mark = fence.read_fence(files, start.run)
    if mark is None:
        lost = (
            f"run {start.run} of this checkpoint has no staging folder under stagingLocation: it was "
            "changed or wiped. Restore it, or start a new checkpoint"
        )
    elif mark.closed:
        lost = (
            f"run {start.run} of this checkpoint was taken over by a newer one (orphanedStaging): start a "
            "new checkpoint"
        )
    elif mark.floor > start.seq:
        lost = (
            f"the checkpoint was rolled back to batch {start.seq}, but batches up to {mark.floor} are "
            "committed and no longer staged. Restore the checkpoint, or start a new one"
        )
    else:
        return start
    if settings.fail_on_data_loss:
        raise StagingMismatch(f"{lost}, or set failOnDataLoss=false to go on with what is in the queues now")
    log.warning("event=run_begun_anew run=%r reason=%r", start.run, lost)
    return first_plan()


def orphans(files: Files, settings: SourceSettings, own: str) -> list[str]:
    """Paths of seals to adopt, according to `orphanedStaging`.

    Only those of queues that this source reads: another source that shares the folder may need the others.
    """
    queues = {queue.name for queue in settings.queues}
    found = _abandoned(files, _staged(files, own, queues))
    if not found:
        return []
    if settings.orphaned_staging == "fail":
        raise StagingMismatch(
            f"stagingLocation holds {_named(found)}, which exist nowhere else. Restore their checkpoint, or "
            "set orphanedStaging=adopt to read them first, or orphanedStaging=discard to drop them"
        )
    for name in found:
        fence.close_run(files, name)
    # Tasks may outlive their driver: seals that they made before the fence closed count too.
    found = {
        name: [(path, seal) for path, seal in _uncommitted(files, name) if seal.queue in queues]
        for name in found
    }
    paths = [path for seals in found.values() for path, _ in seals]
    if settings.orphaned_staging == "discard":
        log.warning("event=discarding reason=%r", _named(found))
        cleanup.use_up(files, paths)
        return []
    log.warning("event=adopting reason=%r", _named(found))
    return paths


Staged = dict[str, list[tuple[str, Seal]]]
"""The uncommitted seals, by run."""


def _staged(files: Files, own: str, queues: set[str]) -> Staged:
    """The uncommitted seals of runs whose driver is not known to be alive."""
    found, left = {}, []
    for name in files.names(""):
        if name == own or owner.alive(files, name) is True:
            continue
        seals = _uncommitted(files, name)
        left += [seal for _, seal in seals if seal.queue not in queues]
        mine = [(path, seal) for path, seal in seals if seal.queue in queues]
        if mine:
            found[name] = mine
    if left:
        log.warning(
            "event=others_staged messages=%d queues=%r reason=%r",
            sum(seal.rows for seal in left),
            sorted({seal.queue for seal in left}),
            "this source does not read them; they stay",
        )
    return found


def _abandoned(files: Files, staged: Staged) -> Staged:
    """`staged` without the runs whose drivers are alive."""
    doubtful = [name for name in staged if owner.alive(files, name) is None]
    if doubtful:
        log.warning(
            "event=waiting_for_owner reason=%r seconds=%d",
            f"{_named({name: staged[name] for name in doubtful})}, driven from elsewhere",
            owner.SILENT,
        )
    living = set(doubtful) - owner.silent(files, doubtful)
    return {name: seals for name, seals in staged.items() if name not in living}


def _uncommitted(files: Files, name: str) -> list[tuple[str, Seal]]:
    mark = fence.read_fence(files, name)
    return [] if mark is None else cleanup.sealed_beyond(files, name, mark.floor)


def _named(staged: Staged) -> str:
    rows = sum(seal.rows for seals in staged.values() for _, seal in seals)
    return f"{rows} staged messages of earlier checkpoints ({', '.join(staged)})"
