"""`fair` on a real broker, with the real consumer."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from leash.amqp import connect
from leash.amqp.wire import Outgoing
from leash.consumer import Consumer, Message, Queue
from leash.lab import fair
from leash.lab.figures import Progress, Run
from leash.lab.live import TRANSIENT, Enough, fill, plain
from leash.lab.live_seeds import SlotLoop
from leash.lab.proxy import slow_apart
from leash.lab.quiet import timed

SPARE = 1.03
"""Queues hold a little more than is served, so that all are backlogged to the end."""

STARVED = 20 * fair.ROUND


def measure(uri: str, progress: Progress) -> Run:
    run = Run()
    _unit_costs(run, uri, lambda part: progress(0.6 * part))
    _varying_costs(run, uri)
    progress(0.8)
    _small_windows(run, uri)
    progress(1)
    return run


def _unit_costs(run: Run, uri: str, progress: Progress) -> None:
    rounds = int(SPARE * fair.TOTAL / fair.ROUND)
    fill(uri, {name: plain(name, rounds * quantum) for name, quantum in _lanes()})
    served = _consume(uri, fair.TOTAL, progress)
    sent, worst, shares = fair.account([(queue, 1) for queue in served.order], fair.TOTAL)
    fair.fill(run, sent, worst)
    run.values["rate"] = fair.TOTAL / (served.ended - served.began)
    run.series |= {"shares": shares, "deviation": fair.deviation(sent)}


def _varying_costs(run: Run, uri: str) -> None:
    """A message's cost is its size, which depends on its number in the queue."""
    rounds = int(SPARE * fair.VARIED / fair.ROUND)
    fill(uri, {name: _costly(name, rounds * quantum) for name, quantum in _lanes()})
    served = _consume(uri, fair.VARIED, lambda _: None, cost="bytes")
    run.values["varying costs: spread"] = fair.account(fair.costs_in_order(served.order), fair.VARIED)[1]


def _small_windows(run: Run, uri: str) -> None:
    run.series["starved"] = gains = timed(run, partial(_published, uri))
    run.values["small window, as published: p0's gain"] = gains[0]
    fill(uri, {name: plain(name, 40 * quantum) for name, quantum in _lanes()})
    served = _consume(uri, STARVED, lambda _: None, window=fair.TINY)
    run.values["small window, Leash: spread"] = fair.account([(lane, 1) for lane in served.order], STARVED)[1]


def _published(uri: str) -> list[float]:
    """Each queue's gain in the document's loop, behind a slow network."""
    fill(uri, {name: plain(name, 40 * quantum) for name, quantum in _lanes()})
    with slow_apart(uri, fair.SLOW_WIRE / 1e9) as far, connect(far, name="lab") as connection:
        loop = SlotLoop(connection, fair.NAMES, fair.QUANTA, fair.SMALL)
        loop.run(STARVED, fair.SLOW_SERVICE / 1e9)
    _empty(uri)
    return fair.deviation(loop.served)


def _consume(
    uri: str, total: int, progress: Progress, cost: str = "count", window: int | None = None
) -> Enough:
    served = Enough(total)
    queues = [Queue(name, quantum, window=window or "auto") for name, quantum in _lanes()]
    consumer = Consumer(uri, queues, cost=cost)

    @consumer.handler
    def handle(message: Message) -> None:
        served.add(message.queue)

    with consumer:
        served.wait(180, progress)
    _empty(uri)
    return served


def _empty(uri: str) -> None:
    from leash.amqp.topology import purge_queue

    with connect(uri, name="lab") as connection, connection.channel() as channel:
        for name in fair.NAMES:
            purge_queue(channel, name)


def _costly(name: str, count: int) -> Iterator[Outgoing]:
    return (Outgoing(b"x" * fair.cost_of(number), "", name, TRANSIENT) for number in range(count))


def _lanes() -> Iterator[tuple[str, int]]:
    return zip(fair.NAMES, fair.QUANTA, strict=True)
