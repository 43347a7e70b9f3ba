"""What is missing between the chunks of a stream."""

from __future__ import annotations

from collections.abc import Sequence

from leash.errors import DataLost
from leash.logfmt import logger
from leash.streams.chunks_to_arrow import Chunk

log = logger("leash.streams")


def new_chunks(
    chunks: Sequence[Chunk], expected: int | None, passed: int = 0
) -> tuple[list[Chunk], int | None]:
    """Those that end beyond the expected offset, and the first offset that is left out, if one is. Nothing
    is missed below `passed`.
    """
    new, missing = [], None
    for chunk in chunks:
        if expected is not None:
            if chunk.end <= expected:
                continue
            if missing is None and chunk.first > max(expected, passed):
                missing = max(expected, passed)
        new.append(chunk)
        expected = chunk.end
    return new, missing


def lost(stream: str, expected: int, first: int, why: str, strict: bool) -> None:
    """Raise that messages are gone, or log it and go on."""
    if strict:
        raise DataLost(stream, expected, first, why)
    log.warning("event=data_lost stream=%r expected=%d first=%d reason=%r", stream, expected, first, why)
