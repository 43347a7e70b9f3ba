"""What runs beside a consumer while it consumes: the server of its health, and its reports to the fleet."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from leash.consumer.health import address, serve_health
from leash.consumer.reporting import Reporter

if TYPE_CHECKING:
    from leash.consumer.consumer import Consumer


class Beside:
    """Serves if `health` says where, and reports if `report` is true."""

    def __init__(self, consumer: Consumer, health: int | str | None, report: bool) -> None:
        if health is not None:
            address("health", health)  # report a wrong one now
        self._consumer = consumer
        self._health = health
        self._end: Callable[[], None] | None = None
        self._report = report
        self._reporter: Reporter | None = None

    def serve(self) -> None:
        """Before the consumer starts: it is not ready yet, and says so."""
        if self._health is not None:
            self._end = serve_health(self._consumer, self._health)

    def report(self) -> None:
        """Once the consumer has started."""
        if self._report:
            self._reporter = Reporter(self._consumer)
            self._reporter.start()

    def unserve(self) -> None:
        if self._end is not None:
            self._end()
            self._end = None

    def stop(self) -> None:
        """End both; the last report says that the consumer has left."""
        self.unserve()
        if self._reporter is not None:
            self._reporter.stop()

    def leave(self) -> None:
        """The same, without waiting for the last report."""
        self.unserve()
        if self._reporter is not None:
            self._reporter.leave()
