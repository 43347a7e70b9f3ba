"""Three tenants, one pool of workers: each gets its share, however much the others send.

Gold pays for five times the share of free; free has sent ten times as much as anybody else. Run it with
LEASH_URI=amqp://... python examples/fair_tenants.py
"""

import os
import threading
import time
from collections import Counter

from leash import Consumer, Message, Publisher, Queue
from leash.amqp import connect
from leash.amqp.topology import declare_queue, purge_queue

URI = os.environ.get("LEASH_URI", "amqp://localhost")
SENT = {"tenants.gold": 600, "tenants.silver": 600, "tenants.free": 6000}

consumer = Consumer(
    URI,
    queues=[Queue("tenants.gold", quantum=5), Queue("tenants.silver", quantum=3), Queue("tenants.free")],
    workers=4,
)
handled: list[str] = []
enough = threading.Event()


@consumer.handler
def work(message: Message) -> None:
    time.sleep(0.001)
    handled.append(message.queue)
    if len(handled) >= 900:
        enough.set()


def send() -> None:
    with connect(URI) as connection:
        channel = connection.channel()
        for queue in SENT:
            declare_queue(channel, queue)
            purge_queue(channel, queue)
    with Publisher(URI) as publisher:
        for queue, count in SENT.items():
            publisher.publish_many(["work"] * count, queue)


if __name__ == "__main__":
    send()
    with consumer:  # or consumer.run(), until a signal
        enough.wait(30)
    counts = Counter(handled[:900])
    for queue, sent in SENT.items():
        print(f"{queue:15} sent {sent:5}, handled {counts[queue]:4} of the first 900")
    expected = {"tenants.gold": 500, "tenants.silver": 300, "tenants.free": 100}
    assert all(abs(counts[queue] - count) <= 20 for queue, count in expected.items()), counts
