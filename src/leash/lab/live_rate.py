"""`rate` on a real broker, for ten real seconds: one queue with a bucket, and two under one total."""

from __future__ import annotations

import time

from leash.consumer import Consumer, Message, Queue
from leash.lab import rate
from leash.lab.figures import Progress, Run
from leash.lab.live import fill, plain
from leash.units import SECOND


def measure(uri: str, progress: Progress) -> Run:
    run = Run()
    fill(uri, {"send_mt": plain("send_mt", 100), **{name: plain(name, 1000) for name in rate.QUANTA}})
    limited = Consumer(uri, [Queue("send_mt", rate=rate.RATE, burst=rate.BURST, window=rate.PREFETCH)])
    shared = Consumer(
        uri,
        [Queue(name, quantum, window=rate.PREFETCH) for name, quantum in rate.QUANTA.items()],
        rate=rate.TOTAL_RATE,
        burst=rate.TOTAL_BURST,
    )
    starts: list[int] = []
    served: list[tuple[int, str]] = []
    limited.handler(lambda _: starts.append(time.monotonic_ns()))

    @shared.handler
    def handle(message: Message) -> None:
        served.append((time.monotonic_ns(), message.queue))

    with limited, shared:
        for part in range(26):  # a little more than ten seconds
            progress(part / 26)
            time.sleep(0.4)
    rate.fill(run, starts)
    end = served[0][0] + rate.TOTAL_SPAN * SECOND
    counts = dict.fromkeys(rate.QUANTA, 0)
    for at, queue in served:
        counts[queue] += at <= end
    rate.fill_total(run, counts)
    progress(1)
    return run
