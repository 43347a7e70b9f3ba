"""A consumer under a budget, as a process of its own: writes down when each handler starts and ends.

`python app.py URI LEDGER QUEUE WORKERS SECONDS BUDGET...`: BUDGET as rate=50 burst=100 or at_once=20.
"""

from __future__ import annotations

import logging
import os
import sys
import time

from leash import Budget, Consumer, Message, Queue
from leash.errors import AmqpError


def main() -> None:
    uri, ledger, queue, workers, seconds, *numbers = sys.argv[1:]
    logging.basicConfig(level=logging.WARNING)
    given = {
        name: float(text) if "." in text else int(text)
        for name, _, text in (n.partition("=") for n in numbers)
    }
    budget = Budget("sms", **given)  # type: ignore[arg-type]
    book = os.open(ledger, os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def handle(message: Message) -> None:
        os.write(book, b"%d begin %d %s\n" % (time.monotonic_ns(), os.getpid(), message.queue.encode()))
        if float(seconds):
            time.sleep(float(seconds))
        os.write(book, b"%d end %d %s\n" % (time.monotonic_ns(), os.getpid(), message.queue.encode()))

    while True:
        queues = [Queue(name, budget=budget) for name in queue.split(",")]
        consumer = Consumer(uri, queues, workers=int(workers))
        consumer.handler(handle)
        try:
            return consumer.run()
        except AmqpError:  # the broker is down: again, as a supervisor would
            time.sleep(0.2)


if __name__ == "__main__":
    main()
