"""A process of the fleet: two queues that work, one at its rate, one under a budget, one that gets stuck.

If its name begins with "tenants", it has lanes of tenants instead, of which one is noisy.
"""

from __future__ import annotations

import sys
import time

from leash import Budget, Consumer, Message, Queue, Retry, Tenants

JOBS = Tenants("jobs", by="header:tenant", lanes=4, own=1)
SMS = Budget("sms-gateway", rate=20, burst=20)


def of_queues(uri: str, name: str) -> Consumer:
    queues = [
        Queue("gold", 3),
        Queue("<b>free</b>"),
        Queue("mail", rate=2),
        Queue("sms", budget=SMS),
        Queue("reports"),
    ]
    return Consumer(uri, queues, workers=3, retry=Retry(1), drain=0.1, name=name)


def of_tenants(uri: str, name: str) -> Consumer:
    return Consumer(uri, tenants=JOBS, cost="time", workers=2, drain=0.1, name=name)


def work(message: Message) -> None:
    if message.body == b"stuck":
        time.sleep(600)
    if message.body.startswith(b"<script>"):
        raise ValueError("<img src=x onerror=alert(1)>")
    time.sleep(0.2 if message.body == b"slow" else 0.02)


if __name__ == "__main__":
    consumer = (of_tenants if sys.argv[2].startswith("tenants") else of_queues)(*sys.argv[1:])
    consumer.handler(work)
    consumer.run()
