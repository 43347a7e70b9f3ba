"""The live consumer: many queues, one fair pool of workers, each message settled exactly once."""

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
    from leash.consumer.tally import TenantsStats, TenantStats

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
    "TenantStats": "tally",
    "TenantsStats": "tally",
}


def __getattr__(name: str) -> object:
    # The command line has its part in here, and `leash --help` is not to load a client.
    if name in _ROOMS:
        return getattr(import_module(f"leash.consumer.{_ROOMS[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
