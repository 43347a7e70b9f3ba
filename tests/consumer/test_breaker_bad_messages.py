"""The breaker and the retry budget beside bad messages: parked, and in their turn where order is kept."""

from __future__ import annotations

import threading
from collections import Counter
from typing import Any

import pytest

from leash import Breaker, Consumer, Message, Queue, Retry
from leash.amqp import Channel
from leash.amqp.topology import declare_queue
from leash.testing import Rehearsal
from tests.consumer.kit import depth, numbered, publish, running, until
from tests.consumer.worlds import World

URI = "amqp://nowhere.invalid"
BREAKER = Breaker()


# --- bad messages ---


def test_a_bad_message_among_good_ones_is_parked_and_the_breaker_stays_closed(world: World) -> None:
    consumer = Consumer(world.uri, ["q"], breaker=BREAKER, retry=Retry(tries=3, delay=0.1))
    done: list[bytes] = []

    @consumer.handler
    def work(message: Message) -> None:
        if int(message.body) % 10 == 7:
            raise ValueError("bad")
        done.append(message.body)

    world.declare("q")
    world.publish("q", numbered(200))
    with world.play(consumer):
        world.until(lambda: world.depth("leash.dead.q") == 20)
        world.until(lambda: len(done) == 180)
        counts = consumer.stats().queues["q"].counts
        assert (counts["failed"], counts["parked"]) == (60, 20)
        assert "opened" not in counts


def test_a_long_run_of_bad_messages_is_passed_and_parked_in_the_end() -> None:
    consumer = Consumer(URI, [Queue("q", window=10)], breaker=BREAKER)

    @consumer.handler
    def work(message: Message) -> None:
        if message.body == b"bad":
            raise ValueError("bad")

    with Rehearsal(consumer) as stage:
        stage.publish("q", [b"bad"] * 60)
        for _ in range(200):
            stage.publish("q", [b"good"] * 20)
            stage.advance(1)
        stage.run()
        assert len(stage.parked("q")) == 60
        assert stage.acked().count(b"good") == 4000


def test_a_queue_of_nothing_but_bad_messages_is_parked_after_the_patience() -> None:
    consumer = Consumer(URI, ["q"], breaker=Breaker(patience=120), retry=Retry(tries=3, delay=1))

    @consumer.handler
    def work(message: Message) -> None:
        raise ValueError("bad")

    with Rehearsal(consumer) as stage:
        stage.publish("q", numbered(20))
        stage.advance(119)
        assert stage.parked("q") == []
        stage.run()
        assert {each.body for each in stage.parked("q")} == set(numbered(20))
        assert stage.depth("q") == 0


def test_what_another_try_cannot_help_says_nothing_about_an_outage() -> None:
    consumer = Consumer(URI, ["q"], breaker=BREAKER, retry=Retry(give_up_on=KeyError))

    @consumer.handler
    def work(body: dict[str, Any]) -> None:
        raise KeyError("no such thing")

    with Rehearsal(consumer) as stage:
        stage.publish("q", [b"{}", b"not json"] * 20)
        stage.run()
        assert len(stage.parked("q")) == 40
        assert consumer.stats().queues["q"].breaker == "closed"


def test_failures_in_an_outage_that_no_try_can_help_are_parked_at_once() -> None:
    consumer = Consumer(URI, ["q"], breaker=BREAKER, retry=Retry(give_up_on=KeyError))
    stages: list[Rehearsal] = []

    @consumer.handler
    def work(message: Message) -> None:
        if message.body == b"bad":
            raise KeyError("no such thing")
        if stages[0].now < 30:
            raise ConnectionError("down")

    with Rehearsal(consumer) as stage:
        stages.append(stage)
        stage.publish("q", [b"good"] * 10 + [b"bad"] * 10 + [b"good"] * 10)
        stage.advance(29)
        assert [each.body for each in stage.parked("q")] == [b"bad"] * 10
        stage.run()
        assert stage.acked() == [b"good"] * 20


# --- order ---


def test_ordered_queues_of_one_handler_share_an_outage_and_keep_their_order() -> None:
    names = [f"line {number}" for number in range(6)]
    queues = [Queue(name, ordered=True) for name in names]
    consumer = Consumer(URI, queues, workers=6, breaker=BREAKER)
    stages: list[Rehearsal] = []

    @consumer.handler
    def work(message: Message) -> None:
        if 5 <= stages[0].now < 65:
            raise ConnectionError("down")

    with Rehearsal(consumer, takes=0.002) as stage:
        stages.append(stage)
        for second in range(80):
            for name in names:
                stage.publish(name, numbered(20, second * 20))
            stage.advance(1)
        stage.run()
        assert not any(stage.parked(name) for name in names)
    good = [each for each in stage.handled if each.error is None]
    for name in names:
        assert [each.body for each in good if each.queue == name] == numbered(1600)
    assert len(stage.handled) - len(good) <= 5 + 6 + 65


def test_a_bad_message_of_an_ordered_queue_is_parked_in_its_turn() -> None:
    consumer = Consumer(URI, [Queue("q", ordered=True)], breaker=BREAKER)

    @consumer.handler
    def work(message: Message) -> None:
        if message.body == b"50":
            raise ValueError("bad")

    with Rehearsal(consumer) as stage:
        stage.publish("q", numbered(100))
        stage.run()
        assert [each.body for each in stage.parked("q")] == [b"50"]
        assert stage.acked() == [body for body in numbered(100) if body != b"50"]
        assert "opened" not in consumer.stats().queues["q"].counts


@pytest.mark.broker
def test_an_ordered_queue_keeps_its_order_through_an_outage(channel: Channel, uri: str) -> None:
    declare_queue(channel, "q", kind="quorum", arguments={"x-single-active-consumer": True})
    publish(channel, "q", numbered(200))
    consumer = Consumer(
        uri,
        [Queue("q", ordered=True)],
        breaker=Breaker(failures=1, probe=0.1),  # one queue: the first failure is all that it can tell
    )
    good: list[bytes] = []
    down = threading.Event()

    @consumer.handler
    def work(message: Message) -> None:
        if len(good) == 100 and not down.is_set():
            raise ConnectionError("down")
        good.append(message.body)

    with running(consumer):
        until(lambda: consumer.stats().queues["q"].counts.get("excused", 0) >= 10)
        down.set()
        until(lambda: len(good) == 200)
    assert good == numbered(200)
    assert depth(channel, "leash.dead.q") == 0


# --- the retry budget ---


def test_retries_are_a_share_of_successes_and_nothing_is_parked_for_want_of_them(world: World) -> None:
    consumer = Consumer(world.uri, ["q"], retry=Retry(tries=50, delay=0.1, budget=0.1))
    tried: Counter[bytes] = Counter()
    calls: Counter[str] = Counter()

    @consumer.handler
    def work(message: Message) -> None:
        tried[message.body] += 1
        calls["retries"] += message.tries > 0
        if int(message.body) % 4 == 0 and tried[message.body] < 4:
            raise ConnectionError("overloaded")
        calls["successes"] += 1

    world.declare("q")
    world.publish("q", numbered(400))
    with world.play(consumer):
        begin = world.now()
        world.until(lambda: consumer.stats().queues["q"].counts.get("put off", 0) > 10)
        for more in range(40):  # they pay for the rest
            world.publish("q", [b"%d" % (number * 4 + 1) for number in range(1000 + more, 1100 + more)])
            world.sleep(0.1)
        world.until(lambda: calls["successes"] == 400 + 4000)
        seconds = world.now() - begin
    assert calls["retries"] == 300
    assert calls["retries"] <= 0.1 * calls["successes"] + seconds + 1
    assert world.depth("leash.dead.q") == 0


def test_an_ordered_queue_waits_for_its_retry() -> None:
    consumer = Consumer(URI, [Queue("q", ordered=True)], retry=Retry(tries=4, delay=0.1, budget=0.01))

    @consumer.handler
    def work(message: Message) -> None:
        if message.body == b"3":
            raise ValueError("bad")

    with Rehearsal(consumer) as stage:
        stage.publish("q", numbered(10))
        stage.run()
        times = [each.at for each in stage.handled if each.body == b"3"]
        assert [each.body for each in stage.parked("q")] == [b"3"]
        assert stage.acked() == [body for body in numbered(10) if body != b"3"]
    assert times == pytest.approx([0.003, 0.1, 1.1, 2.1], abs=0.15)  # one free one a second
