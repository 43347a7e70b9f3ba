"""The driver's view of partitions: their current queues, and which of them wait at a gate."""

from __future__ import annotations

import time
from collections.abc import Iterable

from leash.amqp import Connection
from leash.partitions import gates, layout_store
from leash.spark.queue_options import QueueSpec
from leash.spark.staging.seals import Seal

_LOOK_EVERY = 1.0


class Following:
    """The partitions of one query."""

    def __init__(self, partitions: str) -> None:
        self._partitions = partitions
        self._queues: tuple[QueueSpec, ...] = ()
        self._looked = float("-inf")
        self._gates: dict[str, gates.Gate] = {}

    def queues(self, link: Connection) -> tuple[QueueSpec, ...]:
        """All queues that may hold messages, looked up again about every second."""
        if time.monotonic() - self._looked >= _LOOK_EVERY:
            layout = layout_store.need(link, self._partitions)
            self._queues = tuple(QueueSpec(queue) for queue in layout.all_queues)
            self._looked = time.monotonic()
        return self._queues

    def settle(self, results: Iterable[tuple[tuple[str, int], Seal]]) -> None:
        """Remember the splits that ended at a gate."""
        for (queue, _), seal in results:
            self._gates.pop(queue, None)
            if (gate := seal.gate) is not None:
                move, sources = gate
                self._gates[queue] = gates.Gate(self._partitions, move, sources)

    def held(self, link: Connection) -> list[str]:
        """The queues not to read now: their messages would only be taken and returned."""
        if not self._gates:
            return []
        passed = layout_store.recall(link, self._partitions).passed
        for queue, gate in list(self._gates.items()):
            if all((gate.move, source) in passed for source in gate.sources):
                del self._gates[queue]
        return list(self._gates)
