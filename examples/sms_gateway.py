"""A provider takes 50 messages a second; letters that need no provider go on at full speed.

A queue that has reached its rate holds no worker: the one worker here is free for the other queue.
"""

import os
import threading
import time

from leash import Consumer, Message, Publisher, Queue
from leash.amqp import connect
from leash.amqp.topology import declare_queue, purge_queue

URI = os.environ.get("LEASH_URI", "amqp://localhost")
SMS, LETTERS = 110, 500

consumer = Consumer(URI, queues=[Queue("gateway.sms", rate=50, burst=10), Queue("gateway.letters")])
times: dict[str, list[float]] = {"gateway.sms": [], "gateway.letters": []}
done = threading.Event()


@consumer.handler
def send(message: Message) -> None:
    times[message.queue].append(time.monotonic())
    if len(times["gateway.sms"]) == SMS and len(times["gateway.letters"]) == LETTERS:
        done.set()


def fill() -> None:
    with connect(URI) as connection:
        channel = connection.channel()
        for queue in times:
            declare_queue(channel, queue)
            purge_queue(channel, queue)
    with Publisher(URI) as publisher:
        publisher.publish_many(["Hello!"] * SMS, "gateway.sms")
        publisher.publish_many(["Dear Sir or Madam,"] * LETTERS, "gateway.letters")


if __name__ == "__main__":
    fill()
    with consumer:
        begin = time.monotonic()
        assert done.wait(30)
    sms, letters = (times[queue][-1] - begin for queue in times)
    print(f"{SMS} text messages took {sms:.2f} s: a burst of 10, then 50 a second")
    print(f"{LETTERS} letters took {letters:.2f} s")
    assert sms >= (SMS - 10) / 50 - 0.05
    assert letters < sms
