"""A seal is the commit point of a split: whoever creates it first decides what the split's rows are,
for good."""

from __future__ import annotations

import base64
import json
import time
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any

from leash.errors import LeashError

from .files import Files

VERSION = 1
HASH = 16


class StagingError(LeashError):
    """Staged data that is missing, damaged, or from another version."""


@dataclass(frozen=True, slots=True)
class Chunk:
    """A stretch of the chunk file."""

    length: int
    crc: int
    rows: int


@dataclass(frozen=True, slots=True)
class Seal:
    """`ended` is why reading stopped: filled, drained or deadline; a void seal says that nobody may
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
    """The seal that stands afterwards: this one, or another attempt's that was first.

    Whatever the create says, what lies there decides: an error may come after the file did.
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
    """Close a split that nobody read, so that nobody can; returns what stands."""
    return place_seal(files, path, Seal(attempt="void", void=True, at=time.time_ns()))


def hashes_of(seals: Iterable[Seal]) -> set[bytes]:
    """The rows' hashes, of all of them."""
    return {seal.ids[at : at + HASH] for seal in seals for at in range(0, len(seal.ids), HASH)}


def seals_in(files: Files, folder: str) -> list[Seal]:
    """Every seal of a batch, void ones too, in the order of its splits."""
    found = (read_seal(files, f"{folder}/{name}") for name in files.names(folder) if name.endswith(".seal"))
    return [seal for seal in found if seal is not None]
