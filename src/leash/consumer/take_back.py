"""Takes back messages that wait behind a slow one: their worker took several, and others are free."""

from __future__ import annotations

import contextlib
from collections import deque

from leash.consumer.engine import Engine
from leash.consumer.raw_delivery import ARRIVED, LINK, Raw
from leash.consumer.workers import Worker


def recall(engine: Engine, worker: Worker) -> None:
    """The worker has been busy for longer than its batch should take: ack what is done, and give the messages
    that it did not begin to others.
    """
    if not worker.done and not any(worker.todo):
        return
    with engine.lock:
        if worker.begin is None or engine.stopping:
            return
        for index, todo in enumerate(worker.todo):
            _come_back(engine, worker, index, _drained(todo))
        engine.flow.rounds.rewind()
        done = worker.done[:]
        del worker.done[: len(done)]
        engine.settler.done(done)
        engine.wake()


def put_back(engine: Engine, worker: Worker, index: int, first: Raw) -> None:
    """Put back a dispatch whose permits expired, from this message on."""
    with engine.lock:
        _come_back(engine, worker, index, [first, *_drained(worker.todo[index])])
        engine.flow.rounds.rewind()
        engine.wake()


def _come_back(engine: Engine, worker: Worker, index: int, raws: list[Raw]) -> None:
    back = [raw for raw in raws if not _useless(engine, raw)]
    if back:
        arrived = [raw[ARRIVED] for raw in back]
        worker.work[index] = engine.flow.recall(engine.clock.now(), worker.work[index], back, arrived)


def _useless(engine: Engine, raw: Raw) -> bool:
    """True if no worker may begin with it: its queue is paused, or its channel gone."""
    link = raw[LINK]
    if link.alive and not link.ending:
        return False
    engine.settler.give_back(link, [raw])
    return True


def _drained(todo: deque[Raw]) -> list[Raw]:
    """The messages that are left, taken one by one from the end while a worker takes from the front."""
    taken = []
    with contextlib.suppress(IndexError):
        while True:
            taken.append(todo.pop())
    return taken[::-1]
