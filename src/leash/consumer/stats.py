"""Numbers about a running consumer, as plain data: for people, metrics and the live table."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from leash.consumer.engine import Engine
from leash.units import SECOND

if TYPE_CHECKING:
    from leash.consumer.courier import Republisher
    from leash.consumer.reconnect import Connector
    from leash.consumer.upkeep import Upkeep
    from leash.flow.lane import LaneState
    from leash.policies.permits import Permits


@dataclass(frozen=True, slots=True)
class QueueStats:
    """One queue, since the start unless it says otherwise."""

    name: str
    """The queue's name."""
    quantum: int
    """Its share by weight, in messages or cost a round."""
    tier: int
    """Its tier: 0 is served first."""
    depth: int | None
    """Messages ready at the broker when last looked at."""
    consumers: int
    """Consumers of the queue, in all processes, when last looked at."""
    window: int
    """How many messages the broker may send ahead."""
    window_reason: str
    """Why the window is what it is."""
    buffered: int
    """Messages here that no worker has begun."""
    in_work: int
    """Messages in the hands of workers."""
    unsettled: int
    """Messages here that the broker waits to hear about."""
    handled: int
    """Messages that workers were through with, whatever came of it."""
    share: float
    """Its part of the cost of all that was dispatched."""
    target_share: float
    """Its part if all queues always had work."""
    handler_seconds: float
    """Time in handlers."""
    wait_seconds: float
    """Time in the buffer, summed over messages; those that leave together count as the first of them."""
    tokens: float | None
    """What its rate allows at once; below 0 is debt. None without a rate."""
    blocked: bool
    """Whether it sits out: paused, throttled, without a permit of its budget, or in order and busy."""
    connected: bool
    """Whether it is being consumed."""
    sheds: dict[str, int]
    """Standing delays, by what was done: signal, return, drop."""
    counts: dict[str, int]
    """failed, retried, parked, rejected, requeued, given back, returned, dropped, lost, ..."""
    message_bytes: int | None
    """The mean length of its messages' bodies, the last ones counting most; None before the first."""


@dataclass(frozen=True, slots=True)
class BudgetStats:
    """One budget, as this process uses it."""

    taken: int
    """Permits that were used here."""
    void: int
    """Permits that came here and expired before anything could begin with them."""
    waited_seconds: float
    """Time during which a worker was free and messages were here, but no permit."""
    in_hand: int
    """Permits that are here, those of messages at work included for an `at_once`."""
    at_work: int
    """Of an `at_once`: messages at work here."""


@dataclass(frozen=True, slots=True)
class Stats:
    """A running consumer, of this process only."""

    queues: dict[str, QueueStats]
    """Each queue by name."""
    seconds: float
    """Since the start."""
    round_trip: float | None
    """Seconds to the broker and back; None before it was measured."""
    connected: bool
    """Whether there is a connection."""
    blocked: str | None
    """Why the broker takes no messages at the moment, if it does not."""
    reconnects: int
    """Connections that were opened again."""
    republishing: int
    """Failed messages whose copies are not confirmed yet."""
    republish_trouble: str | None
    """Why some of them cannot be copied at the moment."""
    overdue: int
    """Handlers that came near the consumer timeout."""
    spread: float
    """The worst distance between two queues with work, in rounds."""
    bound: float
    """What was allowed then."""
    unfair: dict[str, str]
    """Which queue broke the bound, and why."""
    budgets: dict[str, BudgetStats] = field(default_factory=dict)
    """Each budget by name."""
    host: str = ""
    """The one of the URI's hosts that it is, or was last, connected to."""


def collect(
    engine: Engine, connector: Connector, upkeep: Upkeep, republisher: Republisher, began: int
) -> Stats:
    now = engine.clock.now()
    flow = engine.flow
    with engine.lock:
        total = sum(lane.charged for lane in flow.lanes.values()) or 1
        quanta = sum(lane.quantum for lane in flow.lanes.values())
        queues = {name: _queue(engine, now, lane, total, quanta) for name, lane in flow.lanes.items()}
        verdicts = flow.watch.verdicts()
        worst = flow.watch.worst_now()
        trip = flow.sidelines.round_trip
        budgets = {purse.name: _budget(now, purse.permits) for purse in flow.purses}
    connection = connector.connection
    return Stats(
        queues,
        (now - began) / SECOND,
        None if trip is None else trip / SECOND,
        connection is not None and not connection.closed,
        None if connection is None else connection.blocked,
        connector.reconnects,
        republisher.pending,
        republisher.trouble,
        upkeep.overdue,
        float(worst.spread),
        float(worst.bound),
        {lane: why for verdict in [worst, *verdicts] for lane, why in verdict.behind.items()},
        budgets,
        "" if connection is None else connection.where,
    )


def _budget(now: int, permits: Permits) -> BudgetStats:
    waiting = 0 if permits.waits_since is None else max(0, now - permits.waits_since)
    return BudgetStats(
        permits.taken,
        permits.void,
        (permits.waited + waiting) / SECOND,
        permits.available(now) + permits.at_work,
        permits.at_work,
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
        bool(lane.blocks) or lane.permitless,
        link is not None,
        {str(kind): count for kind, count in lane.shedder.done.items()},
        dict(engine.counts[lane.name]),
        lane.size or None,
    )
