"""A process of the fleet: two queues that work, one at its rate, one under a budget, one that gets stuck."""

from __future__ import annotations

import sys
import time

from leash import Budget, Consumer, Message, Queue, Retry

SMS = Budget("sms-gateway", rate=20, burst=20)
consumer = Consumer(
    sys.argv[1],
    [Queue("gold", 3), "<b>free</b>", Queue("mail", rate=2), Queue("sms", budget=SMS), "reports"],
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
