"""A consumer's Prometheus metrics, read from `consumer.stats()` at every scrape."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from itertools import accumulate
from typing import TYPE_CHECKING

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from leash.consumer.durations import BOUNDS, Times
from leash.consumer.stats import BudgetStats, QueueStats, Stats
from leash.errors import ConfigError
from leash.units import SECOND

if TYPE_CHECKING:
    from leash.consumer.consumer import Consumer

_Read = Callable[[QueueStats], float | None]

_GAUGES: dict[str, tuple[str, _Read]] = {
    "leash_quantum": ("Its share by weight, in messages or cost per round", lambda q: q.quantum),
    "leash_share": ("Its share of the cost of all dispatched messages", lambda q: q.share),
    "leash_target_share": ("Its share if all queues always had work", lambda q: q.target_share),
    "leash_ready": ("Messages waiting at the broker when last looked at", lambda q: q.depth),
    "leash_window": ("Messages that the broker may send ahead", lambda q: q.window),
    "leash_buffered": ("Messages here that no worker has begun", lambda q: q.buffered),
    "leash_in_work": ("Messages in the hands of workers", lambda q: q.in_work),
    "leash_unsettled": ("Messages delivered here and not settled yet", lambda q: q.unsettled),
    "leash_unsettled_bytes": (
        "Estimated length of their bodies, by the mean of recent ones",
        lambda q: q.unsettled * (q.message_bytes or 0),
    ),
    "leash_tokens": ("What its rate allows at once; below 0 is debt", lambda q: q.tokens),
    "leash_sitting_out": (
        "1 while it is paused, throttled, failing, or ordered and busy",
        lambda q: q.blocked,
    ),
    "leash_breaker_open": (
        "1 while its breaker is not closed",
        lambda q: q.breaker != "closed" if q.breaker else None,
    ),
    "leash_queue_connected": ("1 while it is being consumed", lambda q: q.connected),
}
_COUNTERS: dict[str, tuple[str, _Read]] = {
    "leash_handled": ("Messages that workers finished, whatever the outcome", lambda q: q.handled),
    "leash_handler_seconds": ("Time in handlers", lambda q: q.handler_seconds),
    "leash_buffer_wait_seconds": ("Time that messages waited here for a worker", lambda q: q.wait_seconds),
    "leash_failed": ("Messages whose handler raised", lambda q: q.counts.get("failed", 0)),
    "leash_retried": ("Messages sent to wait for another try", lambda q: q.counts.get("retried", 0)),
    "leash_excused": ("Failures that used up no try", lambda q: q.counts.get("excused", 0)),
    "leash_put_off": ("Retries that a retry budget put off", lambda q: q.counts.get("put off", 0)),
    "leash_breaker_opened": ("How often its breaker opened", lambda q: q.counts.get("opened", 0)),
    "leash_parked": ("Messages given up on and parked", lambda q: q.counts.get("parked", 0)),
}
_HISTOGRAMS: dict[str, tuple[str, Callable[[QueueStats], Times]]] = {
    "leash_wait_duration_seconds": ("How long a message waited here for a worker", lambda q: q.waited),
    "leash_handler_duration_seconds": ("How long a message's handler took", lambda q: q.handled_in),
}
_NAMED = ("failed", "excused", "retried", "put off", "opened", "parked")


class ConsumerCollector(Collector):
    """For a registry of your own: `registry.register(ConsumerCollector(consumer))`."""

    def __init__(self, consumer: Consumer) -> None:
        self._consumer = consumer

    def collect(self) -> Iterator[Metric]:
        try:
            stats = self._consumer.stats()
        except ConfigError:
            yield GaugeMetricFamily("leash_connected", "1 while there is a connection", 0)
            return
        yield from families(stats)


def families(stats: Stats) -> Iterator[Metric]:
    """Every metric, with what these numbers say."""
    yield from _of_consumer(stats)
    queues = list(stats.queues.values())
    for name, (text, read) in _GAUGES.items():
        gauge = GaugeMetricFamily(name, text, labels=["queue"])
        for queue in queues:
            value = read(queue)
            if value is not None:
                gauge.add_metric([queue.name], float(value))
        yield gauge
    for name, (text, read) in _COUNTERS.items():
        counter = CounterMetricFamily(name, text, labels=["queue"])
        for queue in queues:
            counter.add_metric([queue.name], float(read(queue) or 0))
        yield counter
    for name, (text, times) in _HISTOGRAMS.items():
        histogram = HistogramMetricFamily(name, text, labels=["queue"])
        for queue in queues:
            counts, seconds = times(queue)
            histogram.add_metric([queue.name], _cumulative(counts), seconds)
        yield histogram
    yield from _by_kind(queues)


def _cumulative(counts: tuple[int, ...]) -> list[tuple[str, int]]:
    """As Prometheus wants them: each bucket holds what the smaller ones do."""
    names = [str(bound / SECOND) for bound in BOUNDS] + ["+Inf"]
    return list(zip(names, accumulate(counts), strict=True))


def _of_consumer(stats: Stats) -> Iterator[Metric]:
    def gauge(name: str, text: str, value: float | None) -> GaugeMetricFamily:
        return GaugeMetricFamily(name, text, value=value)

    yield gauge("leash_connected", "1 while there is a connection", stats.connected)
    yield gauge("leash_broker_blocked", "1 while the broker takes no messages", stats.blocked is not None)
    if stats.round_trip is not None:
        yield gauge("leash_round_trip_seconds", "Round trip to the broker", stats.round_trip)
    yield gauge(
        "leash_spread_rounds", "Largest distance between two queues with work, in rounds", stats.spread
    )
    yield gauge("leash_spread_bound_rounds", "The largest spread that fairness allows", stats.bound)
    yield gauge("leash_republishing", "Failed messages whose copy is not confirmed", stats.republishing)
    yield from _of_budgets(stats)
    for name, text, value in (
        ("leash_reconnects", "Connections that were opened again", stats.reconnects),
        ("leash_handlers_overdue", "Handlers that came near the broker's timeout", stats.overdue),
    ):
        yield CounterMetricFamily(name, text, value=value)


def _of_budgets(stats: Stats) -> Iterator[Metric]:
    hand = GaugeMetricFamily("leash_budget_in_hand", "Permits of a budget in this process", labels=["budget"])
    counters: tuple[tuple[str, str, Callable[[BudgetStats], float]], ...] = (
        ("leash_budget_taken", "Permits of a budget that this process used", lambda b: b.taken),
        ("leash_budget_void", "Permits of a budget that expired unused in this process", lambda b: b.void),
        (
            "leash_budget_waited_seconds",
            "Time during which there was work, but no permit of its budget",
            lambda b: b.waited_seconds,
        ),
    )
    for name, budget in stats.budgets.items():
        hand.add_metric([name], budget.in_hand)
    yield hand
    for metric, text, read in counters:
        counter = CounterMetricFamily(metric, text, labels=["budget"])
        for name, budget in stats.budgets.items():
            counter.add_metric([name], float(read(budget)))
        yield counter


def _by_kind(queues: list[QueueStats]) -> Iterator[Metric]:
    reason = GaugeMetricFamily(
        "leash_window_reason", "Why the window is what it is", labels=["queue", "reason"]
    )
    sheds = CounterMetricFamily(
        "leash_sheds", "Standing delays, by what was done: signal, return, drop", labels=["queue", "kind"]
    )
    settled = CounterMetricFamily(
        "leash_settled", "Messages that did not end by a plain ack", labels=["queue", "outcome"]
    )
    for queue in queues:
        # Numbers in a label would make a new series at every change.
        reason.add_metric([queue.name, re.sub(r"\d+(\.\d+)?", "N", queue.window_reason)], 1)
        for kind, count in queue.sheds.items():
            if kind != "none":
                sheds.add_metric([queue.name, kind], count)
        for outcome, count in queue.counts.items():
            if outcome not in _NAMED:
                settled.add_metric([queue.name, outcome], count)
    yield from (reason, sheds, settled)
