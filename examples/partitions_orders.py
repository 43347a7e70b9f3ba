"""Orders by customer: in order for each customer, in parallel over queues, through a resize while they flow.

Three queues share the customers; half-way there are four. No order is lost, and no customer's orders are
handled out of turn. Run it with LEASH_URI=amqp://... python examples/partitions_orders.py
"""

import os
import threading
import time
from collections import Counter

from leash import Consumer, Message, Publisher
from leash.partitions import Partitions

URI = os.environ.get("LEASH_URI", "amqp://localhost")
CUSTOMERS = 50

three = Partitions("shop", {"shop.0": 1, "shop.1": 1, "shop.2": 1})
four = Partitions("shop", {"shop.0": 1, "shop.1": 1, "shop.2": 1, "shop.3": 1})

consumer = Consumer(URI, partitions="shop")
handled: list[tuple[str, int, str]] = []
resized = threading.Event()
sent = 0


@consumer.handler
def pack(message: Message) -> None:
    time.sleep(0.001)
    handled.append((message.routing_key, int(message.body), message.queue))


def send() -> None:
    """Some orders before, many while the queues change, and a thousand after."""
    global sent
    left = 100
    with Publisher(URI) as publisher:
        while left:
            left -= resized.is_set()
            for number in range(sent, sent + 10):
                publisher.send(str(number), partitions="shop", key=f"customer-{number % CUSTOMERS}")
            publisher.flush()
            sent += 10
            time.sleep(0.005)


def wait_for(count: int) -> None:
    deadline = time.monotonic() + 30
    while len(handled) < count and time.monotonic() < deadline:
        time.sleep(0.05)


if __name__ == "__main__":
    three.declare(URI)
    sender = threading.Thread(target=send)
    with consumer:
        sender.start()
        wait_for(200)
        plan = four.plan(URI)
        print(plan)
        four.apply(URI, plan)
        print(f"resized after {len(handled)} orders")
        resized.set()
        sender.join()
        wait_for(sent)
    latest: dict[str, int] = {}
    for customer, number, _ in handled:
        assert number > latest.get(customer, -1), f"{customer}: {number} after {latest[customer]}"
        latest[customer] = number
    assert len(handled) == sent, f"{len(handled)} of {sent}"
    counts = Counter(queue for _, _, queue in handled)
    for queue in sorted(counts):
        print(f"{queue}: {counts[queue]} orders")
    assert counts["shop.3"]
    print(f"{sent} orders of {CUSTOMERS} customers, every customer's in order")
    four.delete(URI, queues=True)
