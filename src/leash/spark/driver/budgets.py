"""Permits for whole batches, taken when a batch is planned: a pipeline and live workers share one limit."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from leash.fleet.budgets.open_budget import Till
from leash.spark import connections
from leash.spark.driver.planner import Planner
from leash.spark.settings import SourceSettings

WAIT = 0.2
"""Seconds in which permits are gathered: the batch gets those that came by then."""


class Budgets:
    """The budgets of one query, opened on first use in the process that plans."""

    def __init__(self, settings: SourceSettings) -> None:
        self._settings = settings
        self._tills: dict[str, Till] = {}
        self.empty = False
        """True if a budget had no permits the last time."""

    def grants(
        self,
        planner: Planner,
        ready: Mapping[str, int],
        clock: Callable[[], int],
        *,
        all_available: bool,
        hurry: bool = False,
    ) -> dict[str, int]:
        """The grant of each queue, with permits for all of it. `hurry`: waits until there are some."""
        while True:
            wanted = planner.wanted(ready, clock(), all_available=all_available, hurry=hurry)
            permits = {name: self._till(name).take_some(count, WAIT) for name, count in wanted.items()}
            self.empty = 0 in permits.values()
            grants = planner.grants(ready, clock(), all_available=all_available, hurry=hurry, permits=permits)
            if grants or not (hurry and self.empty):
                return grants

    def _till(self, name: str) -> Till:
        if name not in self._tills:
            terms = self._settings.budgets[name]
            uri = connections.uri_of(self._settings.broker)
            self._tills[name] = connections.patiently(lambda: Till(terms, uri, report=False))
        return self._tills[name]

    def told(self) -> dict[str, Any]:
        """What was taken from each budget, as a consumer reports it."""
        return {name: till.told() for name, till in self._tills.items()}

    def close(self) -> None:
        for till in self._tills.values():
            till.close()
        self._tills.clear()
