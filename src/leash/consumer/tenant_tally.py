"""Which tenants a process works for: the heaviest of each lane, by messages and by the time of handlers."""

from __future__ import annotations

import inspect
import threading
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from leash.amqp import read_header
from leash.consumer.clock import SYSTEM, Clock
from leash.consumer.message import Message
from leash.consumer.workers import is_async
from leash.errors import LeashError
from leash.fleet.tenants.tenants import Tenants
from leash.policies.heavy_hitters import HeavyHitters
from leash.units import SECOND

PLACES = 16
"""Tenants counted for each lane: every one with more than a sixteenth of it is among them."""

HALF_LIFE = 30 * SECOND
TOP = 20


@dataclass(frozen=True, slots=True)
class TenantStats:
    """What one tenant had of this process. Older work counts less: half of it after 30 seconds."""

    tenant: str
    """The tenant; empty: messages that name none."""
    lane: str
    """Its lane."""
    messages: float
    """Messages that handlers worked on."""
    seconds: float
    """The time of the handlers."""


@dataclass(frozen=True, slots=True)
class TenantsStats:
    """The tenants of this process, the heaviest by time first, and what all of them had."""

    name: str
    """The name of the tenants' exchange."""
    messages: float
    """Messages of all tenants."""
    seconds: float
    """Time of the handlers, for all tenants."""
    top: tuple[TenantStats, ...]
    """The heaviest, by time or by messages."""


class Tally:
    """Counts around the handler. Handlers may run in many threads."""

    def __init__(self, tenants: Tenants, clock: Clock = SYSTEM) -> None:
        self._name = tenants.name
        self._header = tenants.header
        self._now = clock.now
        self._lock = threading.Lock()
        self._messages = {lane: HeavyHitters[str](PLACES, HALF_LIFE) for lane in tenants.queues}
        self._seconds = {lane: HeavyHitters[str](PLACES, HALF_LIFE) for lane in tenants.queues}

    def around(self, handler: Callable[..., Any]) -> Callable[..., Any]:
        """The same handler, of a message or of a list of them, counted."""

        def plain(work: Message | list[Message]) -> Any:
            begin = self._now()
            returned = None
            try:
                returned = handler(work)
            finally:
                if not inspect.isawaitable(returned):
                    self._count(work, begin)
            return self._awaited(returned, work, begin) if inspect.isawaitable(returned) else returned

        async def asynchronous(work: Message | list[Message]) -> None:
            await self._awaited(handler(work), work, self._now())

        return asynchronous if is_async(handler) else plain

    async def _awaited(self, returned: Awaitable[Any], work: Message | list[Message], begin: int) -> Any:
        try:
            return await returned
        finally:
            self._count(work, begin)

    def _count(self, work: Message | list[Message], begin: int) -> None:
        messages = work if isinstance(work, list) else [work]
        now = self._now()
        each = (now - begin) / SECOND / max(1, len(messages))
        keys = [(message.queue, self._tenant(message)) for message in messages]
        with self._lock:
            for lane, tenant in keys:
                self._messages[lane].add(now, tenant, 1)
                self._seconds[lane].add(now, tenant, each)

    def _tenant(self, message: Message) -> str:
        if self._header is None:
            return message.routing_key
        try:
            value = read_header(message.raw_properties, self._header)
        except LeashError:
            return ""
        return "" if value is None else value if isinstance(value, str) else str(value)

    def stats(self) -> TenantsStats:
        now = self._now()
        with self._lock:
            messages = {(lane, key): n for lane, each in self._messages.items() for key, n in each.top(now)}
            seconds = {(lane, key): n for lane, each in self._seconds.items() for key, n in each.top(now)}
            totals = [sum(each.total for each in all_.values()) for all_ in (self._messages, self._seconds)]
        heaviest = [sorted(each, key=lambda at, of=each: -of[at])[:TOP] for each in (seconds, messages)]  # type: ignore[misc]
        chosen = dict.fromkeys([*heaviest[0], *heaviest[1]])
        top = [
            TenantStats(key, lane, messages.get((lane, key), 0.0), seconds.get((lane, key), 0.0))
            for lane, key in chosen
        ]
        return TenantsStats(self._name, totals[0], totals[1], tuple(top))
