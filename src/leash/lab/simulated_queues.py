"""Simulated RabbitMQ queues: FIFO, pushing to their consumers in turn, within each one's credit.

A message is the number of its publication. A returned one goes back to its place, as in a classic queue.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from heapq import heappop, heappush

from leash.lab.clock import AT_BROKER, Clock, Wire

UNLIMITED = 1 << 62
"""Credit for a prefetch of 0."""

Deliver = Callable[["Consumer", list[int]], None]


class Consumer:
    """A subscription: its credit, and where its messages go."""

    __slots__ = ("active", "credit", "deliver", "epoch", "queue", "unacked", "wire")

    def __init__(self, queue: Queue, credit: int, wire: Wire, deliver: Deliver, epoch: int = 0) -> None:
        self.queue = queue
        self.credit = credit or UNLIMITED
        self.wire = wire
        self.deliver = deliver
        self.epoch = epoch
        self.unacked = 0
        self.active = False


class Queue:
    """A queue with `backlog` messages. One that starts empty can keep publishing times, in `born`."""

    def __init__(self, clock: Clock, name: str, backlog: int = 0) -> None:
        self.name = name
        self.published = backlog
        self.consumers = 0
        self.born: list[int] | None = None
        self._clock = clock
        self._next = 0
        self._returned: list[int] = []
        self._waiting: deque[Consumer] = deque()  # those with credit, in turn

    @property
    def ready(self) -> int:
        return self.published - self._next + len(self._returned)

    def publish(self, count: int = 1) -> None:
        if self.born is not None:
            self.born.extend([self._clock.now] * count)
        self.published += count
        self._clock.messages += count
        self.push()

    def publish_every(self, gap: int, until: int) -> None:
        """Publish one message now and one after each `gap`."""
        self.publish()
        later = self._clock.now + gap
        if later <= until:
            self._clock.at(later, AT_BROKER, self.publish_every, gap, until)

    def subscribe(self, consumer: Consumer) -> None:
        consumer.active = True
        self.consumers += 1
        self._waiting.append(consumer)
        self.push()

    def cancel(self, consumer: Consumer) -> None:
        if consumer.active:
            consumer.active = False
            self.consumers -= 1
            if consumer in self._waiting:
                self._waiting.remove(consumer)

    def ack(self, consumer: Consumer, count: int) -> None:
        self._clock.messages += count
        self._free(consumer, count)
        self.push()

    def nack(self, consumer: Consumer, messages: list[int], requeue: bool = True) -> None:
        self._clock.messages += len(messages)
        if requeue:
            for message in messages:
                heappush(self._returned, message)
        self._free(consumer, len(messages))
        self.push()

    def push(self) -> None:
        """Send what credit allows: one message to each consumer in turn."""
        waiting = self._waiting
        while waiting and self.ready:
            consumer = waiting[0]
            if len(waiting) == 1:
                self._send(consumer, self._take(min(self.ready, consumer.credit - consumer.unacked)))
            else:
                waiting.rotate(-1)
                self._send(consumer, self._take(1))
            if consumer.unacked >= consumer.credit:
                waiting.remove(consumer)

    def _take(self, count: int) -> list[int]:
        taken: list[int] = []
        while self._returned and len(taken) < count:
            taken.append(heappop(self._returned))
        fresh = count - len(taken)
        if fresh:
            taken.extend(range(self._next, self._next + fresh))
            self._next += fresh
        return taken

    def _send(self, consumer: Consumer, messages: list[int]) -> None:
        consumer.unacked += len(messages)
        consumer.wire.send(consumer.deliver, consumer, messages)

    def _free(self, consumer: Consumer, count: int) -> None:
        was_full = consumer.unacked >= consumer.credit
        consumer.unacked -= count
        if was_full and consumer.active:
            self._waiting.append(consumer)
