"""The live consumer: many queues, one fair pool of workers, each message settled exactly once.

consumer.py           the front door
settings.py           its arguments, checked            breaker_settings.py, stream_settings.py
session.py            assembled, started, drained, stopped
signals.py            SIGINT and SIGTERM noted

engine.py             the one lock, where the threads meet
arrivals.py           deliveries into their lanes
costs.py              what a message costs its lane
workers.py            what workers do                   threads.py, tasks.py (the two kinds)
handlers.py           the user's functions              message.py (what they get)
breaker_gate.py       which calls may begin while a handler fails
settle.py             how every delivery ends           ack_ledger.py (acks wait for each other)
take_back.py          messages behind a slow one, given to other workers
overdue.py            handlers that run for too long

failures.py           what becomes of a failed message  retry.py (how often, and when again)
copies.py             its copies                        copy_courier.py (published, confirmed)
failure_log.py        what the log says of it
dead_queue.py         parked messages, read and emptied
rescuing.py           messages near the broker's delivery limit

reconnect.py          all connections                   cut_off_node.py (another one)
one_connection.py     one of them, and its links
link.py               one queue's channel               outbox.py (frames to write)
raw_delivery.py       a delivery as a tuple
inspection.py         queues looked at before consuming
depths.py             how many messages are ready

streams.py            all streams                       stream_lane.py (the thread of one)
stream_link.py        one turn of a stream's lane       stream_rows.py (its messages)
stream_ledger.py      which offset may be stored
partitioned.py        partitions: gates and markers obeyed, queues shared
tenancy.py            tenants: queues adopted           tenant_tally.py (who is noisy)

upkeep.py             what is due every 50 ms
side_services.py      what runs beside: health, reports, tenants
health.py             probes answered over HTTP
reporting.py          reports to the fleet, requests obeyed
stats.py              statistics as plain data          durations.py (histograms)
metrics.py            the same for Prometheus
clock.py              time, or virtual time             deferred_log.py (lines written later)
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from leash.consumer.breaker_settings import Breaker
    from leash.consumer.consumer import Consumer
    from leash.consumer.message import Message
    from leash.consumer.retry import Retry
    from leash.consumer.settings import Queue
    from leash.consumer.stats import BudgetStats, QueueStats, Stats
    from leash.consumer.stream_settings import Stream
    from leash.consumer.tenant_tally import TenantsStats, TenantStats

__all__ = [
    "Breaker",
    "BudgetStats",
    "Consumer",
    "Message",
    "Queue",
    "QueueStats",
    "Retry",
    "Stats",
    "Stream",
    "TenantStats",
    "TenantsStats",
]

_ROOMS = {
    "Breaker": "breaker_settings",
    "BudgetStats": "stats",
    "Consumer": "consumer",
    "Message": "message",
    "Queue": "settings",
    "QueueStats": "stats",
    "Retry": "retry",
    "Stats": "stats",
    "Stream": "stream_settings",
    "TenantStats": "tenant_tally",
    "TenantsStats": "tenant_tally",
}


def __getattr__(name: str) -> object:
    # The command line has its part in here, and `leash --help` is not to load a client.
    if name in _ROOMS:
        return getattr(import_module(f"leash.consumer.{_ROOMS[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
