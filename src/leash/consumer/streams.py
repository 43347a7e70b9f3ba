"""All streams of one consumer: opened together, and left together."""

from __future__ import annotations

import time
from collections.abc import Callable

from leash.consumer.engine import Engine
from leash.consumer.settings import Settings
from leash.consumer.stream_lane import About, StreamLane
from leash.consumer.stream_settings import StreamQueue
from leash.errors import DataLost
from leash.streams import parse

_FIRST = 5.0  # seconds for the first messages of every stream
_LEAST_BYTES, _MOST_BYTES = 512 * 1024, 8 << 20
"""What may wait here of one stream, in chunks: half of the consumer's budget, shared by its streams."""


class Streams:
    """The streams of one running consumer, each with a thread and a connection."""

    def __init__(
        self, engine: Engine, settings: Settings, frame_max: Callable[[], int], parking: Callable[[], int]
    ) -> None:
        specs = [each for each in settings.queues if isinstance(each, StreamQueue)]
        part = settings.buffer_bytes // (2 * max(1, len(specs)))
        about = About(
            parse(settings.uri, settings.stream_port),
            settings.name,
            settings.load_balancer,
            min(_MOST_BYTES, max(_LEAST_BYTES, part)),
            frame_max,
            parking,
        )
        self._lanes = [StreamLane(engine, spec, about) for spec in specs]

    def open(self) -> None:
        """Begin to read. Raises if a stream is missing, or cannot be consumed as asked."""
        for lane in self._lanes:
            lane.open()
        for lane in self._lanes:
            lane.thread.start()
        deadline = (
            time.monotonic() + _FIRST
        )  # the first round begins when every stream with messages has some
        for lane in self._lanes:
            lane.ready.wait(max(0.0, deadline - time.monotonic()))

    @property
    def failed(self) -> DataLost | None:
        """Why one of them does not go on, for good."""
        return next((lane.failed for lane in self._lanes if lane.failed is not None), None)

    def stop(self, timeout: float) -> None:
        """Store the last offsets, and leave."""
        deadline = time.monotonic() + timeout
        for lane in self._lanes:
            lane.leave()
        for lane in self._lanes:
            if lane.thread.is_alive():
                lane.thread.join(max(0.0, deadline - time.monotonic()))

    def abandon(self) -> None:
        """Leave at once, as a crash would."""
        for lane in self._lanes:
            lane.abandon()
