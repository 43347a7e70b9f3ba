"""What runs beside a consumer while it consumes: the server of its health, its reports to the fleet, and what
tenants need.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from leash.consumer.health import address, serve_health
from leash.consumer.reporting import Reporter
from leash.consumer.stats import Stats
from leash.consumer.tenancy import Tenancy

if TYPE_CHECKING:
    from leash.consumer.consumer import Consumer
    from leash.fleet import Tenants


class Beside:
    """Serves if `health` says where, and reports if `report` is true."""

    def __init__(
        self, consumer: Consumer, health: int | str | None, report: bool, tenants: Tenants | None = None
    ) -> None:
        if health is not None:
            address("health", health)  # report a wrong one now
        self._consumer = consumer
        self._health = health
        self._end: Callable[[], None] | None = None
        self._report = report
        self._reporter: Reporter | None = None
        self.tenancy = None if tenants is None else Tenancy(consumer.settings.uri, tenants)

    def counted(self, handler: Callable[..., Any]) -> Callable[..., Any]:
        """The handler, counted by tenant, if there are tenants."""
        return handler if self.tenancy is None else self.tenancy.tally.around(handler)

    def with_tenants(self, stats: Stats) -> Stats:
        """The statistics, with those of tenants."""
        return stats if self.tenancy is None else replace(stats, tenants=self.tenancy.tally.stats())

    def serve(self) -> None:
        """Before the consumer starts: it is not ready yet, and says so."""
        if self.tenancy is not None:
            self.tenancy.open()
        if self._health is not None:
            self._end = serve_health(self._consumer, self._health)

    def report(self) -> None:
        """Once the consumer has started."""
        if self.tenancy is not None:
            self.tenancy.begin()
        if self._report:
            self._reporter = Reporter(self._consumer)
            self._reporter.start()

    def unserve(self) -> None:
        """Undo `serve`."""
        if self.tenancy is not None:
            self.tenancy.stop()
        self._unserve()

    def _unserve(self) -> None:
        if self._end is not None:
            self._end()
            self._end = None

    def stop(self) -> None:
        """End all; the last report says that the consumer has left."""
        self.unserve()
        if self._reporter is not None:
            self._reporter.stop()

    def leave(self) -> None:
        """The same, without waiting for the last report."""
        if self.tenancy is not None:
            self.tenancy.leave()
        self._unserve()
        if self._reporter is not None:
            self._reporter.leave()
