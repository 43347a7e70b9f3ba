"""What a consumer does when it is told something while it runs, on a real broker and in memory."""

from __future__ import annotations

from collections import Counter

import pytest

from leash import Consumer, Message, Queue
from tests.consumer.worlds import World, bodies


def test_a_paused_queue_gives_back_what_it_holds_and_goes_on_when_resumed(world: World) -> None:
    for name in ("a", "b"):
        world.declare(name)
        world.publish(name, bodies(100))
    seen: Counter[str] = Counter()
    consumer = Consumer(world.uri, ["a", "b"])

    @consumer.handler
    def work(message: Message) -> None:
        world.spend(0.002)
        seen[message.queue] += 1

    with world.play(consumer):
        world.until(lambda: seen["a"] > 5)
        consumer.pause("a")
        world.until(lambda: consumer.stats().queues["a"].unsettled == 0)
        before = seen["a"]
        world.until(lambda: seen["b"] == 100)
        assert seen["a"] == before
        world.until(lambda: world.depth("a") == 100 - before)
        consumer.resume("a")
        world.until(lambda: seen["a"] == 100)
    assert world.depth("a") == 0


def test_quantum_and_rate_change_while_it_runs(world: World) -> None:
    for name in ("a", "b"):
        world.declare(name)
        world.publish(name, bodies(800))
    seen: Counter[str] = Counter()
    consumer = Consumer(world.uri, ["a", "b"])

    @consumer.handler
    def work(message: Message) -> None:
        world.spend(0.001)
        seen[message.queue] += 1

    with world.play(consumer):
        world.until(lambda: sum(seen.values()) > 50)
        assert abs(seen["a"] - seen["b"]) <= 3
        consumer.set_quantum("a", 9)
        seen.clear()
        world.until(lambda: sum(seen.values()) > 300)
        assert seen["a"] == pytest.approx(9 * seen["b"], rel=0.15)
        consumer.set_rate("a", 10, 1)
        world.sleep(0.1)
        seen.clear()
        begin = world.now()
        world.until(lambda: seen["b"] > 200)
        assert seen["a"] <= 10 * (world.now() - begin) + 2


def test_stopping_finishes_what_runs_and_gives_the_rest_back(world: World) -> None:
    world.declare("q")
    world.publish("q", bodies(60))
    done: list[bytes] = []
    consumer = Consumer(world.uri, [Queue("q", window=30)])

    @consumer.handler
    def work(message: Message) -> None:
        done.append(message.body)
        world.spend(0.01)

    with world.play(consumer):
        world.until(lambda: len(done) >= 5)
    world_left = world.depth("q")
    assert len(done) + world_left == 60
    assert done == bodies(len(done))
