"""The documents' published clients, faults included, in virtual time.

SharedThreads   basic.qos: every delivery becomes a task of one thread pool, whoever it was sent to
NackingClient   CoDel by nack: what waited too long is returned to the queue
SlotLoop        fair consuming: deficit round robin over what happens to be in the local buffers
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence

from leash.lab.clock import AT_BROKER, AT_CLIENT, DONE, Clock, Wire
from leash.lab.simulated_queues import Consumer, Queue
from leash.policies.codel import CoDel


class SharedThreads:
    """Consumers of one queue in one process. `services` is each consumer's time per message."""

    def __init__(
        self,
        clock: Clock,
        queue: Queue,
        services: Mapping[str, int],
        prefetch: int,
        threads: int,
        one_way: int = 0,
    ) -> None:
        self.done = dict.fromkeys(services, 0)
        self._clock = clock
        self._services = services
        self._free = threads
        self._up = Wire(clock, one_way, AT_BROKER)
        self._tasks: deque[Consumer] = deque()
        self._names: dict[Consumer, str] = {}
        for name in services:
            consumer = Consumer(queue, prefetch, Wire(clock, one_way, AT_CLIENT), self._arrive)
            self._names[consumer] = name
            queue.subscribe(consumer)

    def _arrive(self, consumer: Consumer, messages: list[int]) -> None:
        self._tasks.extend([consumer] * len(messages))
        self._start()

    def _start(self) -> None:
        while self._free and self._tasks:
            self._free -= 1
            consumer = self._tasks.popleft()
            service = self._services[self._names[consumer]]
            self._clock.at(self._clock.now + service, DONE, self._finish, consumer)

    def _finish(self, consumer: Consumer) -> None:
        self._free += 1
        self.done[self._names[consumer]] += 1
        self._up.send(consumer.queue.ack, consumer, 1)
        self._start()


class NackingClient:
    """One worker with a fixed window; CoDel judges each head, and a verdict is a nack with requeue."""

    def __init__(
        self, clock: Clock, queue: Queue, window: int, service: int, one_way: int, target: int, interval: int
    ) -> None:
        self.codel = CoDel(min(target, interval), interval)
        self.codel.target = target  # the document's interval is below its target, which CoDel refuses
        self.nacks = self.served = 0
        self.waits: list[int] = []
        self.states: list[tuple[int, bool, int]] = []
        """When CoDel judged, whether it was shedding, and how long the head had waited."""
        self._clock, self._service = clock, service
        self._up = Wire(clock, one_way, AT_BROKER)
        self._consumer = Consumer(queue, window, Wire(clock, one_way, AT_CLIENT), self._arrive)
        self._buffer: deque[tuple[int, int]] = deque()
        self._busy = False
        queue.subscribe(self._consumer)

    def _arrive(self, _: Consumer, messages: list[int]) -> None:
        self._buffer.extend((message, self._clock.now) for message in messages)
        self._next()

    def _next(self) -> None:
        now, queue = self._clock.now, self._consumer.queue
        while self._buffer and not self._busy:
            message, arrived = self._buffer.popleft()
            verdict = self.codel.judge(now, now - arrived, len(self._buffer))
            self.states.append((now, self.codel.dropping, now - arrived))
            if verdict:
                self.nacks += 1
                self._up.send(queue.nack, self._consumer, [message])
                continue
            self._busy = True
            self.served += 1
            self.waits.append(now - arrived)
            self._clock.at(now + self._service, DONE, self._finish)

    def _finish(self) -> None:
        self._busy = False
        self._up.send(self._consumer.queue.ack, self._consumer, 1)
        self._next()


class SlotLoop:
    """One thread over all slots, in turn; a slot that is empty here loses its deficit."""

    def __init__(
        self,
        clock: Clock,
        queues: Sequence[Queue],
        quanta: Sequence[int],
        window: int,
        service: int,
        one_way: int,
    ) -> None:
        self.served = [0] * len(queues)
        self._clock, self._service, self._quanta = clock, service, quanta
        self._up = Wire(clock, one_way, AT_BROKER)
        self._buffers = [0] * len(queues)
        self._deficits = [0] * len(queues)
        self._slot = 0
        self._resting = True
        self._index: dict[Consumer, int] = {}
        self._consumers = []
        for index, queue in enumerate(queues):
            consumer = Consumer(queue, window, Wire(clock, one_way, AT_CLIENT), self._arrive)
            self._index[consumer] = index
            self._consumers.append(consumer)
            queue.subscribe(consumer)

    def _arrive(self, consumer: Consumer, messages: list[int]) -> None:
        self._buffers[self._index[consumer]] += len(messages)
        if self._resting:
            self._resting = False
            self._deficits[self._slot] += self._quanta[self._slot]
            self._work()

    def _work(self) -> None:
        """Serve the next message, of this slot or of the next one that has any."""
        for _ in range(len(self._buffers) + 1):
            slot = self._slot
            if self._buffers[slot] and self._deficits[slot] >= 1:
                self._buffers[slot] -= 1
                self._deficits[slot] -= 1
                self._clock.at(self._clock.now + self._service, DONE, self._finish, slot)
                return
            if not self._buffers[slot]:
                self._deficits[slot] = 0
            self._slot = (slot + 1) % len(self._buffers)
            self._deficits[self._slot] += self._quanta[self._slot]
        self._resting = True

    def _finish(self, slot: int) -> None:
        self.served[slot] += 1
        consumer = self._consumers[slot]
        self._up.send(consumer.queue.ack, consumer, 1)
        self._work()
