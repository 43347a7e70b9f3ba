"""Between workers and the handler: which calls may begin while it fails, and what their ends say.

Only queues with a breaker or a retry budget have one. A message that may not begin goes back to its lane, or,
for want of a retry, to its retry queue; neither counts as a try. An ordered lane has one message in work and
cannot tell a bad one from an outage, so the ordered queues of one handler share a circuit.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Iterable
from typing import Any

from leash.consumer.engine import Engine
from leash.consumer.failures import Failures
from leash.consumer.message import Message
from leash.consumer.settings import Queue, Settings
from leash.consumer.settle import Outcome
from leash.flow import failing_lanes
from leash.policies.breaker import Circuit, Turn
from leash.policies.retry_budget import RetryBudget
from leash.units import SECOND


def gate_of(settings: Settings, engine: Engine, failures: Failures) -> Gate | None:
    """The gate of one consumer; None if no queue needs one."""
    gate = Gate(engine, failures)
    for queue in settings.queues:
        gate.add(settings, queue)
    return gate if gate.needed else None


class Gate:
    """The gate of one consumer. Its methods take the engine's lock."""

    def __init__(self, engine: Engine, failures: Failures) -> None:
        self._engine = engine
        self._failures = failures
        self.circuits: dict[str, Circuit] = {}
        self._shared: dict[tuple[object, ...], Circuit] = {}
        self._budgets: dict[str, RetryBudget] = {}

    def add(self, settings: Settings, queue: Queue) -> None:
        """From now on, messages of this queue pass it."""
        breaker, share = settings.breaker_of(queue), settings.retry_of(queue.name).budget
        if breaker is not None:
            circuit = breaker.circuit()
            if queue.ordered:
                circuit = self._shared.setdefault((breaker, settings.sharing.get(queue.name)), circuit)
            self.circuits[queue.name] = circuit
        if share is not None:
            self._budgets[queue.name] = RetryBudget(share)

    @property
    def needed(self) -> bool:
        return bool(self.circuits or self._budgets)

    # --- around the handler ---

    def around(self, handler: Callable[[Any], Any], finish: Callable[[Any], None]) -> Callable[[Any], None]:
        """A handler for workers that are threads; `finish` waits for what it returns."""

        def call(given: Any) -> None:
            turns, allowed = self._begin(given)
            if turns:
                try:
                    result = handler(allowed)
                    if result is not None:
                        finish(result)
                except BaseException as error:
                    self._failed(turns, error)
                    raise
                self._succeeded(turns)

        return call

    def around_async(self, handler: Callable[[Any], Awaitable[object]]) -> Callable[[Any], Awaitable[None]]:
        async def call(given: Any) -> None:
            turns, allowed = self._begin(given)
            if turns:
                try:
                    await handler(allowed)
                except BaseException as error:
                    self._failed(turns, error)
                    raise
                self._succeeded(turns)

        return call

    # --- before a call ---

    def _begin(self, given: Message | list[Message]) -> tuple[list[tuple[Message, Turn]], Any]:
        """What of it may begin, and as what; the rest goes back."""
        if isinstance(given, Message):
            turn = self._turn(given)
            return [] if turn is Turn.NO else [(given, turn)], given
        turns = [(message, self._turn(message)) for message in given]
        turns = [each for each in turns if each[1] is not Turn.NO]
        return turns, [message for message, _ in turns]

    def _turn(self, message: Message) -> Turn:
        queue = message.queue
        circuit, budget = self.circuits.get(queue), self._budgets.get(queue)
        retried = budget is not None and message.tries > 0
        if not retried and (circuit is None or circuit.state != "open"):
            return Turn.CALL
        with self._engine.lock:
            now = self._engine.clock.now()
            turn = Turn.CALL if circuit is None else circuit.begin(now)
            short = retried and turn is Turn.CALL and budget is not None and not budget.take(now)
        if turn is Turn.NO:
            self._back(message)
        elif short and self._failures.put_off(message):
            return Turn.NO
        return turn

    def _back(self, message: Message) -> None:
        """Into its lane, which then waits for the next probe."""
        engine, link = self._engine, message.link
        if not engine.settler.claim(message):
            return
        if link.limbo:
            self._failures.out_of_limbo(message, Outcome.REQUEUED)
            return
        with engine.lock:
            message.outcome = Outcome.GIVEN_BACK
            if engine.stopping or link.ending or not link.alive:
                engine.settler.give_back(link, [message.raw])
                return
            now = engine.clock.now()
            failing_lanes.put_back(engine.flow, now, message.queue, message.raw, message.arrived)
            self._set(now, [message.queue])

    # --- after a call ---

    def _succeeded(self, turns: list[tuple[Message, Turn]]) -> None:
        for message, turn in turns:
            circuit, budget = self.circuits.get(message.queue), self._budgets.get(message.queue)
            if budget is None and (circuit is None or circuit.quiet):
                continue
            with self._engine.lock:
                if budget is not None:
                    budget.succeeded()
                if circuit is not None and not circuit.quiet:
                    before = circuit.state
                    circuit.succeeded(turn)
                    self._changed(circuit, before)

    def _failed(self, turns: list[tuple[Message, Turn]], error: BaseException) -> None:
        """One call of a batch handler is one failure of each queue in it."""
        queues: dict[str, list[tuple[Message, Turn]]] = {}
        for message, turn in turns:
            queues.setdefault(message.queue, []).append((message, turn))
        for queue, its in queues.items():
            circuit = self.circuits.get(queue)
            if circuit is None:
                continue
            turn = Turn.PROBE if any(turn is Turn.PROBE for _, turn in its) else Turn.CALL
            with self._engine.lock:
                before = circuit.state
                if self._failures.tells(queue, error):
                    first = any(message.tries == 0 for message, _ in its)
                    circuit.failed(self._engine.clock.now(), turn, first)
                else:
                    circuit.unknown(turn)
                self._changed(circuit, before)

    def excuses(self, queue: str) -> bool:
        """True if a failure is not the message's own. Takes no lock."""
        circuit = self.circuits.get(queue)
        return circuit is not None and circuit.excuses(self._engine.clock.now())

    # --- under the lock ---

    def _changed(self, circuit: Circuit, before: str) -> None:
        engine, now = self._engine, self._engine.clock.now()
        queues = [queue for queue, each in self.circuits.items() if each is circuit]
        self._set(now, queues)
        if circuit.state == before:
            return
        if circuit.state == "open" and before == "closed":
            for queue in queues:
                engine.counts[queue]["opened"] += 1
            reason = "messages failed in a row: single probes until one succeeds"
            engine.note(logging.WARNING, "breaker_opened", queue=", ".join(queues), reason=reason)
        elif circuit.state == "closed":
            seconds = round((now - circuit.since) / SECOND, 3)
            engine.note(logging.WARNING, "breaker_closed", queue=", ".join(queues), after=seconds)
        engine.nudge.set()

    def _set(self, now: int, queues: Iterable[str]) -> None:
        """Let lanes sit out, or go on, as their circuits say."""
        flow = self._engine.flow
        for queue in queues:
            circuit = self.circuits[queue]
            if circuit.state == "open":
                at = now + failing_lanes.AGAIN if circuit.probing else max(now, circuit.next)
                failing_lanes.hold_back(flow, now, queue, at)
            elif flow.lanes[queue].single:
                failing_lanes.let_go(flow, now, queue)
                self._engine.ready.notify_all()
                self._engine.wake()
