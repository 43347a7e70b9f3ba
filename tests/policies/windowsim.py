"""A consumer and a broker in virtual time, for the window's tests.

The broker has one FIFO queue that never runs dry, and sends while fewer than its limit are unacked. Every
frame takes half a round trip. A new window reaches the broker either as a new limit, so that a smaller one
means that it sends nothing until enough acks came in; or, as RabbitMQ has it, as a new consumer with credit
of its own: at once when the window grows, and when enough of the old messages are done when it shrinks.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from heapq import heappop, heappush

from leash.policies.codel import CoDel
from leash.policies.tokens import TokenBucket
from leash.policies.window import Change, Window

MS = 1_000_000
SECOND = 1000 * MS

# At the same instant a message arrives before a worker looks for it, as in the formulas.
_TO_BROKER, _TO_CLIENT, _DONE, _WAKE = range(4)

_NEVER = 1 << 62


def always(value: int) -> Callable[[int], int]:
    return lambda _: value


@dataclass
class Run:
    """What happened, for the asserts."""

    changes: list[tuple[int, int, str]] = field(default_factory=list)
    waits: list[tuple[int, int]] = field(default_factory=list)
    busy: list[tuple[int, int]] = field(default_factory=list)
    nacks: int = 0

    def utilisation(self, begin: int, end: int, workers: int = 1) -> float:
        work = sum(max(0, min(stop, end) - max(start, begin)) for start, stop in self.busy)
        return work / ((end - begin) * workers)

    def waits_from(self, begin: int) -> list[int]:
        return [wait for at, wait in self.waits if at >= begin]

    def windows_from(self, begin: int, start: int) -> list[int]:
        """The window at `begin` and every later one."""
        before = [window for at, window, _ in self.changes if at < begin]
        return [(before or [start])[-1]] + [window for at, window, _ in self.changes if at >= begin]


@dataclass
class Simulation:
    """Drives `window` as the live consumer does; times of the day decide on service time and delay."""

    window: Window
    service: Callable[[int], int]
    one_way: Callable[[int], int]
    codel: CoDel | None = None
    bucket: TokenBucket | None = None
    broker_gap: int = 0
    """The least time between two sends: a slow broker's."""
    known_round_trip: bool = True
    anew: bool = False
    """A new window is a new consumer."""
    tuned: bool = True
    """False: the window stays as it is, and CoDel returns what it sheds."""

    def __post_init__(self) -> None:
        self.events: list[tuple[int, int, int, tuple[int, ...]]] = []
        self.serial = 0
        self.last_arrival = [0, 0]
        # the broker
        self.limit, self.epoch, self.unacked, self.sent_at = self.window.window, 0, 0, -self.broker_gap
        # the consumer
        self.buffer: deque[tuple[int, int]] = deque()
        self.idle_since = deque([0] * self.window.workers)
        self.in_work = 0
        self.finished: list[int] = []
        self.resume: Change | None = None
        self.log = Run()

    def run(self, until: int) -> Run:
        self.send(0)
        while self.events and self.events[0][0] <= until:
            now, kind, _, data = heappop(self.events)
            if kind == _TO_BROKER:
                self.at_broker(now, data)
            elif kind == _TO_CLIENT:
                self.buffer.append((now, data[0]))
                self.dispatch(now)
            elif kind == _DONE:
                self.done(now, *data)
            else:
                self.dispatch(now)
        return self.log

    def push(self, at: int, kind: int, *data: int) -> None:
        if kind in (_TO_BROKER, _TO_CLIENT):  # a connection keeps the order
            at = self.last_arrival[kind] = max(at, self.last_arrival[kind])
        self.serial += 1
        heappush(self.events, (at, kind, self.serial, data))

    def tell(self, now: int, limit: int = 0, epoch: int = 0, acks: tuple[int, ...] = ()) -> None:
        self.push(now + self.one_way(now), _TO_BROKER, limit, epoch, *acks)

    def at_broker(self, now: int, data: tuple[int, ...]) -> None:
        limit, epoch, *acks = data
        self.unacked -= sum(1 for ack in acks if ack == self.epoch or not self.anew)
        if limit:
            self.limit = limit % _NEVER
            if self.anew and self.limit:
                self.unacked = 0
            self.epoch = epoch
        self.send(now)

    def send(self, now: int) -> None:
        while self.unacked < self.limit:
            self.unacked += 1
            self.sent_at = max(now, self.sent_at + self.broker_gap)
            self.push(self.sent_at + self.one_way(now), _TO_CLIENT, self.epoch)

    def dispatch(self, now: int) -> None:
        while self.idle_since and self.buffer:
            if self.bucket is not None and not self.bucket.take(now):
                self.push(now + self.bucket.wait(now), _WAKE)
                return
            arrived, epoch = self.buffer.popleft()
            left = len(self.buffer)
            if not self.tuned and self.codel is not None and self.codel.judge(now, now - arrived, left):
                self.log.nacks += 1
                self.tell(now, acks=(epoch,))
                continue
            self.log.waits.append((now, now - arrived))
            self.report(now, arrived, epoch, now - self.idle_since.popleft())
            took = self.service(now)
            self.in_work += 1
            self.log.busy.append((now, now + took))
            self.push(now + took, _DONE, took, epoch)

    def report(self, now: int, arrived: int, epoch: int, idle: int) -> None:
        if not self.tuned:
            return
        if self.known_round_trip:
            self.window.round_trip = 2 * self.one_way(now)
        if self.bucket is not None and arrived < now:
            idle = 0  # it waited for a token
        left = len(self.buffer)
        self.apply(now, self.window.observe(now, left, starved=int(idle > 0), idle=idle, epoch=epoch))
        if self.codel is not None and self.codel.judge(now, now - arrived, left):
            self.window.signal(now)

    def apply(self, now: int, change: Change | None) -> None:
        if change is None:
            return
        grows = change.window > self.log.changes[-1][1] if self.log.changes else change.window > self.limit
        self.log.changes.append((now, *change))
        if grows or not self.anew:
            self.resume = None
            self.tell(now, change.window, self.window.epoch)
        else:
            self.resume = change
            self.tell(now, _NEVER, -1)

    def done(self, now: int, took: int, epoch: int) -> None:
        self.in_work -= 1
        self.idle_since.append(now)
        self.finished.append(epoch)
        self.window.served(took)
        if len(self.finished) >= self.window.ack_batch:
            self.tell(now, acks=tuple(self.finished))
            self.finished = []
        if self.resume is not None:
            on_their_way = -(-self.window.workers * 2 * self.one_way(now) // max(1, took))
            if self.in_work + len(self.buffer) <= on_their_way + 1:
                self.tell(now, self.resume.window, self.window.epoch)
                self.resume = None
        self.dispatch(now)
