"""Lanes + policies: which message goes to the next free worker, and what to ask the broker for.

Time comes in as whole nanoseconds and nothing else is asked: the live consumer, the test double and the
simulator drive this same object, and the same trace gives the same decisions. Messages are opaque; their
buffers are here. Work goes out in batches, so that what a decision costs is shared by many messages.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from itertools import repeat
from typing import Any, Literal

from leash.errors import ConfigError
from leash.flow.decisions import Decision, Dispatch, Probe, Shed
from leash.flow.lane import BUSY, MS, PARKING, PAUSED, WAITING, Lane, LaneState, at_once
from leash.flow.leaving import leave_in_turn
from leash.flow.picking import give_back, grants
from leash.flow.sidelines import HOLD_LEAST, Sidelines
from leash.flow.watch import Watch
from leash.flow.windows import share_credit
from leash.policies.exact import Number, whole
from leash.policies.fair import DeficitRoundRobin, Ticket
from leash.policies.tokens import TokenBucket

BATCH_TIME = 500_000
BATCH_MOST = 128
"""A worker takes work for this many ns, and messages, at a time: less asks for the lock too often, more lets
messages wait in a busy worker's hands.
"""

PROBE_EVERY = 1_000 * MS
TICK = 50 * MS

Cost = Literal["count", "given", "time"]


class Flow:
    """Decides for `workers` workers. A message costs 1, what is given as it arrives, or its time in us."""

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
        )
        self.guaranteed = bool(guaranteed)
        self.lanes = {spec.name: LaneState(spec, self.workers) for spec in specs}
        self.total = None if rate is None else TokenBucket(rate, burst)
        self._at_once = at_once(self.total)
        self.watch = Watch(self)
        self.sidelines = Sidelines(self.rounds, self.lanes)
        self.service = BATCH_TIME  # one by one, until it is known to be fast
        self.now = 0
        self.buffered = 0
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
    ) -> None:
        """Messages came, sent under a window's `epoch`; `ages` in ns, for lanes with a deadline."""
        now = self._at(now)
        state = self.lanes[lane]
        count = len(messages)
        if epoch is None:
            epoch = state.window.epoch if state.window else 0
        born = repeat(now) if ages is None else [now - age for age in ages]
        state.buffer.extend(
            zip(
                messages,
                repeat(now),
                repeat(epoch),
                repeat(1) if costs is None else costs,
                born,
                strict=False,
            )
        )
        self.buffered += count
        if state.evidence:
            state.evidence = max(0, state.evidence - count)
            state.fed = now
            if state.evidence < state.credit and state.probe_after is not None and now >= state.probe_after:
                self.probe(now, state, "it may run dry")
        state.held_since = None
        state.doubted = False
        if state.renewing and state.window is not None and epoch == state.window.epoch:
            state.renewing = False
        self.rounds.offer(lane, count)

    def done(self, now: int, dispatches: list[Dispatch], services: list[int]) -> None:
        """Dispatches were worked on, for so many ns each, whatever came of it."""
        self._at(now)
        if len(dispatches) == 1:
            name, messages, estimate = dispatches[0]
            self._served(name, len(messages), estimate, services[0])
            return
        sums: dict[str, list[int]] = {}
        for (name, messages, estimate), service in zip(dispatches, services, strict=True):
            lane = sums.get(name)
            if lane is None:
                sums[name] = [len(messages), estimate, service]
            else:
                lane[0] += len(messages)
                lane[1] += estimate
                lane[2] += service
        for name, (count, estimate, service) in sums.items():
            self._served(name, count, estimate, service)

    def _served(self, name: str, count: int, estimate: int, service: int) -> None:
        if not count:  # all of it was recalled
            return
        lane = self.lanes[name]
        each = service // count
        lane.in_work -= count
        lane.work += service
        lane.service += (each - lane.service) // 4 if lane.served else each
        self.service += (each - self.service) // 8
        lane.served += count
        mean = lane.service
        lane.most = 1 if mean >= BATCH_TIME else min(BATCH_MOST, BATCH_TIME // (mean or 1))
        if self.cost == "time":
            cost = max(count, service // 1000)
            self.rounds.settle(Ticket(name, estimate), cost)
            self.watch.cost(name, cost // count)
            lane.charged += cost - estimate
        lane.shedder.acked(count)
        if lane.window is not None:
            lane.window.served(each, count)
        if lane.ordered:
            self.sidelines.unblock(lane, BUSY)

    def probed(
        self,
        now: int,
        lane: str,
        ready: int,
        consumers: int,
        round_trip: int,
        slowest: int | None = None,
    ) -> None:
        """A passive look: messages ready at the broker, and how long answers took, at least and at most."""
        now = self._at(now)
        state = self.lanes[lane]
        state.depth, state.consumers = ready, consumers
        state.probing = False
        if state.held_since is not None and ready:
            state.confirmed = True
            self.sidelines.until(max(now, state.held_since + self.sidelines.patience), state)
        elif not ready:
            state.held_since = None
        self.sidelines.round_trip = round_trip
        self.sidelines.slowest = round_trip if slowest is None else slowest
        if state.window is not None:
            state.window.round_trip = round_trip
        state.probe_gap = min(PROBE_EVERY, 2 * state.probe_gap) if not ready else 0
        state.probe_after = now + max(state.probe_gap, self.sidelines.patience)
        if state.blocks & PAUSED or state.doubted:
            ready = 0
        # What left the queue before it was counted may still be on its way, and will count against `ready`.
        state.evidence = ready and ready + max(0, state.credit - len(state.buffer) - state.in_work)
        self.rounds.expect(lane, state.evidence)

    def not_probed(self, lane: str) -> None:
        """A look that was asked for did not come about."""
        self.lanes[lane].probing = False

    def forget(self, now: int, lane: str) -> list[Any]:
        """The lane's connection is gone, or its consumer: nothing more comes. Returns what was buffered."""
        self._at(now)
        state = self.lanes[lane]
        left = [entry[0] for entry in state.buffer]
        state.buffer.clear()
        state.evidence = 0
        state.held_since = state.probe_after = None
        state.renewing = state.probing = state.doubted = False
        self.rounds.expect(lane, 0)
        self.withdraw(state, len(left))
        self.sidelines.unblock(state, PARKING)
        return left

    def recall(self, now: int, dispatch: Dispatch, messages: list[Any], arrived: list[int]) -> Dispatch:
        """The last `messages` of a dispatch were not begun and go back in front; returns what is left."""
        now = self._at(now)
        name, given, estimate = dispatch
        state = self.lanes[name]
        count = len(messages)
        cost = estimate * count // len(given)
        each = cost // count
        state.buffer.extendleft(
            (message, at, -1, each, at)
            for message, at in zip(reversed(messages), reversed(arrived), strict=True)
        )
        self.buffered += count
        state.in_work -= count
        state.charged -= cost
        give_back(self, state, Ticket(name, cost), 0, count)
        if state.bucket is not None:
            state.bucket.refund(now, count)
            self.sidelines.throttle(now, state)
        if self.total is not None:
            self.total.refund(now, count)
        return Dispatch(name, given[: len(given) - count], estimate - cost)

    # --- what to do ---

    def take(self, now: int, most: int | None = None, since: int | None = None) -> list[Dispatch]:
        """Work for one worker, which has been waiting since `since` if it has."""
        now = self._at(now)
        if self.sidelines.next is not None and self.sidelines.next <= now:
            self._fire(now)
        limit = self.batch if most is None else most
        if self.total is not None:
            limit = min(limit, self.total.available(now), self._at_once)
        if not self.buffered:
            self.sidelines.hold(now)
            return []
        found = grants(self, now, limit, BATCH_TIME if most is None else None)
        out = leave_in_turn(self, now, found, since)
        if self.total is not None and out:
            self.total.take(now, sum([len(dispatch.messages) for dispatch in out]))
        return out

    @property
    def limited(self) -> bool:
        return any(lane.limited for lane in self.lanes.values())

    @property
    def batch(self) -> int:
        """How many messages to take at a time: `BATCH_TIME` worth of work."""
        mean = self.service
        return 1 if mean >= BATCH_TIME else min(BATCH_MOST, BATCH_TIME // (mean or 1))

    def wait(self, now: int) -> int | None:
        """Ns until time alone lets a waiting worker go on; None: only an arrival does."""
        now = self._at(now)
        due = None if self.sidelines.next is None else self.sidelines.next - now
        if self.total is not None and self.buffered:
            total = self.total.wait(now)
            if total:
                due = total if due is None else min(due, total)
        return None if due is None else max(0, due)

    def tick(self, now: int) -> None:
        """To be called every `TICK` or so: probes, targets, shares of the credit, the certificate."""
        now = self._at(now)
        if self.sidelines.next is not None and self.sidelines.next <= now:
            self._fire(now)
        if self._ticked is not None and now - self._ticked < TICK:
            return
        self._ticked = now
        share_credit(self)
        self.watch.look()
        for lane in self.lanes.values():
            if lane.probe_after is None or now - lane.probe_after >= PROBE_EVERY:
                self.probe(now, lane, "a second went by")

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
        """A lane's rate, or the total's (None); a rate of None is no limit."""
        now = self._at(now)
        if lane is None:
            self.total = _bucket(now, self.total, rate, burst)
            self._at_once = at_once(self.total)
            return
        state = self._lane(lane)
        state.limit(_bucket(now, state.bucket, rate, burst))
        if state.window is not None:
            state.window.set_rate(rate, state.bucket.burst if state.bucket else 1)
        self.sidelines.throttle(now, state)

    def retry_in_place(self, now: int, lane: str, message: Any, at: int) -> None:
        """An ordered lane's message failed: it goes back to the head, and the lane waits until `at`."""
        now = self._at(now)
        state = self._lane(lane)
        state.buffer.appendleft((message, now, -1, 1, now))
        self.buffered += 1
        self.rounds.offer(lane, 1)
        self.sidelines.block(state, WAITING)
        state.wakes = at
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

    def _lane(self, name: str) -> LaneState:
        if name not in self.lanes:
            raise ConfigError("queue", name, f"one of {', '.join(map(repr, self.lanes))}")
        return self.lanes[name]

    def _fire(self, now: int) -> None:
        doubtful, in_vain = self.sidelines.fire(now)
        for lane in doubtful:
            self.probe(now, lane, "a round waits for it")
        for lane in in_vain:
            if lane.held_since is None:
                continue
            waited = (now - lane.held_since) // MS
            lane.held_since = None
            lane.evidence = 0
            lane.expired += 1
            lane.doubted = True
            lane.dries += 1
            self.rounds.expect(lane.name, 0)
            lane.renewing = False
            self.probe(now, lane, f"nothing came for {waited} ms although its queue had messages")

    def withdraw(self, lane: LaneState, count: int) -> None:
        """Messages left the buffer without a turn: nobody must count on them."""
        self.buffered -= count
        self.rounds.withdraw(lane.name, count)

    def shed(self, lane: LaneState, message: Any, kind: Literal["return", "drop"], reason: str) -> None:
        self.decisions.append(Shed(lane.name, message, kind, reason))

    def probe(self, now: int, lane: LaneState, reason: str) -> None:
        lane.probe_gap = lane.probe_gap or HOLD_LEAST
        lane.probe_after = now + self.sidelines.patience  # until the answer is here
        if not lane.blocks & PAUSED and not lane.probing:
            lane.probing = True
            self.decisions.append(Probe(lane.name, reason))


def _bucket(
    now: int, bucket: TokenBucket | None, rate: Number | None, burst: int | None
) -> TokenBucket | None:
    if rate is None:
        return None
    if bucket is None:
        return TokenBucket(rate, 1 if burst is None else burst)
    bucket.set_rate(now, rate, burst)
    return bucket
