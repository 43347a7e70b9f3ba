"""One attempt at one split: stage, seal, then ack, in this order.

The seal is the commit point. Before it, everything goes back to the queue; after it, the rows are what the
seal says, and an ack that gets lost only brings copies, flagged `redelivered`. The fence is read twice:
before taking anything, and again between seal and ack, because the driver may have closed the batch in the
meantime.
"""

from __future__ import annotations

import hashlib
import logging
import secrets
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Protocol

from leash.amqp.properties import decode_properties
from leash.errors import AmqpError, ProtocolError

from . import fence, seals
from .chunks import ChunkWriter, Lot
from .files import Files
from .offsets import Split
from .seals import HASH, Seal

log = logging.getLogger(__name__)

_batch: dict[str, tuple[set[str], set[bytes]]] = {}
"""The seals read so far of the batch at work, and their rows' hashes."""


class Taker(Protocol):
    """A hold on one queue. Messages stay unacked until `ack` or `give_back`."""

    ended: str
    """Why `lots` stopped: filled, drained or deadline."""

    def lots(self, grant: int) -> Iterator[Lot]:
        """Take up to `grant` messages, as they come."""

    def confirm(self) -> None:
        """A round trip: raises if the broker no longer counts what was taken as ours."""

    def ack(self) -> None:
        """All that was taken, and a round trip."""

    def give_back(self) -> None:
        """All that was taken, to its place in the queue; never raises."""


def sealed(split: Split, files: Files, open_taker: Callable[[Split], Taker]) -> Seal:
    """The split's seal: the one that stands, or a new one for messages taken from the queue now."""
    standing = seals.read_seal(files, split.seal_path)
    if standing is not None:
        return standing
    if split.adopted:
        raise seals.StagingError(
            f"{split.adopted} was adopted by batch {split.seq} and is gone: restore the staging folder"
        )
    fence.check_fence(files, split)
    attempt = secrets.token_hex(8)
    try:
        writer = ChunkWriter(files, f"{split.stem}-{attempt}.chunk")
    except OSError as error:
        raise seals.StagingError(
            f"stagingLocation cannot be written: {error}. Nothing was consumed"
        ) from error
    try:
        taker = open_taker(split)
        try:
            seal = _stage(split, files, taker, writer, attempt)
            return _settle(split, files, taker, seal, writer)
        except BaseException:
            taker.give_back()
            raise
    except BaseException:
        # Nothing points at the file unless our seal stands.
        with suppress(Exception):
            if not _is_ours(seals.read_seal(files, split.seal_path), attempt):
                writer.discard()
        raise


def _stage(split: Split, files: Files, taker: Taker, writer: ChunkWriter, attempt: str) -> Seal:
    """Take and write, durably; the messages are still the queue's."""
    known = _Known(split, files)
    try:
        for lot in taker.lots(split.grant):
            writer.add(lot, known.fresh(lot))
        file = writer.finish()
    except OSError as error:
        raise seals.StagingError(f"staging failed: {error}. All messages were given back") from error
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
    """Seal, look at the fence again, ack; or give everything back."""
    standing = seals.place_seal(files, split.seal_path, seal)
    if not _is_ours(standing, seal.attempt):
        taker.give_back()
        writer.discard()
        return standing
    try:
        fence.check_fence(files, split)
    except fence.Fenced:
        files.delete(split.seal_path)
        raise
    try:
        taker.ack()
    except AmqpError as error:
        # The rows are safe and the seal stands: failing the task would gain nothing.
        log.warning(
            "queue %r: acknowledging %d staged messages failed, copies will follow: %s",
            split.queue,
            seal.rows,
            error,
        )
        return seal
    if split.seen is not None:
        files.replace(acked_path(split), b"acked")
    return seal


def acked_path(split: Split) -> str:
    """Says that the broker has heard the ack: until then the split's rows must be remembered for
    deduplication."""
    return f"{split.stem}.acked"


def _is_ours(seal: Seal | None, attempt: str) -> bool:
    return seal is not None and seal.attempt == attempt


class _Known:
    """Which deliveries are copies of rows that a seal already holds. Only flagged ones can be."""

    def __init__(self, split: Split, files: Files) -> None:
        self._split, self._files = split, files
        self._earlier: set[bytes] | None = None
        self.hashes: list[bytes] = []
        self.dropped = 0

    def fresh(self, lot: Lot) -> list[int] | None:
        """The indices to keep; None for all."""
        if self._split.seen is None:
            return None
        keep = []
        siblings: set[bytes] | None = None
        for i, properties in enumerate(lot.properties):
            digest = _hash(self._split.queue, properties, lot.bodies[i])
            if digest is not None and lot.redelivered[i]:
                # The batch's own seals are read again for every lot: a copy can only arrive after its seal
                # stands.
                siblings = self._siblings() if siblings is None else siblings
                if digest in siblings or digest in self._remembered():
                    self.dropped += 1
                    continue
            if digest is not None:
                self.hashes.append(digest)
            keep.append(i)
        return keep

    def _remembered(self) -> set[bytes]:
        if self._earlier is None:
            self._earlier = set()
            for folder in self._split.seen or ():
                self._earlier |= seals.hashes_of(seals.seals_in(self._files, folder))
        return self._earlier

    def _siblings(self) -> set[bytes]:
        """Read once per process: while its batch runs, a seal neither changes nor goes."""
        folder = self._split.folder
        if folder not in _batch:
            _batch.clear()
            _batch[folder] = (set(), set())
        names, hashes = _batch[folder]
        for name in self._files.names(folder):
            if name.endswith(".seal") and name not in names:
                seal = seals.read_seal(self._files, f"{folder}/{name}")
                hashes |= seals.hashes_of([seal] if seal else [])
                names.add(name)
        return hashes


def _hash(queue: str, properties: bytes, body: bytes) -> bytes | None:
    try:
        message_id = decode_properties(properties).message_id
    except ProtocolError:
        return None
    if not message_id:
        return None
    digest = hashlib.blake2b(digest_size=HASH)
    for part in (queue.encode(), message_id.encode("utf-8", "surrogateescape")):
        digest.update(len(part).to_bytes(4, "big") + part)
    digest.update(body)
    return digest.digest()
