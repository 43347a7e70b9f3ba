"""A consumer of streams to be killed: writes a line for every message that it has handled."""

from __future__ import annotations

import os
import sys
import time

from leash import Consumer, Message, Stream
from leash.consumer import stream_lane


def main(uri: str, port: str, path: str, kind: str, names: str, workers: str) -> None:
    stream_lane.STORE_EVERY = 0.05  # so that there is something stored at every kill
    out = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    if kind == "super":
        consumer = Consumer(uri, super_stream=names, name="billing", stream_port=int(port))
    else:
        listed = [Stream(each, ordered=kind == "ordered") for each in names.split(",")]
        consumer = Consumer(uri, streams=listed, name="billing", stream_port=int(port), workers=int(workers))

    @consumer.handler
    def work(message: Message) -> None:
        time.sleep(0.0005)
        os.write(out, b"%d %s %s\n" % (os.getpid(), message.queue.encode(), message.body))

    consumer.run()


if __name__ == "__main__":
    main(*sys.argv[1:])
