"""One process of a fleet: consumes ten queues with quanta 4 to 40, and notes when each message was begun.

    python -m tests.soak.shares_app URI FILE

A record is the time in ns, which all processes of a machine share, and the number of the queue.
"""

from __future__ import annotations

import struct
import sys
import time

from leash import Consumer, Message, Queue

RECORD = struct.Struct("<qB")
NAMES = [f"share.{number}" for number in range(10)]
QUANTA = [4 * (number + 1) for number in range(10)]


def main() -> None:
    uri, path = sys.argv[1:]
    queues = [Queue(name, quantum=quantum) for name, quantum in zip(NAMES, QUANTA, strict=True)]
    consumer = Consumer(uri, queues, report=False)
    numbers = {name: number for number, name in enumerate(NAMES)}
    with open(path, "wb") as file:

        @consumer.handler
        def note(message: Message) -> None:
            file.write(RECORD.pack(time.monotonic_ns(), numbers[message.queue]))

        consumer.run()


if __name__ == "__main__":
    main()
