"""Leash: fair, flow-controlled RabbitMQ consuming, for Python workers and for Spark pipelines."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from leash.consumer import Consumer, Message, Queue, Retry, Stream
    from leash.fleet import Budget
    from leash.partitions import Partitions
    from leash.publisher import Publisher

__version__ = "0.1.0"
__all__ = ["Budget", "Consumer", "Message", "Partitions", "Publisher", "Queue", "Retry", "Stream"]

_ROOMS = {"Budget": "fleet", "Partitions": "partitions", "Publisher": "publisher"}


def __getattr__(name: str) -> object:
    # Users of the policies or of Spark do not pay for importing the consumer.
    if name in __all__:
        return getattr(import_module(f"leash.{_ROOMS.get(name, 'consumer')}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
