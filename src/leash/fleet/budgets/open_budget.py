"""A budget in any code: `take` waits for permits of a rate, `hold` for a permit of an `at_once`."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any

from leash.amqp.uri import Uri, parse
from leash.errors import BudgetError, ConfigError
from leash.fleet.budgets.permit_thread import Account, Desk
from leash.fleet.budgets.reporting import TillReports
from leash.fleet.budgets.settings import Terms
from leash.policies.exact_numbers import whole
from leash.policies.permits import Permits
from leash.units import SECOND, nanoseconds


class _Waiter:
    """A caller that needs `cost` permits at once; `wake` is called when it has them."""

    __slots__ = ("cost", "got", "some", "until", "wake")

    def __init__(self, cost: int, wake: Callable[[], object], some: bool = False) -> None:
        self.cost = cost
        self.some = some
        """True if it takes the permits that there are, up to its cost."""
        self.got = 0
        self.wake = wake
        self.until: int | None = None


class Till:
    """An open budget; every method may be called from any thread.

    `Budget.open` returns one. Use it as a context: `with budget.open(uri) as sms: sms.take()`. Callers are
    served in the order of their calls.
    """

    def __init__(self, budget: Terms, uri: str | Uri, name: str = "", *, report: bool = True) -> None:
        place = parse(uri)
        self.budget = budget
        self.permits = Permits(held=budget.at_once is not None)
        self._clock = time.monotonic_ns
        self._lock = threading.Lock()
        self._waiting: deque[_Waiter] = deque()
        self._closed = False
        name = name or f"leash budget {budget.name}"
        self._desk = Desk(place, [Account(budget, self.permits)], self._lock, self._clock, self._serve, name)
        self._size = budget.size
        self._desk.on_numbers = self._numbers
        self._desk.open()
        self._reports = TillReports(place, name, lambda: {budget.name: self.told()}) if report else None
        if self._reports is not None:
            self._reports.start()

    def _numbers(self, terms: Terms) -> None:
        """The budget has these numbers now."""
        with self._lock:
            self._size = terms.size

    @property
    def numbers(self) -> Terms:
        """The budget with the numbers in force."""
        return self._desk.wheels[0].numbers

    def told(self) -> dict[str, Any]:
        """Its numbers and its use by this process, as processes report them."""
        terms, now = self.numbers, self._clock()
        with self._lock:
            permits = self.permits
            waiting = 0 if permits.waits_since is None else max(0, now - permits.waits_since)
            return {
                "rate": None if terms.per_second is None else float(terms.per_second),
                "burst": None if permits.held else terms.size,
                "at_once": terms.at_once,
                "taken": permits.taken,
                "void": permits.void,
                "waited": round((permits.waited + waiting) / SECOND, 3),
                "in_hand": permits.available(now) + permits.at_work,
                "at_work": permits.at_work,
            }

    def __enter__(self) -> Till:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Return unused permits. Callers that still wait get a BudgetError."""
        if self._reports is not None:
            self._reports.stop()
        with self._lock:
            self._closed = True
            for waiter in self._waiting:
                waiter.wake()
        self._desk.close()

    # --- permits of a rate ---

    def take(self, cost: int = 1, timeout: float | None = None) -> bool:
        """Wait for `cost` permits, then go on at once. False: not within `timeout` seconds.

        A cost above the burst is granted when the whole burst is there. This process pays the rest before it
        gets other permits.
        """
        self._need(held=False)
        return self._wait(whole("cost", cost, 1), timeout)

    def take_some(self, most: int, wait: float) -> int:
        """Take the permits that come within `wait` seconds, up to `most`; returns how many."""
        self._need(held=False)
        event = threading.Event()
        waiter = self._join(_Waiter(whole("most", most, 1), event.set, some=True))
        event.wait(wait)
        with self._lock:
            if waiter in self._waiting:
                self._waiting.remove(waiter)
                self._serve()
            return waiter.got

    async def atake(self, cost: int = 1) -> None:
        """The same for an event loop, which is not blocked. Cancel it to stop waiting."""
        self._need(held=False)
        await self._await(whole("cost", cost, 1))

    # --- permits of an `at_once` ---

    def hold(self) -> Hold:
        """Hold a permit of an `at_once` during the work: `with pdf.hold():` or `async with pdf.hold():`."""
        self._need(held=True)
        return Hold(self)

    def acquire(self, timeout: float | None = None) -> bool:
        """Wait for a permit of an `at_once`; `release` returns it. False: not within `timeout` seconds."""
        self._need(held=True)
        return self._wait(1, timeout)

    async def aacquire(self) -> None:
        """The same for an event loop."""
        self._need(held=True)
        await self._await(1)

    def release(self) -> None:
        """Return a permit: the work is done."""
        with self._lock:
            self.permits.release(1)
        self._desk.nudge.set()

    # --- inside ---

    def _need(self, held: bool) -> None:
        if self.permits.held != held:
            raise ConfigError(
                "budget",
                self.budget.name,
                "has at_once: use hold() during the work" if not held else "has a rate: use take()",
            )

    def _wait(self, cost: int, timeout: float | None) -> bool:
        deadline = None if timeout is None else time.monotonic() + nanoseconds("timeout", timeout) / SECOND
        event = threading.Event()
        waiter = self._join(_Waiter(cost, event.set))
        while True:
            left = None if deadline is None else max(0.0, deadline - time.monotonic())
            came = event.wait(left)
            with self._lock:
                if self._granted(waiter):
                    return True
                if not came:
                    self._leave(waiter)
                    return False
                event.clear()

    async def _await(self, cost: int) -> None:
        loop = asyncio.get_running_loop()
        event = asyncio.Event()
        waiter = self._join(_Waiter(cost, lambda: _tell(loop, event)))
        try:
            while True:
                await event.wait()
                event.clear()
                with self._lock:
                    if self._granted(waiter):
                        return
        except asyncio.CancelledError:
            with self._lock:
                self._leave(waiter)
            raise

    def _join(self, waiter: _Waiter) -> _Waiter:
        with self._lock:
            if self._closed:
                raise BudgetError(f"budget {self.budget.name!r} is closed")
            self._waiting.append(waiter)
            self._serve()
        return waiter

    def _granted(self, waiter: _Waiter) -> bool:
        """True if it may go on now. If its permits expired before it woke up, it waits again."""
        if waiter.until is not None and self._clock() < waiter.until:
            return True
        if self._closed:
            raise BudgetError(f"budget {self.budget.name!r} is closed")
        if waiter.until is not None:
            self._undo(waiter)
            self._waiting.appendleft(waiter)
            self._serve()
        return False

    def _leave(self, waiter: _Waiter) -> None:
        if waiter.until is not None:
            self._undo(waiter)
        else:
            self._waiting.remove(waiter)
        self._serve()

    def _undo(self, waiter: _Waiter) -> None:
        assert waiter.until is not None
        self.permits.untake(self._clock(), waiter.got, waiter.until)
        self.permits.debt = max(0, self.permits.debt - (waiter.cost - waiter.got))
        waiter.until, waiter.got = None, 0

    def _serve(self) -> None:
        """Under the lock: give permits to the first callers, and ask for the missing ones."""
        now, size = self._clock(), self._size
        while self._waiting and not self.permits.debt:
            waiter = self._waiting[0]
            if waiter.some:
                some = min(self.permits.available(now), waiter.cost - waiter.got)
                self.permits.take(now, some)
                waiter.got += some
                if waiter.got < waiter.cost:
                    break
                self._waiting.popleft().wake()
                continue
            need = min(waiter.cost, size)
            if self.permits.available(now) < need:
                break
            self._waiting.popleft()
            waiter.until, waiter.got = self.permits.take(now, need), need
            self.permits.debt += waiter.cost - need
            waiter.wake()
        costs = [
            waiter.cost - waiter.got if waiter.some else min(waiter.cost, size) for waiter in self._waiting
        ]
        least = 0 if not costs else 1 if self._waiting[0].some else costs[0]
        self.permits.wants(now, sum(costs), least)
        self._desk.nudge.set()


class Hold:
    """A permit of an `at_once`, from enter to exit."""

    def __init__(self, till: Till) -> None:
        self._till = till

    def __enter__(self) -> None:
        self._till.acquire()

    def __exit__(self, *_: object) -> None:
        self._till.release()

    async def __aenter__(self) -> None:
        await self._till.aacquire()

    async def __aexit__(self, *_: object) -> None:
        self._till.release()


def _tell(loop: asyncio.AbstractEventLoop, event: asyncio.Event) -> None:
    with contextlib.suppress(RuntimeError):  # the loop has ended, and no task waits any more
        loop.call_soon_threadsafe(event.set)
