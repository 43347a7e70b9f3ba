"""Where each stream stands: what it has, what of it is ours, and whether it is still the same stream.

The rule: never a silent gap. A stream that was deleted and made again, that ends before what was read, or
whose next messages retention has deleted, is an error that names stream, expected and first offset; with
`failOnDataLoss=false` a warning, and reading goes on with the first message there is.
"""

from __future__ import annotations

import time

from leash.errors import ConfigError, DataLost, StreamMissing
from leash.logfmt import logger
from leash.spark.streams.links import Links
from leash.spark.streams.offsets import Mark
from leash.spark.streams.settings import Offsets, StreamSettings, check_known
from leash.streams import Bounds

log = logger(__name__)

_BEHIND = 15.0  # seconds that a new leader may need to know how far the stream goes


class Positions:
    """Asks the broker; decides where reading begins and goes on."""

    def __init__(self, settings: StreamSettings, links: Links) -> None:
        self._settings = settings
        self._links = links
        self._behind: dict[str, float] = {}
        self._warned: set[str] = set()
        self.sizes: dict[str, int] = {}
        """The mean size of a message in the last chunk that was seen of each stream."""

    def names(self) -> tuple[str, ...]:
        """The streams to read, as they are now."""
        whole = self._settings.super_stream
        if whole is None:
            return tuple(spec.name for spec in self._settings.queues)
        return self._links.partitions(whole)

    def check(self, names: tuple[str, ...]) -> None:
        """Before anything is read: do the options fit the broker?"""
        check_known("startingOffsets", self._settings.starting_offsets, list(names))
        check_known("endingOffsets", self._settings.ending_offsets, list(names))
        if self._settings.filter_values:
            self._links.require_filters("filterValues", ",".join(self._settings.filter_values))

    def bounds(self, stream: str) -> Bounds | None:
        """What it has; None if it is missing and that is no error."""
        try:
            found = self._links.bounds(stream)
        except StreamMissing as error:
            self._links.forget(stream)
            if self._settings.fail_on_data_loss:
                raise ConfigError(
                    self._settings.option,
                    stream,
                    "there is no stream of that name: declare it, read a queue by the option queue, or set "
                    "failOnDataLoss=false to go on without it",
                ) from error
            if stream not in self._warned:
                self._warned.add(stream)
                log.warning("event=stream_missing stream=%r reason=%r", stream, "going on without it")
            return None
        self._warned.discard(stream)
        if found.last is not None:
            self.sizes[stream] = max(1, len(found.last.data) // max(1, found.last.records))
        return found

    def start(self, stream: str, bounds: Bounds) -> int:
        """Where a new query begins."""
        if self._settings.starting_timestamp is not None:
            return self._links.since(stream, self._settings.starting_timestamp, bounds)
        told = _told(self._settings.starting_offsets, stream, "earliest")
        if told == "earliest":
            return bounds.first
        if told == "latest":
            return bounds.end
        assert isinstance(told, int)
        if told > bounds.end:
            raise ConfigError("startingOffsets", told, f"stream {stream!r} ends at {bounds.end}")
        return self.kept(stream, told, bounds)

    def end(self, stream: str, bounds: Bounds, start: int) -> int:
        """Where a batch read ends."""
        told = _told(self._settings.ending_offsets, stream, "latest")
        if isinstance(told, int):
            if told > bounds.end:
                raise ConfigError("endingOffsets", told, f"stream {stream!r} ends at {bounds.end}")
            if told < start:
                option = (
                    "startingOffsets" if self._settings.starting_timestamp is None else "startingTimestamp"
                )
                raise ConfigError(option, start, f"stream {stream!r} would begin after endingOffsets, {told}")
            return told
        return max(start, bounds.end)

    def kept(self, stream: str, expected: int, bounds: Bounds) -> int:
        """Where to go on: the expected offset, unless retention has deleted it."""
        if bounds.first <= expected:
            return expected
        first = self._links.first_kept(stream)  # below the first message may be what only the broker reads
        if first <= expected:
            return expected
        self._lost(DataLost(stream, expected, bounds.first, "messages were deleted before they were read"))
        return bounds.first

    def go_on(self, stream: str, expected: int, mark: Mark | None, bounds: Bounds) -> int | None:
        """Where to go on, or None if this is not known yet: a new leader may be behind for a while."""
        if mark is not None and (bounds.last is None or Mark.of(bounds.last) != mark):
            chunk = self._links.chunk_at(stream, mark.first)
            if chunk is not None and chunk.first <= mark.first and Mark.of(chunk) != mark:
                self._lost(DataLost(stream, expected, bounds.first, "it was deleted and made again"))
                return bounds.first
        if bounds.end >= expected:
            self._behind.pop(stream, None)
            return self.kept(stream, expected, bounds)
        since = self._behind.setdefault(stream, time.monotonic())
        if time.monotonic() - since < _BEHIND:
            self._links.forget(stream)
            return None
        del self._behind[stream]
        self._lost(DataLost(stream, expected, bounds.first, f"it ends at {bounds.end}, before what was read"))
        return bounds.first

    def _lost(self, error: DataLost) -> None:
        if self._settings.fail_on_data_loss:
            raise error
        log.warning("event=data_lost reason=%r", str(error))


def _told(offsets: Offsets | None, stream: str, default: str) -> int | str:
    if isinstance(offsets, dict):
        return offsets.get(stream, default)
    return offsets or default
