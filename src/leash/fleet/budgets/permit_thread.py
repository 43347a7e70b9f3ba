"""The thread that fetches permits: for a consumer, a Spark driver, or any code that opened a budget.

It has its own connection. A lost one is opened again; a wheel that was deleted is looked up again, or
replaced. Until then there are no permits, so the bound holds.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable
from typing import NamedTuple

from leash.amqp import Connection, connect
from leash.amqp.uri import Uri
from leash.backoff import Backoff
from leash.errors import AmqpError, LeashError
from leash.fleet.budgets import lifecycle
from leash.fleet.budgets.settings import Terms
from leash.fleet.budgets.state_at_broker import card_queue, ready
from leash.fleet.budgets.take_tokens import Gone, Wheel
from leash.fleet.budgets.token_census import Census
from leash.logfmt import logger
from leash.policies.permits import Permits
from leash.units import SECOND

log = logger("leash.fleet")

AGAIN = (0.1, 5.0)
"""Seconds from one try to the next: the first wait and the longest."""

CHECK = 5.0
"""Seconds after which the card of a wheel in use is checked again."""

_IDLE = 1.0


class Account(NamedTuple):
    """A budget, and its permits in this process."""

    budget: Terms
    permits: Permits


class Desk:
    """Calls `changed` under `lock` when permits came. Set `nudge` when more are wanted or some were spent."""

    def __init__(
        self,
        uri: Uri,
        accounts: Iterable[Account],
        lock: threading.Lock,
        clock: Callable[[], int],
        changed: Callable[[], object],
        name: str,
    ) -> None:
        self._uri = uri
        self._name = name
        self._lock = lock
        self.nudge = threading.Event()
        self.on_numbers: Callable[[Terms], object] = lambda _: None
        """Called with the numbers in force, in the desk's thread, whenever a wheel is joined."""
        self.wheels = [
            Wheel(each.budget, each.permits, lock, clock, changed, self.nudge) for each in accounts
        ]
        self._connection: Connection | None = None
        self._side: Connection | None = None
        self._checked: dict[Wheel, float] = {}
        self._census: dict[Wheel, Census] = {}
        self._trouble: dict[Wheel, tuple[Backoff, float]] = {}
        self._left = threading.Event()
        self._thread = threading.Thread(target=self._run, name="leash-budgets", daemon=True)

    def open(self) -> None:
        """Connect and join every budget; every error is raised to the caller."""
        try:
            connection = self._connect()
            for wheel in self.wheels:
                self._join(connection, wheel)
        except BaseException:
            if self._connection is not None:
                self._connection.close()
            raise
        self._thread.start()

    def close(self) -> None:
        """Return unused permits, and leave."""
        self._left.set()
        self.nudge.set()
        if self._thread.ident is not None:
            self._thread.join(10.0)
        for connection in (self._connection, self._side):
            if connection is not None:
                connection.close()

    def abandon(self) -> None:
        """Leave at once, as a crash would."""
        self._left.set()
        self.nudge.set()
        for connection in (self._connection, self._side):
            if connection is not None:
                connection.abort()

    def _connect(self) -> Connection:
        self._connection = connect(self._uri, name=f"{self._name} budgets")
        return self._connection

    def _join(self, connection: Connection, wheel: Wheel) -> None:
        card = lifecycle.join(connection, wheel.budget)
        wheel.attach(connection, card)
        self._checked[wheel] = time.monotonic()
        self._census[wheel] = Census(wheel, card)
        self._trouble.pop(wheel, None)
        self.on_numbers(wheel.numbers)
        self.nudge.set()

    # --- the thread ---

    def _run(self) -> None:
        backoff = Backoff(*AGAIN)
        while not self._left.is_set():
            try:
                wait = self._turn()
                backoff.reset()
            except LeashError as error:
                pause = backoff.next()
                log.warning("event=budgets_interrupted reason=%r wait=%.1f", str(error), pause)
                if self._connection is not None:
                    self._connection.abort()
                self._left.wait(pause)
                continue
            except Exception:
                log.exception("event=budgets_failed")
                self._left.wait(1.0)
                continue
            self.nudge.wait(wait)
            self.nudge.clear()

    def _turn(self) -> float:
        connection = self._connection
        if connection is None or connection.closed:
            connection = self._connect()
            for wheel in self.wheels:
                wheel.detach()
            log.info("event=budgets_connected host=%r", connection.where)
        wait = _IDLE
        for wheel in self.wheels:
            due = self._look_after(connection, wheel)
            wait = min(wait, due)
        return wait

    def _look_after(self, connection: Connection, wheel: Wheel) -> float:
        now = time.monotonic()
        if wheel in self._trouble and now < self._trouble[wheel][1]:
            return self._trouble[wheel][1] - now
        try:
            if wheel.permits.short and now - self._checked.get(wheel, 0.0) >= CHECK:
                self._check(connection, wheel)
            due = wheel.turn()
            return _IDLE if due is None else due / SECOND
        except Gone:
            if self._left.is_set() or connection.closed:
                return 0.0
            wheel.detach()
            try:
                self._join(connection, wheel)
            except AmqpError:
                raise
            except LeashError as error:  # it concerns this budget only: the others go on
                backoff = self._trouble.get(wheel, (Backoff(*AGAIN), 0.0))[0]
                pause = backoff.next()
                self._trouble[wheel] = (backoff, now + pause)
                log.warning("event=no_permits budget=%r reason=%r", wheel.budget.name, str(error))
            return 0.0

    def _check(self, connection: Connection, wheel: Wheel) -> None:
        """Restore a card that was removed while its wheel is in use. Gone: the budget was deleted."""
        name, card = wheel.budget.name, wheel.card
        assert card is not None
        count = ready(connection, card_queue(name))
        if count is None:
            raise Gone
        if count == 0:
            lifecycle.put_back_card(connection, name, card)
        self._checked[wheel] = time.monotonic()
        try:
            lost = self._census[wheel].take(self._second())
        except AmqpError as error:  # nothing depends on it
            log.debug("event=census_failed budget=%r reason=%r", name, str(error))
            return
        if lost:
            lifecycle.renew(connection, name, card)
            raise Gone

    def _second(self) -> Connection:
        """A second connection, for publishing: an alarm may block it, but must not block takes."""
        if self._side is None or self._side.closed:
            self._side = connect(self._uri, name=f"{self._name} census")
        return self._side
