"""A consumer in a process of its own: writes a line for every message that it handles."""

from __future__ import annotations

import logging
import os
import sys
import time

from leash import Consumer, Message, Queue


def main(uri: str, path: str) -> None:
    logging.basicConfig(level=logging.INFO, format=f"%(asctime)s {os.getpid()} %(message)s")
    out = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    consumer = Consumer(uri, [Queue("plain"), Queue("ordered", ordered=True)], workers=2)

    @consumer.handler
    def work(message: Message) -> None:
        flagged = message.redelivered or message.tries > 0
        line = f"{message.queue} {message.body.decode()} {int(flagged)} {time.monotonic()}\n"
        os.write(out, line.encode())  # one write, so lines of several processes do not mix
        time.sleep(0.003)  # so that some are in hand whenever something happens

    consumer.run()


if __name__ == "__main__":
    main(*sys.argv[1:])
