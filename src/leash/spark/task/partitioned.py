"""Partitions on Spark: their queues, which may change, and the gates and markers of a resize.

A split ends at a closed gate. The gate opens for a batch when earlier batches have sealed, or others settled,
all that was before the markers: so a key's rows from before a move are in an earlier batch than those from
after it. A marker is passed between its split's seal and ack: a crash in between causes copies, and no gate
stays closed for ever.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from leash.amqp import Connection, Deliveries, Publisher
from leash.errors import AmqpError
from leash.partitions import gates, layout_store
from leash.partitions.layout_store import Pass
from leash.spark.offsets import Split
from leash.spark.staging import seals
from leash.spark.task.ordered import OrderedTaker
from leash.spark.task.rescuing import only

_TIMEOUT = 10.0  # seconds without a confirm before a marker counts as not passed


class PartitionTaker:
    """Leaves control messages out of the rows. `publishing` returns a connection that an alarm may block."""

    def __init__(
        self, taker: OrderedTaker, split: Split, partitions: str, publishing: Callable[[], Connection]
    ) -> None:
        self._taker = taker
        self._link = taker.link
        self._queue = split.queue
        self._partitions = partitions
        self._batch = (split.run, split.seq)
        self._publishing = publishing
        self._markers: list[gates.Marker] = []
        self._passes: dict[Pass, layout_store.Batch | None] | None = None

    @property
    def ended(self) -> str:
        return self._taker.ended

    @property
    def left_behind(self) -> int | None:
        return self._taker.left_behind

    def lots(self, grant: int) -> Iterator[Deliveries]:
        for lot in self._taker.lots(grant):
            keep, closed = self._sift(lot)
            if closed is not None:
                at, gate = closed
                self._taker.end_before(lot, at, seals.ended_at_gate(gate.move, gate.sources))
            rows = lot if keep is None else only(lot, keep)
            if len(rows):
                yield rows
            if closed is not None:
                return

    def _sift(self, lot: Deliveries) -> tuple[list[int] | None, tuple[int, gates.Gate] | None]:
        """The rows to keep, None for all; and where a closed gate ends them."""
        if not any(map(gates.is_control, lot.properties)):
            return None, None
        keep = []
        for at, raw in enumerate(lot.properties):
            found = gates.read(raw)
            if found is None:
                keep.append(at)
            elif isinstance(found, gates.Probe) or found.partitions != self._partitions:
                continue
            elif isinstance(found, gates.Marker):
                if not self._markers:
                    self._taker.sure_before(lot, at)
                self._markers.append(found)
            elif not self._is_open(found):
                return keep, (at, found)
        return keep, None

    def _is_open(self, gate: gates.Gate) -> bool:
        """Markers passed in this batch do not count: its splits are read in parallel."""
        if self._passes is None:
            self._passes = layout_store.recall(self._link, self._partitions).passed
        own = [found for found, batch in self._passes.items() if batch == self._batch]
        return all(
            (gate.move, source) in self._passes and (gate.move, source) not in own for source in gate.sources
        )

    def confirm(self) -> None:
        self._taker.confirm()

    def ack(self) -> None:
        """The rows are sealed by now. A marker that cannot be passed is redelivered, with copies."""
        if self._markers:
            try:
                self._pass()
            except AmqpError:
                self._taker.ack(sure_only=True)
                raise
        self._taker.ack()

    def _pass(self) -> None:
        link = self._publishing()
        try:
            with Publisher(link, timeout=_TIMEOUT) as publisher:
                for marker in self._markers:
                    layout_store.passed(publisher, self._partitions, marker.move, self._queue, self._batch)
        except AmqpError:
            link.abort()  # a blocked broker does not read a close either
            raise

    def give_back(self) -> None:
        self._taker.give_back()
