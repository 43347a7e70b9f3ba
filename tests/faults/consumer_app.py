"""A consumer to be killed: writes a line for every message that it begins, and fails or hangs on some."""

from __future__ import annotations

import contextlib
import logging
import os
import sys
import time

from leash import Consumer, Message, Queue, Retry
from leash.errors import AmqpError, NotDrained


def main(uri: str, path: str) -> None:
    logging.basicConfig(level=logging.INFO, format=f"%(asctime)s {os.getpid()} %(message)s")
    out = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    while True:
        try:
            run(uri, out)
            return
        except AmqpError as error:  # no broker, or no queue, as it starts: a supervisor would start it again
            logging.warning("event=not_started reason=%r", str(error))
            time.sleep(0.3)


def run(uri: str, out: int) -> None:
    queues = [
        Queue("classic", 3),
        Queue("quorum", 2, kind="quorum"),
        Queue("scratch"),
        Queue("ordered", ordered=True),
        Queue("ordered-quorum", ordered=True, kind="quorum"),
    ]
    consumer = Consumer(uri, queues, workers=4, retry=Retry(tries=3, delay=0.1), drain=1.0)

    @consumer.handler
    def work(message: Message) -> None:
        number = int(message.body)
        line = f"{message.queue} {number} {int(message.redelivered)} {message.tries}\n"
        os.write(out, line.encode())  # one write, so lines of several processes do not mix
        if number % 101 == 7 and not message.redelivered and not message.tries:
            time.sleep(3)  # hangs for longer than a drain takes
        elif number % 23 == 5 and not message.tries:
            raise ValueError("the first try of these fails")
        elif number % 97 == 11:
            raise ValueError("these never work")
        time.sleep(0.002)

    with contextlib.suppress(NotDrained):  # some hang for longer than a drain takes
        consumer.run()


if __name__ == "__main__":
    main(*sys.argv[1:])
