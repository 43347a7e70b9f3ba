"""A process of the fleet: three queues that work, one at its rate, one whose handler never ends."""

from __future__ import annotations

import sys
import time

from leash import Consumer, Message, Queue, Retry

consumer = Consumer(
    sys.argv[1],
    [Queue("gold", 3), "<b>free</b>", Queue("mail", rate=2), "reports"],
    workers=3,
    retry=Retry(1),
    drain=0.1,
    name=sys.argv[2],
)


@consumer.handler
def work(message: Message) -> None:
    if message.body == b"stuck":
        time.sleep(600)
    if message.body.startswith(b"<script>"):
        raise ValueError("<img src=x onerror=alert(1)>")
    time.sleep(0.02)


if __name__ == "__main__":
    consumer.run()
