"""Finds deliveries that are copies of rows already staged."""

from __future__ import annotations

import hashlib

from leash.amqp.properties import read_property
from leash.spark.offsets import Split
from leash.spark.staging import paths, seals
from leash.spark.staging.chunks import Lot
from leash.spark.staging.files import Files
from leash.spark.staging.seals import HASH

_batch: dict[str, tuple[set[str], set[bytes]]] = {}
"""The seals of the current batch read so far, and their rows' hashes."""


class Known:
    """Finds copies of rows that a seal already holds. Only redelivered messages can be copies."""

    def __init__(self, split: Split, files: Files) -> None:
        self._split, self._files = split, files
        self._earlier: set[bytes] | None = None
        self._own: set[bytes] = set()  # a rescued copy and its original may arrive one after the other
        self.hashes: list[bytes] = []
        self.dropped = 0

    def fresh(self, lot: Lot) -> list[int] | None:
        """The indices to keep; None for all."""
        if self._split.seen is None:
            return None
        keep = []
        siblings: set[bytes] | None = None
        for i, properties in enumerate(lot.properties):
            digest = message_hash(self._split.queue, properties, lot.bodies[i])
            if digest is not None and lot.redelivered[i]:
                # The batch's own seals are read again for every lot: a copy arrives after its seal stands.
                # Not so the two that a death between copy and ack leaves: two splits of a batch may take one
                # each. Neither knows whether the other lives to seal its own, so that to drop one of them on
                # a mere claim might lose both.
                siblings = self._siblings() if siblings is None else siblings
                if digest in self._own or digest in siblings or digest in self._remembered():
                    self.dropped += 1
                    continue
            if digest is not None:
                self._own.add(digest)
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
        """Read once per process: while its batch runs, a seal is neither changed nor deleted."""
        folder = self._split.folder
        if folder not in _batch:
            _batch.clear()
            _batch[folder] = (set(), set())
        names, hashes = _batch[folder]
        for name in self._files.names(folder):
            if paths.is_seal(name) and name not in names:
                seal = seals.read_seal(self._files, f"{folder}/{name}")
                hashes |= seals.hashes_of([seal] if seal else [])
                names.add(name)
        return hashes


def message_hash(queue: str, properties: bytes, body: bytes) -> bytes | None:
    message_id = read_property(properties, "message_id")
    if not message_id:
        return None
    digest = hashlib.blake2b(digest_size=HASH)
    for part in (queue.encode(), message_id.encode("utf-8", "surrogateescape")):
        digest.update(len(part).to_bytes(4, "big") + part)
    digest.update(body)
    return digest.digest()
