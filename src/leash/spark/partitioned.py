"""Partitions on Spark: their queues, which may change, and the gates and markers of a resize.

A split ends at a closed gate. It opens for a batch when earlier batches have sealed, or others settled,
all that was before the markers: so a key's rows from before a move are in an earlier batch than those from
after it. A marker is passed between its split's seal and ack: a crash in between brings copies, and no gate
stays closed for ever.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Iterator

from leash.amqp import Connection, Deliveries, Publisher
from leash.partitions import control, memory
from leash.partitions.memory import Pass

from .offsets import Split
from .queues import QueueSpec
from .seals import Seal
from .taking import QueueTaker

_LOOK_EVERY = 1.0
_GATE = "gate "


class PartitionTaker(QueueTaker):
    """Leaves control messages out of the rows."""

    def __init__(self, link: Connection, split: Split, poll_timeout: float, partitions: str) -> None:
        super().__init__(link, split.queue, poll_timeout, split.ordered, split.exclusive)
        self._partitions = partitions
        self._batch = (split.run, split.seq)
        self._markers: list[control.Marker] = []
        self._passes: dict[Pass, memory.Batch | None] | None = None

    def lots(self, grant: int) -> Iterator[Deliveries]:
        before = 0
        for lot in super().lots(grant):
            keep, closed = self._sift(lot)
            if closed is not None:
                at, gate = closed
                self._last = lot.tags[at - 1] if at else before
                self.ended = _GATE + json.dumps([gate.move, *gate.sources])
            before = lot.tags[-1]
            rows = lot if keep is None else _only(lot, keep)
            if len(rows):
                yield rows
            if closed is not None:
                return

    def _sift(self, lot: Deliveries) -> tuple[list[int] | None, tuple[int, control.Gate] | None]:
        """The rows to keep, None for all; and where a closed gate ends them."""
        if not any(map(control.is_control, lot.properties)):
            return None, None
        keep = []
        for at, raw in enumerate(lot.properties):
            found = control.read(raw)
            if found is None:
                keep.append(at)
            elif isinstance(found, control.Probe) or found.partitions != self._partitions:
                continue
            elif isinstance(found, control.Marker):
                self._markers.append(found)
            elif not self._is_open(found):
                return keep, (at, found)
        return keep, None

    def _is_open(self, gate: control.Gate) -> bool:
        """What this very batch passes does not count: its splits are read side by side."""
        if self._passes is None:
            self._passes = memory.recall(self._link, self._partitions).passed
        own = [found for found, batch in self._passes.items() if batch == self._batch]
        return all(
            (gate.move, source) in self._passes and (gate.move, source) not in own for source in gate.sources
        )

    def ack(self) -> None:
        """The rows are sealed by now."""
        if self._markers:
            with Publisher(self._link) as publisher:
                for marker in self._markers:
                    memory.passed(publisher, self._partitions, marker.move, self._queue, self._batch)
        super().ack()


class Following:
    """The driver's view."""

    def __init__(self, partitions: str) -> None:
        self._partitions = partitions
        self._queues: tuple[QueueSpec, ...] = ()
        self._looked = float("-inf")
        self._gates: dict[str, control.Gate] = {}

    def queues(self, link: Connection) -> tuple[QueueSpec, ...]:
        """All queues that may hold messages, looked up anew about every second."""
        if time.monotonic() - self._looked >= _LOOK_EVERY:
            layout = memory.need(link, self._partitions)
            self._queues = tuple(QueueSpec(queue) for queue in layout.all_queues)
            self._looked = time.monotonic()
        return self._queues

    def settle(self, results: Iterable[tuple[tuple[str, int], Seal]]) -> None:
        """Remember where a split ended at a gate."""
        for (queue, _), seal in results:
            self._gates.pop(queue, None)
            if seal.ended.startswith(_GATE):
                move, *sources = json.loads(seal.ended.removeprefix(_GATE))
                self._gates[queue] = control.Gate(self._partitions, move, tuple(sources))

    def held(self, link: Connection) -> list[str]:
        """The queues not to read now: it would only send their messages there and back."""
        if not self._gates:
            return []
        passed = memory.recall(link, self._partitions).passed
        for queue, gate in list(self._gates.items()):
            if all((gate.move, source) in passed for source in gate.sources):
                del self._gates[queue]
        return list(self._gates)


def _only(lot: Deliveries, keep: list[int]) -> Deliveries:
    found = Deliveries(lot.channel, lot.consumer_tag)
    for column in ("tags", "redelivered", "exchanges", "routing_keys", "properties", "bodies"):
        values = getattr(lot, column)
        setattr(found, column, [values[at] for at in keep])
    return found
