"""A process that consumes partitions and writes down what it handled; arguments: URI, file, seconds each."""

from __future__ import annotations

import os
import sys
import time

from leash.consumer import Consumer, Message


def main(uri: str, path: str, pause: str) -> None:
    consumer = Consumer(uri, partitions="orders")
    # One write a line, at once: a killed process must not take its last lines with it.
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    nap = float(pause)

    @consumer.handler
    def handle(message: Message) -> None:
        number = message.body.decode()
        line = f"{time.monotonic_ns()} {message.routing_key} {number} {int(message.redelivered)}\n"
        os.write(file, line.encode())
        if nap:
            time.sleep(nap)

    consumer.run()


if __name__ == "__main__":
    main(*sys.argv[1:])
