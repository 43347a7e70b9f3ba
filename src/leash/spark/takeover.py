"""What earlier lives left in the staging folder: a checkpoint rolled back, wiped, or thrown away."""

from __future__ import annotations

import logging

from leash.errors import LeashError

from . import fence, run
from .files import Files
from .offsets import Plan, first_plan
from .settings import SourceSettings

log = logging.getLogger(__name__)


class StagingMismatch(LeashError):
    """Checkpoint and staging folder do not belong together."""


def resume(files: Files, settings: SourceSettings, start: Plan) -> Plan:
    """`start`, if its staged data is there; else an error, or a new run where data loss is allowed."""
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
    log.warning(lost)
    return first_plan()


def orphans(files: Files, settings: SourceSettings, own: str) -> list[str]:
    """Paths of seals to adopt, as `orphanedStaging` has it.

    Only rows of queues that this source reads: another source of the same query may share the folder.
    """
    queues = {queue.name for queue in settings.queues}
    found = {
        name: [(path, seal) for path, seal in paths if seal.queue in queues]
        for name, paths in run.orphans(files, own).items()
    }
    found = {name: paths for name, paths in found.items() if paths}
    if not found:
        return []
    rows = sum(seal.rows for paths in found.values() for _, seal in paths)
    what = f"{rows} staged messages of earlier checkpoints ({', '.join(found)})"
    if settings.orphaned_staging == "fail":
        raise StagingMismatch(
            f"stagingLocation holds {what}, which exist nowhere else. Restore their checkpoint, or set "
            "orphanedStaging=adopt to read them first, or orphanedStaging=discard to drop them"
        )
    for name in found:
        fence.close_run(files, name)
    if settings.orphaned_staging == "discard":
        log.warning("discarding %s", what)
        for name in found:
            files.delete_folder(name)
        return []
    log.warning("adopting %s", what)
    return [path for paths in found.values() for path, _ in paths]
