"""A seal is the commit point of a split: the attempt that creates it first decides, for good, what the
split's rows are."""

from __future__ import annotations

import base64
import json
import time
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any

from leash.errors import StagingError
from leash.spark.staging import paths
from leash.spark.staging.files import Files

VERSION = 1
HASH = 16
_GATE = "gate "


def ended_at_gate(move: int, sources: Iterable[str]) -> str:
    """A seal's `ended` for a closed gate; the inverse of `Seal.gate`."""
    return _GATE + json.dumps([move, *sources])


@dataclass(frozen=True, slots=True)
class Chunk:
    """A section of the chunk file."""

    length: int
    crc: int
    rows: int


@dataclass(frozen=True, slots=True)
class Seal:
    """`ended` is why reading stopped: filled, drained or deadline; a void seal says that no attempt may
    read any more."""

    attempt: str
    queue: str = ""
    void: bool = False
    file: str = ""
    chunks: tuple[Chunk, ...] = ()
    inline: bytes = b""
    rows: int = 0
    size: int = 0
    redelivered: int = 0
    dropped: int = 0
    ended: str = ""
    at: int = 0
    ids: bytes = b""

    @property
    def came_back(self) -> bool:
        """True if any message had been delivered before."""
        return self.redelivered + self.dropped > 0

    @property
    def gate(self) -> tuple[int, tuple[str, ...]] | None:
        """The move and the sources of the closed gate at which reading ended, if it did."""
        if not self.ended.startswith(_GATE):
            return None
        move, *sources = json.loads(self.ended.removeprefix(_GATE))
        return move, tuple(sources)

    def encode(self) -> bytes:
        table: dict[str, Any] = {"version": VERSION, **asdict(self)}
        table["chunks"] = [[chunk.length, chunk.crc, chunk.rows] for chunk in self.chunks]
        table["inline"] = base64.b64encode(self.inline).decode()
        table["ids"] = base64.b64encode(self.ids).decode()
        return json.dumps(table).encode()

    @staticmethod
    def decode(path: str, data: bytes) -> Seal:
        try:
            table = json.loads(data)
            version = table.pop("version")
            if version != VERSION:
                raise StagingError(f"{path} is a version {version} seal; this is version {VERSION}")
            table["chunks"] = tuple(Chunk(*chunk) for chunk in table["chunks"])
            table["inline"] = base64.b64decode(table["inline"], validate=True)
            table["ids"] = base64.b64decode(table["ids"], validate=True)
            return Seal(**table)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise StagingError(f"{path} is not a seal: {error}") from None


def read_seal(files: Files, path: str) -> Seal | None:
    data = files.read(path)
    return None if data is None else Seal.decode(path, data)


def place_seal(files: Files, path: str, seal: Seal) -> Seal:
    """The seal that counts: this one, or that of another attempt that was first.

    The file decides, whatever `create` says: it may fail after the file was created.
    """
    try:
        files.create(path, seal.encode())
        return seal
    except Exception:
        standing = read_seal(files, path)
        if standing is None:
            raise
        return standing


def void_seal(files: Files, path: str) -> Seal:
    """Close a split that was not read, so that none can be; returns the seal that counts."""
    return place_seal(files, path, Seal(attempt="void", void=True, at=time.time_ns()))


def hashes_of(seals: Iterable[Seal]) -> set[bytes]:
    """The hashes of all their rows."""
    return {seal.ids[at : at + HASH] for seal in seals for at in range(0, len(seal.ids), HASH)}


def seals_in(files: Files, place: str) -> list[Seal]:
    """Every seal of a batch's folder, void ones too, in the order of its splits; or the one at this path."""
    there = [place]
    if not paths.is_seal(place):
        there = [f"{place}/{name}" for name in files.names(place) if paths.is_seal(name)]
    found = (read_seal(files, path) for path in there)
    return [seal for seal in found if seal is not None]
