"""Lanes + policies: which message goes to the next free worker, and what to ask the broker for.

Time is passed in as whole nanoseconds, and there is no other input: the live consumer, the test double and
the simulator drive this same object, and the same trace gives the same decisions. Messages are opaque; their
buffers are here. Work goes out in batches, so that the cost of a decision is shared by many messages.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from itertools import repeat
from typing import Any, Literal

from leash.errors import ConfigError
from leash.flow import budgets, depths, hold_states
from leash.flow.budgets import Purse
from leash.flow.buffer import BufferBudget
from leash.flow.buffer_to_worker import come_back, leave_in_turn
from leash.flow.decisions import Decision, Dispatch, Shed
from leash.flow.fairness import Watch
from leash.flow.lane import PARKING, PAUSED, WAITING, Lane, LaneState, at_once, changed
from leash.flow.picking import grants
from leash.flow.service_times import BATCH_TIME, batch_of, served_all
from leash.flow.sidelined_lanes import Sidelines
from leash.flow.slow_lanes import SlowLanes
from leash.flow.tier_gaps import Gap
from leash.flow.windows import NO_TIER, share_credit
from leash.policies.exact_numbers import Number, whole
from leash.policies.fair import DeficitRoundRobin
from leash.policies.tokens import TokenBucket
from leash.units import MS

TICK = 50 * MS

Cost = Literal["count", "given", "time"]


class Flow:
    """Decides for `workers` workers. A message costs 1, a number given on arrival, or its time in us.

    All windows stay within `buffer_messages` and `buffer_bytes`; batch handlers want `batch` messages.
    """

    def __init__(
        self,
        lanes: Iterable[Lane],
        *,
        workers: int = 1,
        rate: Number | None = None,
        burst: int = 1,
        cost: Cost = "count",
        guaranteed: Mapping[int, int] | None = None,
        redelivered: Callable[[Any], bool] = lambda _: False,
        buffer_messages: int | None = None,
        buffer_bytes: int | None = None,
        batch: int = 1,
        shared: Iterable[Purse] = (),
        quiet_first: bool = False,
    ) -> None:
        if cost not in ("count", "given", "time"):
            raise ConfigError("cost", cost, "one of count, given, time")
        specs = list(lanes)
        self.workers = whole("workers", workers, 1)
        self.cost = cost
        self.redelivered = redelivered
        self.decisions: list[Decision] = []
        """What to do besides dispatching; the driver carries it out and clears the list."""
        self.rounds = DeficitRoundRobin(
            [(spec.name, spec.quantum) for spec in specs],
            tiers={spec.name: spec.tier for spec in specs},
            guaranteed=guaranteed,
            coming=lambda name: self.lanes[name].coming,
            quiet_first=quiet_first,
        )
        self.guaranteed = dict(guaranteed or {})
        self.budget = BufferBudget(specs, self.workers, buffer_messages, buffer_bytes, batch)
        self.lanes = {spec.name: LaneState(spec, self.workers, self.budget) for spec in specs}
        self.purses = list(shared)
        budgets.share(self.purses, self.lanes.values())
        self.slow = SlowLanes(self.workers) if quiet_first else None
        self.in_work = 0
        """Messages in the hands of workers."""
        self.top = NO_TIER
        """The highest tier with work."""
        self.active = 0
        """The approximate number of lanes with work."""
        self.total = None if rate is None else TokenBucket(rate, burst)
        self._at_once = at_once(self.total)
        self.watch = Watch(self)
        self.sidelines = Sidelines(self.rounds, self.lanes)
        self._gap = Gap(self)
        self._patrol = depths.Patrol()
        self.service = BATCH_TIME  # one message at a time, until the work is known to be fast
        self.now = 0
        self.buffered = 0
        self._dry = False  # nothing can be taken until an event or a timer
        self._stirred = True  # something happened since the last tick
        self._ticked: int | None = None
        share_credit(self)

    # --- what happened ---

    def arrive(
        self,
        now: int,
        lane: str,
        messages: list[Any],
        costs: Iterable[int] | None = None,
        ages: Iterable[int] | None = None,
        epoch: int | None = None,
        size: int | None = None,
    ) -> None:
        """Messages arrived, sent under a window's `epoch`; `ages` in ns, for lanes with a deadline; `size` is
        their total bytes. A message costs at least 1: one without cost would never end a turn.
        """
        now = self.told(now)
        state = self.lanes[lane]
        count = len(messages)
        self.active += not state.size and not state.waiting
        if epoch is None:
            epoch = state.window.epoch if state.window else 0
        born = repeat(now) if ages is None else [now - age for age in ages]
        state.buffer.extend(
            zip(
                messages,
                repeat(now),
                repeat(epoch),
                repeat(1) if costs is None else [max(1, cost) for cost in costs],
                born,
                strict=False,
            )
        )
        self.buffered += count
        if state.evidence:
            state.evidence = max(0, state.evidence - count)
            state.fed = now
            if state.evidence < state.credit and state.probe_after is not None and now >= state.probe_after:
                depths.ask(self, now, state, "it may run dry")
        hold_states.end(state)
        if state.renewing and state.window is not None and epoch == state.window.epoch:
            state.renewing = False
        self.rounds.offer(lane, count)
        if state.tier < self.top and not state.blocks:
            self.top = state.tier
        if size is not None and count:
            self.budget.arrived(self, state, count, size)

    def done(self, now: int, dispatches: list[Dispatch], services: list[int]) -> None:
        """Dispatches are finished, whatever the outcome, after `services` ns each."""
        self.told(now)
        served_all(self, dispatches, services)

    def probed(
        self,
        now: int,
        lane: str,
        ready: int,
        consumers: int,
        round_trip: int,
        slowest: int | None = None,
    ) -> None:
        """The result of a probe: messages ready at the broker, and the shortest and longest round trip."""
        stirred, now = self._stirred, self.told(now)
        state = self.lanes[lane]
        self._stirred = stirred or bool(ready or state.waiting)
        self.active -= state.waiting
        depths.answered(self, now, state, ready, consumers, round_trip, slowest)
        self.active += state.waiting
        if state.tier < self.top and state.waiting:
            self.top = state.tier

    def not_probed(self, lane: str) -> None:
        """A probe that was asked for could not be made."""
        self.lanes[lane].probing = False

    def forget(self, now: int, lane: str) -> list[Any]:
        """The lane's connection or consumer is gone: nothing more arrives. Returns what was buffered."""
        self.told(now)
        state = self.lanes[lane]
        left = [entry[0] for entry in state.buffer]
        state.buffer.clear()
        state.evidence = 0
        hold_states.end(state)
        state.probe_after = None
        state.renewing = state.probing = False
        self.rounds.expect(lane, 0)
        self.withdraw(state, len(left))
        self.sidelines.unblock(state, PARKING)
        return left

    def recall(self, now: int, dispatch: Dispatch, messages: list[Any], arrived: list[int]) -> Dispatch:
        """The last `messages` of a dispatch were not begun and go back in front; returns the rest of it."""
        return come_back(self, self.told(now), dispatch, messages, arrived)

    # --- what to do ---

    def take(self, now: int, most: int | None = None, since: int | None = None) -> list[Dispatch]:
        """Work for one worker, which has waited since `since`, if not None."""
        now = self._at(now)
        if self.sidelines.next is not None and self.sidelines.next <= now:
            depths.out_of_time(self, self.told(now))
        limit = self.batch if most is None else most
        if self.total is not None:
            limit = min(limit, self.total.available(now), self._at_once)
        if self._dry:
            return []
        if not self.buffered:
            self.sidelines.hold(now)
            budgets.ask(self, now, max(1, self.workers - self.in_work))
            return []
        if not self.purses:
            return self._serve(now, limit, most, since)
        if limit > 0 and budgets.worker_waits(self, now):
            budgets.ask(self, now, 1)
            return []
        work = self._serve(now, limit, most, since)
        budgets.ask(self, now, None if work else max(1, self.workers - self.in_work))
        return work

    def _serve(self, now: int, limit: int, most: int | None, since: int | None) -> list[Dispatch]:
        waits = self._gap.waits(now)
        granted = grants(self, now, limit, BATCH_TIME if most is None else None, waits)
        if not granted:
            self._gap.begin(now)
            self._dry = limit > 0
            return []
        out = leave_in_turn(self, now, granted, self._gap.served(waits, granted, since))
        if self.total is not None and out:
            self.total.take(now, sum([len(dispatch.messages) for dispatch in out]))
        return out

    def starves(self, lane: LaneState) -> bool:
        """True if it gets nothing while the highest tier has work."""
        return self.top < lane.tier and lane.tier not in self.guaranteed

    @property
    def spent(self) -> bool:
        """True if a batch can get no larger: the broker has messages, but the windows are too small."""
        known = [lane for lane in self.lanes.values() if lane.evidence and not lane.blocks]
        return any(lane.credit < lane.least for lane in known) and not any(
            lane.renewing or lane.in_work + len(lane.buffer) < lane.credit for lane in known
        )

    @property
    def batch(self) -> int:
        """How many messages to take at a time: work for `BATCH_TIME`."""
        return batch_of(self.service)

    def wait(self, now: int) -> int | None:
        """Ns until a waiting worker can go on without an arrival; None: never."""
        now = self._at(now)
        due = None if self.sidelines.next is None else self.sidelines.next - now
        total = self.total.wait(now) if self.total is not None and self.buffered else 0
        if total:
            due = total if due is None else min(due, total)
        return None if due is None else max(0, due)

    def tick(self, now: int) -> None:
        """Called about every `TICK`: probes, targets, shares of the credit, the certificate."""
        now = self._at(now)
        if self.sidelines.next is not None and self.sidelines.next <= now:
            depths.out_of_time(self, self.told(now))
        if self._ticked is not None and now - self._ticked < TICK:
            return
        self._ticked = now
        if self._stirred or self.buffered or self.in_work:  # nothing changes in idleness
            self._stirred = False
            share_credit(self)
            self.budget.share(self, now)
            self.watch.look()
        self._patrol.look(self, now)

    # --- at run time ---

    def pause(self, lane: str) -> None:
        state = self._lane(lane)
        state.evidence = 0
        self.rounds.expect(lane, 0)
        self.sidelines.block(state, PAUSED)

    def resume(self, lane: str) -> None:
        state = self._lane(lane)
        state.probe_after = None
        self.sidelines.unblock(state, PAUSED)

    def set_quantum(self, lane: str, quantum: int) -> None:
        state = self._lane(lane)
        self.rounds.set_quantum(lane, quantum)
        state.quantum = quantum
        if state.window is not None:
            state.window.quantum, state.window.quanta = quantum, max(quantum, state.window.quanta)
        self.watch.restart()

    def set_rate(self, now: int, lane: str | None, rate: Number | None, burst: int | None = None) -> None:
        """Change the rate of a lane, or of all together if `lane` is None; a rate of None is no limit."""
        now = self.told(now)
        if lane is None:
            self.total = changed(now, self.total, rate, burst)
            self._at_once = at_once(self.total)
            return
        state = self._lane(lane)
        state.limit(changed(now, state.bucket, rate, burst))
        if state.window is not None:
            state.window.set_rate(rate, state.bucket.burst if state.bucket else 1)
        self.sidelines.throttle(now, state)

    def retry_in_place(self, now: int, lane: str, message: Any, at: int) -> None:
        """A message failed in place: it goes back to the head, and the lane waits until `at`."""
        now = self.told(now)
        state = self._lane(lane)
        state.buffer.appendleft((message, now, -1, 1, now))
        self.buffered += 1
        self.rounds.offer(lane, 1)
        state.wakes = at = max(at, state.wakes or 0) if state.blocks & WAITING else at
        self.sidelines.block(state, WAITING)
        self.sidelines.until(at, state)

    def park(self, lane: str) -> None:
        """An ordered lane's message failed for good: the lane waits until it is `parked`."""
        self.sidelines.block(self._lane(lane), PARKING)

    def parked(self, lane: str) -> None:
        self.sidelines.unblock(self._lane(lane), PARKING)

    # --- inside ---

    def _at(self, now: int) -> int:
        if now > self.now:
            self.now = now
        return self.now

    def told(self, now: int) -> int:
        """Something happened: a worker may find work again."""
        self._dry, self._stirred = False, True
        return self._at(now)

    def _lane(self, name: str) -> LaneState:
        self.told(self.now)
        if name not in self.lanes:
            raise ConfigError("queue", name, f"one of {', '.join(map(repr, self.lanes))}")
        return self.lanes[name]

    def withdraw(self, lane: LaneState, count: int) -> None:
        """Messages left the buffer without a turn: they no longer count as work."""
        self.buffered -= count
        self.rounds.withdraw(lane.name, count)

    def shed(self, lane: LaneState, message: Any, kind: Literal["return", "drop"], reason: str) -> None:
        self.decisions.append(Shed(lane.name, message, kind, reason))
