"""Leash: fair, flow-controlled RabbitMQ consuming, for Python workers and for Spark pipelines."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from leash.consumer import Breaker, Consumer, Message, Queue, Retry, Stream
    from leash.fleet import Budget, Tenants
    from leash.partitions import Partitions
    from leash.publisher import Publisher

__version__ = "0.1.0"
__all__ = [
    "Breaker",
    "Budget",
    "Consumer",
    "Message",
    "Partitions",
    "Publisher",
    "Queue",
    "Retry",
    "Stream",
    "Tenants",
]

_ROOMS = {"Budget": "fleet", "Partitions": "partitions", "Publisher": "publisher", "Tenants": "fleet"}


def __getattr__(name: str) -> object:
    # Users of the policies or of Spark do not pay for importing the consumer.
    if name in __all__:
        return getattr(import_module(f"leash.{_ROOMS.get(name, 'consumer')}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
