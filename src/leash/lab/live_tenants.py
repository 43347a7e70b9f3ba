"""`tenants` on a real broker, with the real consumer: the same arrivals, in real time."""

from __future__ import annotations

import threading
import time

from leash.amqp import Outgoing, Properties, Publisher, connect
from leash.amqp.topology import declare_queue, purge_queue
from leash.consumer import Consumer, Message
from leash.fleet import Tenants
from leash.lab import tenants
from leash.lab.figures import Progress, Run
from leash.lab.live import prompt_threads
from leash.lab.quiet import Sleeper
from leash.lab.tenants import Done, Kind, Sent
from leash.units import SECOND

_STEP = 0.005
"""Seconds between two lots that are published."""


def measure(uri: str, progress: Progress) -> Run:
    run = Run()
    jobs = Tenants("jobs", by="header:tenant", lanes=tenants.LANES, own=1)
    jobs.declare(uri)
    with connect(uri, name="lab") as connection, connection.channel() as channel:
        declare_queue(channel, "fifo")
    steps = [(kind, way) for kind in tenants.KINDS for way in tenants.WAYS]
    began = time.monotonic()
    with prompt_threads(), Sleeper() as sleeper:
        for number, (kind, way) in enumerate(steps):
            if way == "Leash, isolated":
                jobs.isolate(uri, tenants.NOISY)
            tenants.fill(run, kind, way, _measured(uri, jobs, kind, way))
            if way == "Leash, isolated":
                jobs.release(uri, tenants.NOISY)
            _empty(uri, ["fifo", *jobs.queues])
            progress((number + 1) / len(steps))
        run.away = sleeper.away(began, time.monotonic())
    return run


def _measured(uri: str, jobs: Tenants, kind: Kind, way: str) -> list[Done]:
    sent = tenants.load(kind, way != "without it")
    done: dict[int, Done] = {}
    over = threading.Event()
    began = 0
    if way.startswith("Leash"):
        consumer = Consumer(uri, tenants=jobs, workers=tenants.WORKERS, cost="time", report=False, drain=2.0)
        exchange, key = "jobs", ""
    else:
        consumer = Consumer(uri, ["fifo"], workers=tenants.WORKERS, cost="time", report=False, drain=2.0)
        exchange, key = "", "fifo"

    @consumer.handler
    def handle(message: Message) -> None:
        number = int(message.body)
        at, tenant = sent[number]
        over.wait((kind.service if tenant == tenants.NOISY else tenants.SERVICE) / SECOND)
        if not over.is_set():
            done[number] = Done(at, tenant, time.monotonic_ns() - began - at)

    with consumer:
        began = time.monotonic_ns()
        _publish(uri, sent, began, exchange, key)
        time.sleep(max(0, began + tenants.SPAN - time.monotonic_ns()) / SECOND)
        over.set()
    left = [Done(*each, tenants.SPAN - each.at) for n, each in enumerate(sent) if n not in done]
    return [*done.values(), *left]


def _publish(uri: str, sent: list[Sent], began: int, exchange: str, key: str) -> None:
    with connect(uri, name="lab") as connection, Publisher(connection) as publisher:
        at = 0
        while at < len(sent):
            now = time.monotonic_ns() - began
            lot = []
            while at < len(sent) and sent[at].at <= now:
                properties = Properties(headers={"tenant": sent[at].tenant}, delivery_mode=1)
                lot.append(Outgoing(b"%d" % at, exchange, key, properties))
                at += 1
            publisher.publish(lot)
            time.sleep(_STEP)


def _empty(uri: str, queues: list[str]) -> None:
    with connect(uri, name="lab") as connection, connection.channel() as channel:
        for name in queues:
            purge_queue(channel, name)
