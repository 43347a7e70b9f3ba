"""A running consumer's statistics as plain data: for people, metrics and the live table."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from leash.amqp.properties import decode_properties
from leash.consumer.durations import NONE, Durations, Times, merged
from leash.consumer.engine import Engine
from leash.consumer.raw_delivery import ARRIVED, PROPERTIES, Raw
from leash.consumer.tenant_tally import TenantsStats
from leash.errors import LeashError
from leash.flow.lane import BUSY, OPEN, PARKING, PAUSED, THROTTLED, WAITING
from leash.units import SECOND

if TYPE_CHECKING:
    from leash.consumer.copy_courier import Republisher
    from leash.consumer.reconnect import Connector
    from leash.consumer.upkeep import Upkeep
    from leash.flow.budgets import Purse
    from leash.flow.lane import LaneState

_AT_ONCE = 200
_WHY = {
    PAUSED: "paused",
    OPEN: "breaker open",
    THROTTLED: "throttled",
    PARKING: "parking",
    WAITING: "waiting",
    BUSY: "busy",
}


@dataclass(frozen=True, slots=True)
class QueueStats:
    """The statistics of one queue, since the start unless stated otherwise."""

    name: str
    """The queue's name."""
    quantum: int
    """Its share by weight, in messages or cost per round."""
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
    """Messages delivered here and not settled yet."""
    handled: int
    """Messages that workers finished, whatever the outcome."""
    share: float
    """Its share of the cost of all dispatched messages."""
    target_share: float
    """Its share if all queues always had work."""
    handler_seconds: float
    """Seconds in handlers."""
    wait_seconds: float
    """Seconds in the buffer, summed over messages; a group that leaves together counts as its first."""
    tokens: float | None
    """What its rate allows at once; below 0 is debt. None without a rate."""
    blocked: bool
    """True if it sits out: paused, throttled, without a permit, ordered and busy, or with an open breaker."""
    connected: bool
    """True if it is being consumed, or is a stream that another process consumes until it ends."""
    sheds: dict[str, int]
    """Standing delays, by what was done: signal, return, drop."""
    counts: dict[str, int]
    """Messages by event: failed, excused, retried, delayed, put off, parked, rejected, requeued, given back,
    returned, dropped, lost."""
    message_bytes: int | None
    """The mean length of its message bodies, weighted towards recent ones; None before the first."""
    why: str = ""
    """Why it sits out: paused, throttled, breaker open, busy (in order), waiting (for its next try), parking,
    no permit."""
    resumes: float | None = None
    """Seconds until it is no longer throttled, or until its next try or probe is due; else None."""
    oldest: float | None = None
    """Age in seconds of the first message here that no worker has begun; None if there is none."""
    running: float | None = None
    """Seconds for which its longest-running handler has been running; None if none runs."""
    rate: float | None = None
    """Messages per second that it may take; None: no limit."""
    waited: Times = NONE
    """How long messages waited here for a worker: how many within 1 ms, 5 ms, ... 300 s, and more."""
    handled_in: Times = NONE
    """How long handlers took, in the same form."""
    breaker: str = ""
    """The state of its breaker: closed, open or half-open; empty if it has none."""
    budgets: tuple[str, ...] = ()
    """The budgets of which each of its messages needs a permit."""
    cost: int = 0
    """What its dispatched messages cost: their number, or their bytes, nanoseconds, ..."""


class ErrorStats(NamedTuple):
    """One kind of failure in one queue."""

    queue: str
    """The queue's name."""
    error: str
    """The latest one, as text."""
    times: int
    """How often it happened."""
    message_id: str | None
    """The message ID of the latest one."""
    tries: int
    """How often that message has been tried."""
    at: float
    """When the latest one happened, in seconds since 1970."""


@dataclass(frozen=True, slots=True)
class BudgetStats:
    """The statistics of one budget, in this process only."""

    taken: int
    """Permits that were used."""
    void: int
    """Permits that expired before they were used."""
    waited_seconds: float
    """Time during which there were messages and a free worker, but no permit."""
    in_hand: int
    """Permits that this process holds; for an `at_once`, including those of messages in work."""
    at_work: int
    """Messages in work, for an `at_once`."""
    rate: float | None = None
    """Permits per second for all processes, as the budget has it now; None for an `at_once`."""
    burst: int | None = None
    """Its burst, as the budget has it now; None for an `at_once`."""
    at_once: int | None = None
    """How many messages all processes may work on at the same time; None for a rate."""


@dataclass(frozen=True, slots=True)
class Stats:
    """The statistics of a running consumer, in this process only."""

    queues: dict[str, QueueStats]
    """The queues, by name."""
    seconds: float
    """Seconds since the start."""
    round_trip: float | None
    """Round trip to the broker in seconds; None before it is measured."""
    connected: bool
    """True if there is a connection."""
    blocked: str | None
    """Why the broker takes no messages now; None if it does."""
    reconnects: int
    """Connections that were opened again."""
    republishing: int
    """Failed messages whose copies are not confirmed yet."""
    republish_trouble: str | None
    """Why some of them cannot be copied now."""
    overdue: int
    """Handlers that came near the consumer timeout."""
    spread: float
    """The largest distance between two queues with work, in rounds."""
    bound: float
    """The largest distance that fairness allowed then."""
    unfair: dict[str, str]
    """Which queue broke the bound, and why."""
    budgets: dict[str, BudgetStats] = field(default_factory=dict)
    """The budgets, by name."""
    host: str = ""
    """The host of the URI that it is, or was last, connected to."""
    stopping: bool = False
    """True if it was told to stop."""
    errors: tuple[ErrorStats, ...] = ()
    """Failures by queue and type of error, up to 50 of them, the latest last."""
    tenants: TenantsStats | None = None
    """Who is noisy, for a consumer of tenants."""


def collect(
    engine: Engine, connector: Connector, upkeep: Upkeep, republisher: Republisher, began: int
) -> Stats:
    now = engine.clock.now()
    flow = engine.flow
    with engine.lock:
        total = sum(lane.charged for lane in flow.lanes.values()) or 1
        quanta = sum(lane.quantum for lane in flow.lanes.values())
        running = upkeep.overdue.running(now)
        verdicts = flow.watch.verdicts()
        worst = flow.watch.worst_now()
        trip = flow.sidelines.round_trip
        errors = tuple(ErrorStats(queue, *each) for (queue, _), each in engine.errors.items())
        budgets = {purse.name: _budget(now, purse) for purse in flow.purses}
    queues = {}
    names = list(flow.lanes)
    for at in range(0, len(names), _AT_ONCE):  # the lock is for everybody
        with engine.lock:
            for name in names[at : at + _AT_ONCE]:
                lane, durations = flow.lanes[name], upkeep.durations(name)
                queues[name] = _queue(engine, now, lane, total, quanta, running.get(name), durations)
    connection = connector.connection
    return Stats(
        queues,
        (now - began) / SECOND,
        None if trip is None else trip / SECOND,
        connector.whole,
        next((each.blocked for each in connector.connections if each.blocked is not None), None),
        connector.reconnects,
        republisher.pending,
        republisher.trouble,
        upkeep.overdue.count,
        float(worst.spread),
        float(worst.bound),
        {lane: why for verdict in [worst, *verdicts] for lane, why in verdict.behind.items()},
        budgets,
        "" if connection is None else connection.where,
        engine.stopping,
        errors,
    )


def _budget(now: int, purse: Purse) -> BudgetStats:
    permits = purse.permits
    waiting = 0 if permits.waits_since is None else max(0, now - permits.waits_since)
    return BudgetStats(
        permits.taken,
        permits.void,
        (permits.waited + waiting) / SECOND,
        permits.available(now) + permits.at_work,
        permits.at_work,
        None if purse.rate is None else float(purse.rate),
        None if permits.held else purse.size,
        purse.size if permits.held else None,
    )


def _queue(
    engine: Engine,
    now: int,
    lane: LaneState,
    total: int,
    quanta: int,
    running: int | None,
    durations: list[Durations],
) -> QueueStats:
    link = engine.links.get(lane.name)
    circuit = engine.gate.circuits.get(lane.name) if engine.gate is not None else None
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
        link.connected if link is not None else lane.name in engine.standby,
        {str(kind): count for kind, count in lane.shedder.done.items()},
        dict(engine.counts[lane.name]),
        lane.size or None,
        _why(lane),
        _resumes(now, lane),
        _oldest(engine, now, lane),
        None if running is None else running / SECOND,
        None if lane.bucket is None else float(lane.bucket.rate),
        merged(each.waited for each in durations),
        merged(each.handled for each in durations),
        circuit.state if circuit else "",
        lane.spec.budgets,
        lane.charged,
    )


def _why(lane: LaneState) -> str:
    for block, name in _WHY.items():
        if lane.blocks & block:
            return name
    return "no permit" if lane.permitless else ""


def _resumes(now: int, lane: LaneState) -> float | None:
    if lane.blocks & OPEN and lane.probe_at is not None:
        return max(0, lane.probe_at - now) / SECOND
    if lane.blocks & THROTTLED and lane.bucket is not None:
        return lane.bucket.wait(now) / SECOND
    if lane.blocks & WAITING and lane.wakes is not None:
        return max(0, lane.wakes - now) / SECOND
    return None


def _oldest(engine: Engine, now: int, lane: LaneState) -> float | None:
    """By its timestamp, if its publisher gave one; else since it arrived here."""
    if not lane.buffer:
        return None
    raw: Raw = lane.buffer[0][0]
    try:
        stamp = decode_properties(raw[PROPERTIES]).timestamp
    except LeashError:
        stamp = None
    if stamp is None:
        return (now - raw[ARRIVED]) / SECOND
    return max(0.0, engine.clock.wall() - stamp.timestamp())
