"""A consumer of tenants, as a process of its own: writes a line for every message that it has handled."""

from __future__ import annotations

import logging
import os
import sys
import time

from leash import Consumer, Message
from tests.tenants.kit import JOBS


def main(uri: str, ledger: str) -> None:
    logging.basicConfig(level=logging.INFO, format=f"%(asctime)s {os.getpid()} %(message)s")
    book = os.open(ledger, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    consumer = Consumer(uri, tenants=JOBS, workers=2, cost="time")

    @consumer.handler
    def handle(message: Message) -> None:
        time.sleep(0.001)
        os.write(book, message.body + b" %d\n" % message.redelivered)

    consumer.run()


if __name__ == "__main__":
    main(*sys.argv[1:])
