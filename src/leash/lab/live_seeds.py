"""The documents' own clients on a real broker, faults included; see seeds.py for the same in virtual time."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor

from leash.amqp import Channel, Connection
from leash.amqp.wire import Deliveries
from leash.lab.live import Server
from leash.policies.codel import CoDel


class SharedThreads:
    """Consumers of one queue, whose deliveries are tasks of one thread pool. `services` in seconds."""

    def __init__(
        self, connection: Connection, queue: str, services: Mapping[str, float], prefetch: int, threads: int
    ) -> None:
        self.done = dict.fromkeys(services, 0)
        self._pool = ThreadPoolExecutor(threads)
        self._over = threading.Event()
        for name, service in services.items():
            channel = connection.channel()
            channel.qos(prefetch)
            channel.consume(queue, deliver=self._deliver(channel, name, service))

    def _deliver(self, channel: Channel, name: str, service: float) -> Callable[[Deliveries], None]:
        def work(tag: int) -> None:
            time.sleep(service)
            if not self._over.is_set():
                channel.ack(tag)
                self.done[name] += 1

        def deliver(batch: Deliveries) -> None:
            for tag in batch.tags:
                if not self._over.is_set():
                    self._pool.submit(work, tag)

        return deliver

    def stop(self) -> None:
        self._over.set()
        self._pool.shutdown(cancel_futures=True)


class NackingClient:
    """One worker, a fixed window, CoDel over the local buffer; its verdicts are nacks with requeue."""

    def __init__(
        self, channel: Channel, queue: str, window: int, service: float, target: int, interval: int
    ) -> None:
        self.nacks = self.served = 0
        self._codel = CoDel(min(target, interval), interval)
        self._codel.target = target  # as published: the interval is below the target
        self._server = Server(service)
        self._channel = channel
        self._buffer: deque[tuple[int, int]] = deque()
        self._more = threading.Semaphore(0)
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._work, name="nacking", daemon=True)
        self._thread.start()
        channel.qos(window)
        channel.consume(queue, deliver=self._deliver)

    def _deliver(self, batch: Deliveries) -> None:
        now = time.monotonic_ns()
        self._buffer.extend((tag, now) for tag in batch.tags)
        self._more.release(len(batch.tags))

    def _work(self) -> None:
        while not self._over.is_set():
            if not self._more.acquire(timeout=0.2):
                continue
            tag, arrived = self._buffer.popleft()
            now = time.monotonic_ns()
            if self._codel.judge(now, now - arrived, len(self._buffer)):
                self.nacks += 1
                self._channel.nack(tag)
                continue
            self.served += 1
            self._server.serve(arrived)
            self._channel.ack(tag)

    def stop(self) -> None:
        self._over.set()
        self._thread.join()


class SlotLoop:
    """Deficit round robin over local buffers; a slot that is empty here loses its deficit."""

    def __init__(
        self, connection: Connection, queues: Sequence[str], quanta: Sequence[int], window: int
    ) -> None:
        self.served = [0] * len(queues)
        self._quanta = quanta
        self._window = window
        self._buffers: list[deque[tuple[int, int]]] = [deque() for _ in queues]
        self._channels = [connection.channel() for _ in queues]
        for channel, queue, buffer in zip(self._channels, queues, self._buffers, strict=True):
            channel.qos(window)
            channel.consume(queue, deliver=_into(buffer))

    def run(self, total: int, service: float) -> None:
        """Serve `total` messages, each for `service` seconds, once every window is full."""
        while min(map(len, self._buffers)) < self._window:
            time.sleep(0.001)
        deficits = [0] * len(self._buffers)
        server = Server(service)
        left = total
        while left > 0:
            for slot, buffer in enumerate(self._buffers):
                deficits[slot] += self._quanta[slot]
                while buffer and deficits[slot] >= 1:
                    tag, arrived = buffer.popleft()
                    deficits[slot] -= 1
                    server.serve(arrived)
                    self._channels[slot].ack(tag)
                    self.served[slot] += 1
                    left -= 1
                if not buffer:
                    deficits[slot] = 0
            if not any(self._buffers):
                time.sleep(0.001)


def _into(buffer: deque[tuple[int, int]]) -> Callable[[Deliveries], None]:
    def deliver(batch: Deliveries) -> None:
        now = time.monotonic_ns()
        buffer.extend((tag, now) for tag in batch.tags)

    return deliver
