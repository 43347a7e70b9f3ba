"""What a consumer is made of when it starts; `leash.testing` puts in parts that need no broker."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from leash.consumer.clock import SYSTEM, Clock
from leash.consumer.conductor import Conductor
from leash.consumer.engine import Engine
from leash.consumer.republish import Republisher
from leash.consumer.workers import AsyncPool, Batch, Failed, Pool, ThreadPool, is_async


def pool(
    engine: Engine, handler: Callable[..., Any], count: int, batch: Batch | None, failed: Failed
) -> Pool:
    """Threads for `def`, one event loop for `async def`."""
    return (AsyncPool if is_async(handler) else ThreadPool)(engine, handler, count, batch, failed)


class Parts(NamedTuple):
    clock: Clock = SYSTEM
    engine: Callable[..., Engine] = Engine
    republisher: Callable[..., Republisher] = Republisher
    pool: Callable[..., Pool] = pool
    conductor: Callable[..., Conductor] = Conductor


LIVE = Parts()
