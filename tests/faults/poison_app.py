"""A consumer to be killed: writes a line for each message that it begins; never comes back from poison."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import sys
import time

from leash import Consumer, Message, Queue
from leash.errors import NotDrained


def main(uri: str, path: str, style: str, *names: str) -> None:
    logging.basicConfig(level=logging.INFO, format=f"%(asctime)s {os.getpid()} %(message)s")
    out = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    queues = [Queue(name, ordered=name.startswith("ordered")) for name in names]
    consumer = Consumer(uri, queues, drain=0.2)

    def begin(message: Message) -> bool:
        os.write(out, b"%s %s\n" % (message.queue.encode(), message.body))
        return message.body.startswith(b"poison")

    if style == "async":

        @consumer.handler
        async def hold(message: Message) -> None:
            while begin(message):
                await asyncio.sleep(3600)

    else:

        @consumer.handler
        def work(message: Message) -> None:
            while begin(message):
                time.sleep(3600)

    with contextlib.suppress(NotDrained):  # poison is never done
        consumer.run()


if __name__ == "__main__":
    main(*sys.argv[1:])
