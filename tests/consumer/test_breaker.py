"""The breaker in an outage of what a handler calls: nothing is parked, and it costs few calls."""

from __future__ import annotations

import asyncio
import itertools
import threading
from collections import Counter

import pytest
from prometheus_client import CollectorRegistry

from leash import Breaker, Consumer, Message, Queue, Retry
from leash.amqp import Channel
from leash.consumer.metrics import ConsumerCollector
from leash.errors import ConfigError
from leash.testing import Rehearsal
from tests.consumer.kit import depth, fill, numbered, running, until
from tests.consumer.worlds import World

URI = "amqp://nowhere.invalid"
BREAKER = Breaker()


def played(
    consumer: Consumer, queues: list[str], seconds: int, per_second: int, outage: range
) -> tuple[Rehearsal, Counter[str]]:
    """`per_second` messages a second for each queue; in an outage, every call for the first queue fails."""
    stages: list[Rehearsal] = []

    def work(message: Message) -> None:
        if message.queue.startswith(queues[0]) and int(stages[0].now) in outage:
            raise ConnectionError("down")

    consumer.handler(work)
    parked: Counter[str] = Counter()
    with Rehearsal(consumer, takes=0.002) as stage:
        stages.append(stage)
        for second in range(seconds):
            for queue in queues:
                stage.publish(queue, numbered(per_second, second * per_second))
            stage.advance(1)
        stage.run()
        for queue in queues:
            parked[queue] = len(stage.parked(queue))
    return stage, parked


# --- an outage ---


@pytest.mark.parametrize("workers", [1, 8])
def test_an_outage_of_a_minute_parks_nothing_costs_few_calls_and_is_over_at_once(workers: int) -> None:
    consumer = Consumer(URI, ["q", "other"], workers=workers, breaker=BREAKER)
    stage, parked = played(consumer, ["q", "other"], 80, 40, range(10, 70))
    calls = [each for each in stage.handled if each.queue == "q"]
    good = [each for each in calls if each.error is None]
    assert parked["q"] == 0
    assert {each.body for each in good} == set(numbered(3200))
    assert len(calls) <= 1.1 * 3200
    assert len(calls) - len(good) <= 5 + workers + 65
    # Back at once: two seconds after the end it has what one second of full speed gives, beside the other.
    assert sum(70 <= each.at < 72 for each in good) >= 240
    # The other queue did not notice.
    others = [each for each in stage.handled if each.queue == "other"]
    assert len(others) == 3200
    assert sum(30 <= each.at < 31 for each in others) == 40


def test_without_a_breaker_the_same_outage_parks_what_it_meets() -> None:
    stage, parked = played(Consumer(URI, ["q"]), ["q"], 80, 8, range(10, 70))
    assert parked["q"] >= 8 * 50
    assert len(stage.handled) > 3 * 640


def test_handlers_that_are_coroutines_have_it_too(caplog: pytest.LogCaptureFixture) -> None:
    consumer = Consumer(URI, ["q"], workers=20, breaker=BREAKER)
    stages: list[Rehearsal] = []

    @consumer.handler
    async def work(message: Message) -> None:
        await asyncio.sleep(0.01)
        if 1 <= stages[0].now < 31:
            raise ConnectionError("down")

    with Rehearsal(consumer, takes=0) as stage:
        stages.append(stage)
        for _ in range(40):
            stage.publish("q", numbered(100))
            stage.advance(1)
        stage.run()
        assert stage.parked("q") == []
        assert len(stage.acked()) == 4000
    assert len(stage.handled) - 4000 <= 5 + 20 + 35
    lines = [each.getMessage() for each in caplog.records]
    assert sum("event=breaker_opened" in line for line in lines) == 1
    assert sum("event=breaker_closed" in line for line in lines) == 1


def test_a_batch_is_one_call() -> None:
    consumer = Consumer(URI, ["q"], breaker=BREAKER)
    stages: list[Rehearsal] = []
    sizes: list[int] = []

    @consumer.batch_handler(50, wait=0.2)
    def work(messages: list[Message]) -> None:
        if 5 <= stages[0].now < 65:
            raise ConnectionError("down")
        sizes.append(len(messages))

    with Rehearsal(consumer, takes=0.01) as stage:
        stages.append(stage)
        for _ in range(75):
            stage.publish("q", numbered(100))
            stage.advance(1)
        stage.run()
        assert stage.parked("q") == []
        assert len(stage.acked()) == 7500
    assert max(sizes) == 50
    failed = [each for each in stage.handled if each.error is not None]
    assert len({each.at for each in failed}) <= 5 + 65


def test_the_broker_and_the_double_go_through_an_outage_alike(world: World) -> None:
    consumer = Consumer(
        world.uri, ["q"], workers=4, breaker=Breaker(failures=3, probe=0.2), retry=Retry(delay=0.5)
    )
    calls: Counter[str] = Counter()
    done: set[bytes] = set()
    down = threading.Event()

    @consumer.handler
    def work(message: Message) -> None:
        world.spend(0.002)
        calls[message.queue] += 1
        if down.is_set():
            calls["failed"] += 1
            raise ConnectionError("down")
        done.add(message.body)

    world.declare("q")
    world.publish("q", numbered(500))
    with world.play(consumer):
        world.until(lambda: len(done) == 500)
        down.set()
        world.publish("q", numbered(1000, 500))
        world.until(lambda: consumer.stats().queues["q"].counts.get("excused", 0) >= 10)
        stats = consumer.stats().queues["q"]
        assert (stats.breaker, stats.counts["opened"]) == ("open", 1)
        down.clear()
        world.until(lambda: len(done) == 1500)
        world.until(lambda: consumer.stats().queues["q"].unsettled == 0)
        stats = consumer.stats().queues["q"]
        assert (stats.breaker, stats.counts.get("parked", 0), stats.why) == ("closed", 0, "")
        assert world.depth("leash.dead.q") == 0
    assert stats.counts["failed"] == calls["failed"]
    assert stats.counts["retried"] <= 3
    assert stats.handled == calls["q"]


@pytest.mark.broker
def test_what_waits_for_the_end_of_an_outage_is_returned_by_a_stop(channel: Channel, uri: str) -> None:
    fill(channel, "q", 300, kind="quorum")
    calls = itertools.count()

    def started(works: bool) -> Consumer:
        consumer = Consumer(uri, ["q"], workers=3, breaker=Breaker(probe=0.1))

        @consumer.handler
        def work(message: Message) -> None:
            if not works:
                next(calls)
                raise ConnectionError("down")
            done.append(message.body)

        return consumer

    done: list[bytes] = []
    for _ in range(3):
        consumer = started(works=False)
        with running(consumer):
            until(lambda: consumer.stats().queues["q"].counts.get("excused", 0) >= 5)  # noqa: B023
    with running(started(works=True)):
        until(lambda: set(done) == set(numbered(300)))
    assert depth(channel, "leash.dead.q") == 0


# --- arguments and numbers ---


def test_wrong_arguments_are_refused() -> None:
    for wrong in ({"failures": 0}, {"failures": 1.5}, {"probe": 0}, {"probe": -1}, {"patience": "long"}):
        with pytest.raises(ConfigError, match=next(iter(wrong))):
            Breaker(**wrong)
    with pytest.raises(ConfigError, match="breaker"):
        Consumer(URI, ["q"], breaker=5)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="breaker"):
        Queue("q", breaker=True)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="delay"):
        Retry(delay=0, budget=0.1)
    with pytest.raises(ConfigError, match="budget"):
        Retry(budget=2)


def test_a_queues_own_breaker_goes_before_the_consumers() -> None:
    consumer = Consumer(URI, ["a", Queue("b", breaker=Breaker(failures=100))], breaker=Breaker(failures=2))

    @consumer.handler
    def work(message: Message) -> None:
        raise ConnectionError("down")

    with Rehearsal(consumer) as stage:
        for name in "ab":
            stage.publish(name, numbered(50))
        stage.advance(1)
        queues = consumer.stats().queues
        assert (queues["a"].breaker, queues["b"].breaker) == ("open", "closed")
        assert (queues["a"].why, queues["a"].blocked) == ("breaker open", True)
        assert queues["a"].resumes is not None
        assert queues["a"].resumes <= 1


def test_the_metrics_show_it() -> None:
    consumer = Consumer(URI, ["plain", Queue("q", breaker=BREAKER)])

    @consumer.handler
    def work(message: Message) -> None:
        raise ConnectionError("down")

    registry = CollectorRegistry()
    registry.register(ConsumerCollector(consumer))

    def value(name: str, queue: str = "q") -> float | None:
        return registry.get_sample_value(name, {"queue": queue})

    with Rehearsal(consumer) as stage:
        stage.publish("q", numbered(50))
        assert value("leash_breaker_open") == 0
        stage.advance(10)
        assert (value("leash_breaker_open"), value("leash_breaker_opened_total")) == (1, 1)
        assert value("leash_breaker_open", "plain") is None
        assert (value("leash_excused_total") or 0) >= 8
