"""What fails is tried again after a while; what always fails is parked, looked at, and sent back once mended.

On the command line: leash dead list, leash dead show orders, leash dead retry orders.
"""

import os
import threading
import time
from collections.abc import Callable

from leash import Consumer, Message, Publisher, Retry
from leash.amqp import connect
from leash.amqp.topology import declare_queue, purge_queue
from leash.consumer import dead_queue

URI = os.environ.get("LEASH_URI", "amqp://localhost")

shipped: list[str] = []
tries: dict[str, int] = {}
mended = threading.Event()


def a_consumer() -> Consumer:
    consumer = Consumer(URI, ["orders"], retry=Retry(tries=3, delay=0.2), on_exhausted="park")

    @consumer.handler
    def ship(order: str, message: Message) -> None:
        tries[order] = tries.get(order, 0) + 1
        if order == "flaky" and message.tries < 2:
            raise ConnectionError("the warehouse does not answer")
        if order == "broken" and not mended.is_set():
            raise ValueError("no such address")
        shipped.append(order)

    return consumer


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


if __name__ == "__main__":
    with connect(URI) as connection, connect(URI) as publishing:
        channel = connection.channel()
        for queue in ("orders", "leash.dead.orders"):
            declare_queue(channel, queue)
            purge_queue(channel, queue)
        with Publisher(URI) as publisher:
            publisher.publish_many(["good", "flaky", "broken"], "orders")
        with a_consumer():
            wait_until(lambda: len(shipped) == 2 and dead_queue.count(connection, "orders") == 1)
            print(f"shipped {shipped}, tries {tries}")
            assert (shipped, tries) == (["good", "flaky"], {"good": 1, "flaky": 3, "broken": 3})

            (failed,) = dead_queue.look(connection, "orders", limit=10)
            print(f"parked: {failed.body.decode()}, after {failed.tries} tries, because of {failed.error}")
            assert failed.error == "ValueError: no such address"

            mended.set()
            dead_queue.send_back(connection, publishing, "orders")
            wait_until(lambda: "broken" in shipped)
            print(f"mended and sent back: shipped {shipped}")
        assert dead_queue.count(connection, "orders") == 0
