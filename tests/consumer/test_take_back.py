"""Messages taken back from a worker that did not begin them: none is lost, and no lane stays behind."""

from __future__ import annotations

import threading

import pytest

from leash import Message, Stream
from leash.amqp.properties import NONE
from leash.amqp.wire import Deliveries
from leash.consumer.clock import SYSTEM
from leash.consumer.engine import Engine
from leash.consumer.stream_link import StreamLink
from leash.consumer.take_back import recall
from leash.consumer.threads import ThreadPool
from leash.consumer.workers import Worker
from leash.flow import Flow
from tests.waiting import until

COUNT = 20


def _failed(messages: list[Message], error: BaseException) -> None:
    raise AssertionError(messages) from error


@pytest.mark.parametrize("ordered", [True, False])
def test_a_worker_that_is_held_up_before_it_begins_holds_up_nobody(
    monkeypatch: pytest.MonkeyPatch, ordered: bool
) -> None:
    """On a busy machine a thread can lose its core just then, for longer than a batch should take."""
    spec = Stream("s", ordered=ordered, window=COUNT).lane("n")
    engine = Engine(Flow([spec.lane()], workers=2), None)
    engine.streams = ["s"]
    link = StreamLink(spec, SYSTEM, COUNT, 0, threading.Event(), lambda: True, lambda: 1 << 17)
    engine.links["s"] = link
    seen: list[int] = []
    pool = ThreadPool(engine, lambda message: seen.append(int(message.body)), 2, None, _failed)
    at, held = Worker.at, set[int]()

    def held_up(worker: Worker, queue: str) -> int:
        begin = at(worker, queue)
        if len(seen) % 5 == 0 and len(seen) not in held:
            held.add(len(seen))
            recall(engine, worker)  # as the upkeep does meanwhile
        return begin

    monkeypatch.setattr(Worker, "at", held_up)
    batch = Deliveries(0, "")
    batch.tags, batch.bodies = list(range(COUNT)), [b"%d" % each for each in range(COUNT)]
    batch.redelivered, batch.properties = [False] * COUNT, [NONE] * COUNT
    batch.exchanges, batch.routing_keys = [""] * COUNT, ["s"] * COUNT
    with engine.lock:
        link.ledger.expect(batch.tags)
    engine.arrivals.deliver(link, batch)
    pool.start()
    try:
        until(lambda: len(seen) == COUNT, 20)
        until(lambda: link.ledger.unsettled == 0, 20)
    finally:
        engine.stop()
        assert pool.join(SYSTEM.now() + 20_000_000_000)
    assert held
    assert (seen if ordered else sorted(seen)) == list(range(COUNT))
    assert link.ledger.last == COUNT - 1
    assert engine.flow.in_work == 0
