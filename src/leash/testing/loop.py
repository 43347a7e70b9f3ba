"""An event loop in virtual time: when nothing is left to do now, the next timer fires at once.

Threads that a handler starts on the loop's executor are waited for in real time; meanwhile the virtual clock
stands still.
"""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Callable
from typing import Any

from leash.consumer.clock import Clock

EPOCH = 1_700_000_000.0
"""The wall clock's start, so that timestamps are the same in every run."""


class VirtualLoop(asyncio.SelectorEventLoop):
    """Time is whole nanoseconds from 0, and advances only in `_Selector.select`."""

    def __init__(self) -> None:
        self.ns = 0
        self.outside = 0
        super().__init__(_Selector(self))
        self._clock_resolution = 1e-9
        self.clock = Clock(lambda: self.ns, lambda: EPOCH + self.ns / 1e9)

    def time(self) -> float:
        return self.ns / 1e9

    def later(self, ns: int, action: Callable[[], None]) -> None:
        """Call `action` after `ns`; with 0, after the callbacks that are already due."""
        if ns:
            self.call_later(ns / 1e9, action)
        else:
            self.call_soon(action)

    def run_in_executor(  # type: ignore[override]
        self, executor: Any, func: Callable[..., Any], *args: Any
    ) -> Any:
        future = super().run_in_executor(executor, func, *args)
        self.outside += 1
        future.add_done_callback(self._back)
        return future

    def _back(self, _: object) -> None:
        self.outside -= 1


class _Selector(selectors.DefaultSelector):
    def __init__(self, loop: VirtualLoop) -> None:
        super().__init__()
        self._loop = loop

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        # With nothing planned, or a thread at work, wait in real time.
        real = timeout is None or (self._loop.outside and timeout > 0)
        events = super().select(None if real else 0)
        if not events and timeout:
            self._loop.ns += max(1, round(timeout * 1e9))
        return events
