"""Threads that publish while the broker is killed, and what is in the queue afterwards."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable

from leash import Publisher
from leash.amqp import connect, topology
from leash.broker import Broker
from leash.errors import PublishError
from leash.publisher import Receipt

THREADS = 8
QUEUE = "published"


class Publishing:
    """Each thread publishes its part of the numbers, one by one."""

    def __init__(self, uri: str, count: int, resend: bool = True) -> None:
        self._uri = uri
        self.confirmed: dict[int, Receipt] = {}
        self.failed: dict[int, PublishError] = {}
        self._publisher = Publisher(uri, timeout=None, resend=resend)
        self._threads = [
            threading.Thread(target=self._work, args=(range(at, count, THREADS),)) for at in range(THREADS)
        ]
        with connect(uri) as connection:
            topology.declare_queue(connection.channel(), QUEUE)

    def _work(self, numbers: range) -> None:
        for number in numbers:
            try:
                self.confirmed[number] = self._publisher.publish(b"%d" % number, QUEUE)
            except PublishError as error:
                self.failed[number] = error

    @property
    def done(self) -> int:
        return len(self.confirmed) + len(self.failed)

    def run(
        self, broker: Broker, kills: int, count: int, wait: Callable[[Callable[[], object]], None]
    ) -> None:
        """Kill the broker whenever another part of the messages is done."""
        broker.stop()  # a node that is killed may forget the queues of its last moments
        broker.start()
        for thread in self._threads:
            thread.start()
        for kill in range(1, kills + 1):
            wait(lambda kill=kill: self.done >= count * kill // (kills + 1))  # type: ignore[misc]
            broker.kill()
            broker.start()
        for thread in self._threads:
            thread.join()
        self._publisher.close()

    def found(self) -> Counter[int]:
        """How often each number is in the queue."""
        found: Counter[int] = Counter()
        with connect(self._uri) as connection:
            channel = connection.channel()
            left = topology.state(channel, QUEUE).ready
            channel.consume(QUEUE, no_ack=True)
            while left > 0:
                batch = channel.deliveries(60)
                assert batch is not None
                found.update(map(int, batch.bodies))
                left -= len(batch)
        return found

    def check(self) -> Counter[int]:
        """Nothing that was confirmed is missing, and only what was sent again is there twice."""
        found = self.found()
        assert [number for number in self.confirmed if not found[number]] == []
        resent = {number for number, receipt in self.confirmed.items() if receipt.resent}
        twice = {number for number, times in found.items() if times > 1}
        assert twice <= resent
        return found
