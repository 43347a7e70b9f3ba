"""All streams of one consumer: opened together, left together, and joined by partitions that are added."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import replace

from leash.consumer.engine import Engine
from leash.consumer.settings import Settings
from leash.consumer.stream_lane import About, StreamLane
from leash.consumer.stream_settings import StreamQueue
from leash.errors import DataLost, LeashError
from leash.flow.adding_lanes import add_lane
from leash.logfmt import logger
from leash.streams import connect, parse, partitions

log = logger("leash.consumer")

LOOK_EVERY = 10.0
"""Seconds until an added partition is noticed."""


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
        self._engine = engine
        self._settings = settings
        self._about = About(
            parse(settings.uri, settings.stream_port),
            settings.name,
            settings.load_balancer,
            min(_MOST_BYTES, max(_LEAST_BYTES, part)),
            frame_max,
            parking,
        )
        self._lanes = [StreamLane(engine, spec, self._about) for spec in specs]
        self._left = threading.Event()
        self._partition = next((each for each in specs if each.super_stream), None)  # any will do
        self._follower = threading.Thread(target=self._follow, name="leash-partitions", daemon=True)

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
        if self._partition is not None:
            self._follower.start()

    # --- partitions that are added ---

    def _follow(self) -> None:
        """Ask for the partitions of the super stream from time to time."""
        spec, about = self._partition, self._about
        assert spec is not None
        known = {each.name for each in self._settings.queues}
        while not self._left.wait(LOOK_EVERY):
            try:
                with connect(about.uri, name=about.name) as connection:
                    names = partitions(connection, spec.super_stream)
                for name in names:
                    if name not in known and not self._left.is_set():
                        # Whatever it has already came after this consumer began.
                        self._add(replace(spec, name=name, start="first"))
                        known.add(name)
            except LeashError as error:  # if it is more than that, the lanes say so
                log.debug("event=partitions_unknown super_stream=%r reason=%r", spec.super_stream, str(error))

    def _add(self, spec: StreamQueue) -> None:
        """Consume one more."""
        engine, settings = self._engine, self._settings
        lane = StreamLane(engine, spec, self._about)
        lane.open()
        with engine.lock:
            settings.queues.append(spec)  # where the code for failed messages looks
            engine.counts[spec.name] = Counter()
            engine.streams.append(spec.name)
            if engine.gate is not None:
                engine.gate.add(settings, spec)
            add_lane(engine.flow, spec.lane(settings.budget))
        self._lanes.append(lane)
        lane.thread.start()
        log.info("event=partition_added super_stream=%r stream=%r", spec.super_stream, spec.name)

    # --- the end ---

    @property
    def failed(self) -> DataLost | None:
        """Why one of them does not go on, for good."""
        return next((lane.failed for lane in self._lanes if lane.failed is not None), None)

    def stop(self, timeout: float) -> None:
        """Store the last offsets, and leave."""
        deadline = time.monotonic() + timeout
        self._left.set()
        if self._follower.is_alive():
            self._follower.join(timeout)
        for lane in self._lanes:
            lane.leave()
        for lane in self._lanes:
            if lane.thread.is_alive():
                lane.thread.join(max(0.0, deadline - time.monotonic()))

    def abandon(self) -> None:
        """Leave at once, as a crash would."""
        self._left.set()
        for lane in self._lanes:
            lane.abandon()
