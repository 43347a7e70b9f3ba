"""One attempt at one split: stage, seal, then ack, in this order.

The seal is the commit point. Before it, everything goes back to the queue; after it, the rows are what the
seal says, and a lost ack only causes copies, flagged `redelivered`. The fence is read twice:
before taking anything, and again between seal and ack, because the driver may have closed the batch in the
meantime. A seal is never taken back: others may have read it.
"""

from __future__ import annotations

import logging
import secrets
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Protocol

from leash.errors import AmqpError, StagingError
from leash.spark.offsets import Split
from leash.spark.staging import fence, notes, paths, seals
from leash.spark.staging.chunks import ChunkWriter, Lot
from leash.spark.staging.files import Files
from leash.spark.staging.seals import Seal
from leash.spark.task.dedup import Known

log = logging.getLogger(__name__)


class Taker(Protocol):
    """A hold on one queue. Messages stay unacked until `ack` or `give_back`."""

    @property
    def ended(self) -> str:
        """Why `lots` stopped: filled, drained, deadline, gone, or at a gate."""

    @property
    def left_behind(self) -> int | None:
        """After `ack`: how many messages, at most, it gave back; None if it does not know."""

    def lots(self, grant: int) -> Iterator[Lot]:
        """Take up to `grant` messages, as they arrive."""

    def confirm(self) -> None:
        """A round trip: raises if the broker no longer counts what was taken as ours."""

    def ack(self) -> None:
        """Ack all that was taken, with a round trip."""

    def give_back(self) -> None:
        """Return all that was taken to its place in the queue; never raises."""


def sealed(split: Split, files: Files, open_taker: Callable[[Split], Taker]) -> Seal:
    """The split's seal: the existing one, or a new one for messages taken from the queue now."""
    standing = seals.read_seal(files, split.seal_path)
    if standing is not None:
        fence.check_seal(files, split)
        return standing
    if split.adopted:
        raise StagingError(
            f"{split.adopted} was adopted by batch {split.seq} and is gone: restore the staging folder"
        )
    fence.check_fence(files, split)
    attempt = secrets.token_hex(8)
    try:
        writer = ChunkWriter(files, paths.chunk(split.folder, split.index, attempt))
    except OSError as error:
        raise StagingError(f"stagingLocation cannot be written: {error}. Nothing was consumed") from error
    try:
        taker = open_taker(split)
        try:
            seal = _stage(split, files, taker, writer, attempt)
            return _settle(split, files, taker, seal, writer)
        except BaseException:
            taker.give_back()
            raise
    except BaseException:
        # Nothing refers to the file unless our seal counts.
        with suppress(Exception):
            if not _is_ours(seals.read_seal(files, split.seal_path), attempt):
                writer.discard()
        raise


def _stage(split: Split, files: Files, taker: Taker, writer: ChunkWriter, attempt: str) -> Seal:
    """Take messages and write them durably; they are not acked yet."""
    known = Known(split, files)
    try:
        for lot in taker.lots(split.grant):
            writer.add(lot, known.fresh(lot))
        file = writer.finish()
    except OSError as error:
        raise StagingError(f"staging failed: {error}. All messages were given back") from error
    taker.confirm()
    return Seal(
        attempt=attempt,
        queue=split.queue,
        file=file,
        chunks=tuple(writer.chunks),
        inline=writer.inline,
        rows=writer.rows,
        size=writer.size,
        redelivered=writer.redelivered,
        dropped=known.dropped,
        ended=taker.ended,
        at=time.time_ns(),
        ids=b"".join(sorted(known.hashes)),
    )


def _settle(split: Split, files: Files, taker: Taker, seal: Seal, writer: ChunkWriter) -> Seal:
    """Seal, check the fence again and ack; or return everything."""
    standing = seals.place_seal(files, split.seal_path, seal)
    if not _is_ours(standing, seal.attempt):
        taker.give_back()
        writer.discard()
        fence.check_seal(files, split)
        return standing
    fence.check_seal(files, split)
    try:
        taker.ack()
    except AmqpError as error:
        # The rows are safe and the seal counts: failing the task would gain nothing.
        log.warning(
            "event=ack_failed queue=%r messages=%d reason=%r",
            split.queue,
            seal.rows,
            f"they are staged, and copies will follow: {error}",
        )
        return seal
    if split.seen is not None or split.limbo:
        notes.note_acked(files, split, taker.left_behind)
    return seal


def _is_ours(seal: Seal | None, attempt: str) -> bool:
    return seal is not None and seal.attempt == attempt
