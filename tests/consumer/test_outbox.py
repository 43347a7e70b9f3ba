"""Frames on their way to the sockets: none meets another channel, and no connection waits for another."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any

from leash import Queue
from leash.consumer.engine import Engine
from leash.consumer.link import Link
from leash.consumer.outbox import Outbox
from leash.consumer.settle import Outcome
from leash.flow import Flow, Lane
from tests.waiting import until


class Wire:
    """A connection that notes what is written, and takes nothing while its gate is closed."""

    def __init__(self) -> None:
        self.closed = False
        self.written: list[bytes] = []
        self.entered = threading.Event()
        self.gate = threading.Event()
        self.gate.set()

    def write(self, data: bytes) -> None:
        self.entered.set()
        assert self.gate.wait(30)
        self.written.append(data)


def engine_of(*queues: str) -> Engine:
    return Engine(Flow([Lane(name) for name in queues]), None)


def outbox_of(engine: Engine, wire: Any) -> Outbox:
    return Outbox(wire, engine.lock, engine.unwritten)


def link_of(engine: Engine, outbox: Outbox, number: int = 7, queue: str = "q") -> Link:
    """A link that consumes with a window of 2, and has got two messages."""
    channel: Any = SimpleNamespace(
        number=number, closed=False, ask=lambda *_: None, expect_consumer=lambda *_: None
    )
    link = engine.links[queue] = Link(Queue(queue), channel, outbox)
    link.due = engine.due
    link.start(2, 0, lambda *_: None, lambda _: None)
    link.started()
    link.ledger.delivered = 2
    return link


def end_of(link: Link) -> None:
    link.channel.closed = True  # type: ignore[misc]


def test_a_lost_channel_is_not_consumed_again_when_its_last_message_is_settled() -> None:
    engine, wire = engine_of("q"), Wire()
    link = link_of(engine, outbox_of(engine, wire))
    link.resize(1, 1, 0)  # waits until both are settled
    for tag in (1, 2):
        link.settle(tag, Outcome.GIVEN_BACK)
    engine.drain()
    before = list(wire.written)
    end_of(link)
    engine.lost(link)
    engine.flush()
    engine.drain()
    assert wire.written == before


def test_a_window_asked_for_while_a_lost_channel_was_opened_is_not_asked_for_there() -> None:
    engine, wire = engine_of("q"), Wire()
    link = link_of(engine, outbox_of(engine, wire))
    link._starting = True
    link.resize(5, 1, None)
    end_of(link)
    engine.lost(link)
    link.started()
    engine.drain()
    assert wire.written == []


def test_frames_for_a_lost_channel_do_not_go_out_to_the_next_one_of_its_number() -> None:
    engine, wire = engine_of("q", "other"), Wire()
    outbox = outbox_of(engine, wire)
    link, other = link_of(engine, outbox), link_of(engine, outbox, 8, "other")
    link.settle(1, Outcome.REJECTED)
    other.settle(1, Outcome.REJECTED)
    end_of(link)
    engine.lost(link)
    engine.drain()
    assert [data[1:3] for data in wire.written] == [b"\0\x08"]
    assert len(wire.written[0]) == 8 + 13


def test_a_cancelled_consumer_s_frames_still_go_out() -> None:
    engine, wire = engine_of("q"), Wire()
    link = link_of(engine, outbox_of(engine, wire))
    link.settle(1, Outcome.REJECTED)
    engine.cancelled(link)
    engine.drain()
    assert len(wire.written) == 1


def test_a_connection_that_takes_nothing_holds_up_no_other() -> None:
    engine, stuck, free = engine_of("q"), Wire(), Wire()
    outboxes = {wire: outbox_of(engine, wire) for wire in (stuck, free)}
    stuck.gate.clear()
    with engine.lock:
        outboxes[free].add(b"1")
        outboxes[stuck].add(b"1")
    writer = threading.Thread(target=engine.drain)
    writer.start()
    assert stuck.entered.wait(30)
    engine.drain()  # by another thread
    assert free.written == [b"1"]
    stuck.gate.set()
    writer.join()
    assert stuck.written == [b"1"]


def test_who_needs_it_waits_for_what_another_thread_writes() -> None:
    engine, wire = engine_of("q"), Wire()
    outbox = outbox_of(engine, wire)
    wire.gate.clear()
    with engine.lock:
        outbox.add(b"1")
    writer = threading.Thread(target=engine.drain)
    writer.start()
    assert wire.entered.wait(30)
    with engine.lock:
        outbox.add(b"2")
    seen: list[list[bytes]] = []
    waiter = threading.Thread(target=lambda: (engine.drain(outbox), seen.append(list(wire.written))))  # type: ignore[func-returns-value]
    waiter.start()
    until(lambda: not engine.unwritten)  # it has looked
    assert seen == []
    wire.gate.set()
    writer.join()
    waiter.join()
    assert seen == [[b"1", b"2"]]


def test_nobody_waits_for_a_lost_connection() -> None:
    engine, wire = engine_of("q"), Wire()
    outbox = outbox_of(engine, wire)
    with engine.lock:
        outbox.add(b"1")
        outbox.claim()  # whose writer fails
        outbox.add(b"2")
    wire.closed = True
    assert not engine.drain(outbox)
