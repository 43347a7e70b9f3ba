"""Numbers about a running consumer, as plain data: for people, metrics and the live table."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from leash.consumer.engine import Engine
from leash.consumer.settings import SECOND

if TYPE_CHECKING:
    from leash.consumer.conductor import Conductor
    from leash.consumer.republish import Republisher
    from leash.flow.lane import LaneState


@dataclass(frozen=True, slots=True)
class QueueStats:
    """Of one queue, since the start unless it says otherwise."""

    name: str
    quantum: int
    tier: int
    depth: int | None
    """Ready at the broker when last looked at."""
    consumers: int
    window: int
    window_reason: str
    buffered: int
    in_work: int
    unsettled: int
    handled: int
    share: float
    """Of the cost of all that was dispatched."""
    target_share: float
    handler_seconds: float
    wait_seconds: float
    """In the buffer, summed over messages; those that leave together count as the first of them."""
    tokens: float | None
    blocked: bool
    connected: bool
    sheds: dict[str, int]
    counts: dict[str, int]
    """failed, retried, parked, rejected, requeued, given back, returned, dropped, lost, ..."""


@dataclass(frozen=True, slots=True)
class Stats:
    queues: dict[str, QueueStats]
    seconds: float
    round_trip: float | None
    connected: bool
    blocked: str | None
    reconnects: int
    republishing: int
    """Failed messages whose copies are not confirmed yet."""
    republish_trouble: str | None
    overdue: int
    """Handlers that came near the consumer timeout."""
    spread: float
    """The worst distance between two lanes with work, in rounds, and what was allowed then."""
    bound: float
    unfair: dict[str, str]


def collect(engine: Engine, conductor: Conductor, republisher: Republisher, began: int) -> Stats:
    now = engine.clock.now()
    flow = engine.flow
    with engine.lock:
        total = sum(lane.charged for lane in flow.lanes.values()) or 1
        quanta = sum(lane.quantum for lane in flow.lanes.values())
        queues = {name: _queue(engine, now, lane, total, quanta) for name, lane in flow.lanes.items()}
        verdicts = flow.watch.verdicts()
        worst = flow.watch.worst_now()
        trip = flow.sidelines.round_trip
    connection = conductor.connection
    return Stats(
        queues,
        (now - began) / SECOND,
        None if trip is None else trip / SECOND,
        connection is not None and not connection.closed,
        None if connection is None else connection.blocked,
        conductor.reconnects,
        republisher.pending,
        republisher.trouble,
        conductor.overdue,
        float(worst.spread),
        float(worst.bound),
        {lane: why for verdict in [worst, *verdicts] for lane, why in verdict.behind.items()},
    )


def _queue(engine: Engine, now: int, lane: LaneState, total: int, quanta: int) -> QueueStats:
    link = engine.links.get(lane.name)
    return QueueStats(
        lane.name,
        lane.quantum,
        lane.tier,
        lane.depth,
        lane.consumers,
        lane.credit,
        lane.reason,
        len(lane.buffer),
        lane.in_work,
        link.ledger.unsettled if link else 0,
        lane.served,
        lane.charged / total,
        lane.quantum / quanta,
        lane.work / SECOND,
        lane.wait / SECOND,
        None if lane.bucket is None else lane.bucket.level(now),
        bool(lane.blocks),
        link is not None,
        {str(kind): count for kind, count in lane.shedder.done.items()},
        dict(engine.counts[lane.name]),
    )
