"""The test double: exact in virtual time, the same in every run, and honest about what it does not have."""

from __future__ import annotations

import asyncio
import datetime
import re
import time
from pathlib import Path
from typing import Any

import pytest

from leash import Consumer, Message, Queue, Retry
from leash.amqp import Properties
from leash.errors import ConfigError
from leash.testing import Rehearsal, Unfinished
from leash.testing.loop import EPOCH

URI = "amqp://nowhere.invalid"


def idle(message: Message) -> None:
    """A handler that does nothing."""


def consumer_of(*queues: Queue | str, **options: object) -> Consumer:
    consumer = Consumer(URI, list(queues), **options)  # type: ignore[arg-type]
    consumer.handler(idle)
    return consumer


def test_shares_are_exact() -> None:
    consumer = consumer_of(Queue("gold", 10), Queue("free", 1))
    with Rehearsal(consumer, takes=0.004) as stage:
        stage.publish("gold", [b"g"] * 1000)
        stage.publish("free", [b"f"] * 1000)
        stage.advance(3.3)
        assert len(stage.handled) in (825, 826)
        assert stage.shares()["gold"] == pytest.approx(10 / 11, abs=0.001)
        assert consumer.stats().spread <= 1


def test_two_runs_of_one_consumer_are_the_same() -> None:
    consumer = consumer_of(Queue("a", 3), Queue("b", 2, rate=40, burst=3), "c", workers=3)

    def run() -> tuple[object, ...]:
        with Rehearsal(consumer, takes=lambda message: 0.001 * (1 + len(message.body))) as stage:
            for name in "abc":
                stage.publish(name, [b"x" * (n * 7 % 5) for n in range(200)])
            stage.run()
            return [(each.at, each.queue, each.body) for each in stage.handled], stage.settled, stage.now

    assert run() == run()


def test_minutes_of_retries_go_by_at_once() -> None:
    consumer = Consumer(URI, ["q"], retry=Retry(tries=4, delay=120))

    @consumer.handler
    def work(message: Message) -> None:
        raise ConnectionError("down")

    begin = time.monotonic()
    with Rehearsal(consumer, takes=0.5) as stage:
        stage.publish("q", b"x", headers={"tenant": "a"})
        stage.run()
        assert [each.at for each in stage.handled] == pytest.approx([0, 120.5, 241, 361.5])
        assert stage.retried("q") == [b"x"] * 3
        (parked,) = stage.parked("q")
        assert (parked.body, parked.headers["tenant"], parked.headers["x-leash-tries"]) == (b"x", "a", 4)
        assert stage.acked() == []
        assert stage.outcomes("republished") == [b"x"] * 4
    assert isinstance(stage.handled[0].error, ConnectionError)
    assert time.monotonic() - begin < 300  # of 361 that pass on the stage


def test_a_handler_may_stop_its_consumer() -> None:
    consumer = Consumer(URI, ["q"])

    @consumer.handler
    def work(message: Message) -> None:
        assert not consumer.stop()

    for _ in range(2):
        with Rehearsal(consumer) as stage:
            stage.publish("q", [b"1", b"2"])
            stage.advance(1)
            assert stage.stop()
            assert (stage.acked(), stage.depth("q")) == ([b"1"], 1)


def test_what_was_settled_by_hand_before_it_failed_is_not_retried() -> None:
    consumer = Consumer(URI, ["q", Queue("line", ordered=True)], retry=Retry(2, delay=1))

    @consumer.handler
    def work(message: Message) -> None:
        if message.body == b"by hand":
            message.ack()
        raise ValueError("no")

    with Rehearsal(consumer) as stage:
        stage.publish("q", [b"by hand", b"left"])
        stage.publish("line", b"in order")
        stage.run()
        assert (stage.retried("q"), stage.retried("line")) == ([b"left"], [b"in order"])
        assert stage.acked() == [b"by hand"]
        assert [len(stage.parked(queue)) for queue in ("q", "line")] == [1, 1]


def test_a_rate_is_kept_to_the_nanosecond() -> None:
    consumer = consumer_of(Queue("sms", rate=50, burst=100))
    with Rehearsal(consumer, takes=0) as stage:
        stage.publish("sms", [b"x"] * 600)
        stage.run()
        times = [each.at for each in stage.handled]
        assert times[99] == 0
        assert times[100:] == pytest.approx([(n + 1) / 50 for n in range(500)], abs=1e-6)


def test_workers_of_different_speed_each_take_what_they_can() -> None:
    consumer = Consumer(URI, ["q"], workers=2)
    workers: list[asyncio.Task[object] | None] = []

    @consumer.handler
    async def work(message: Message) -> None:
        task = asyncio.current_task()
        if task not in workers:
            workers.append(task)
        await asyncio.sleep(1.0 if task is workers[0] else 0.01)
        done[workers.index(task)] += 1

    done = [0, 0]
    with Rehearsal(consumer, takes=0) as stage:
        stage.publish("q", [b"x"] * 2000)
        stage.advance(10.5)
    assert done[0] == 11
    assert done[1] == pytest.approx(1050, rel=0.1)


def test_by_default_a_handler_takes_a_millisecond_of_virtual_time() -> None:
    with Rehearsal(consumer_of("q")) as stage:
        stage.publish("q", [b"x"] * 100)
        stage.run()
        assert stage.now == pytest.approx(0.1, abs=0.002)


def test_messages_that_are_there_for_ever_are_named() -> None:
    consumer = Consumer(URI, ["q"])

    @consumer.handler
    def work(message: Message) -> None:
        message.requeue()

    with Rehearsal(consumer) as stage:
        stage.publish("q", b"x")
        with pytest.raises(Unfinished, match=r"after 2 virtual seconds there is still work: 'q'"):
            stage.run(most=2)
        assert len(stage.outcomes("requeued")) > 1000


def test_run_leaves_a_paused_queue_alone() -> None:
    consumer = consumer_of("a", "b")
    with Rehearsal(consumer) as stage:
        consumer.pause("a")
        for name in "ab":
            stage.publish(name, [b"x"] * 5)
        stage.run()
        assert (stage.depth("a"), stage.depth("b")) == (5, 0)
        consumer.resume("a")
        stage.run()
        assert stage.shares() == {"a": 0.5, "b": 0.5}


def test_age_and_deadlines_go_by_the_virtual_clock() -> None:
    ages: list[float] = []
    consumer = Consumer(URI, [Queue("q", shed="drop", deadline=30, interval=0.1, window=100)])

    @consumer.handler
    def work(message: Message) -> None:
        ages.append(message.age)

    born = datetime.datetime.fromtimestamp(EPOCH, datetime.UTC)
    with Rehearsal(consumer, takes=1) as stage:
        stage.publish("q", [b"x"] * 100, properties=Properties(timestamp=born))
        stage.run()
        dropped = stage.outcomes("dropped")
    assert ages[:20] == pytest.approx(list(range(20)), abs=0.01)
    assert dropped
    assert len(ages) + len(dropped) == 100


def test_threads_of_a_handler_are_waited_for_while_the_clock_stands_still() -> None:
    consumer = Consumer(URI, ["q"])
    done: list[bytes] = []

    @consumer.handler
    async def work(message: Message) -> None:
        await asyncio.to_thread(time.sleep, 0.02)
        done.append(message.body)

    with Rehearsal(consumer, takes=0.5) as stage:
        stage.publish("q", [b"1", b"2"])
        stage.run()
        assert stage.now == pytest.approx(1)
    assert done == [b"1", b"2"]


def test_stop_waits_for_running_handlers_no_longer_than_the_drain() -> None:
    consumer = Consumer(URI, ["q"], drain=5)
    consumer.handler(idle)
    with Rehearsal(consumer, takes=3) as stage:
        stage.publish("q", [b"1", b"2"])
        stage.advance(1)
        assert stage.stop()
        assert stage.now == pytest.approx(3, abs=0.1)
        assert stage.acked() == [b"1"]
        assert [each.body for each in stage.messages("q")] == [b"2"]
    with Rehearsal(consumer, takes=30) as stage:
        stage.publish("q", b"1")
        stage.advance(1)
        assert not stage.stop()
        assert [each.body for each in stage.messages("q")] == [b"1"]


def test_the_handler_sees_the_address_as_published() -> None:
    seen: list[tuple[str, str, str]] = []
    consumer = Consumer(URI, ["q"], retry=Retry(2, delay=1))

    @consumer.handler
    def work(message: Message) -> None:
        seen.append((message.queue, message.exchange, message.routing_key))
        if not message.tries:
            raise ValueError("again")

    with Rehearsal(consumer) as stage:
        stage.publish("q", b"x", exchange="orders", routing_key="eu.new")
        stage.run()
    assert seen == [("q", "orders", "eu.new")] * 2


def test_bad_input_is_answered() -> None:
    with pytest.raises(ConfigError, match="takes"):
        Rehearsal(consumer_of("q"), takes=-1)
    with pytest.raises(ConfigError, match="handler"), Rehearsal(Consumer(URI, ["q"])):
        pass
    with Rehearsal(consumer_of("q")) as stage:
        with pytest.raises(ConfigError, match="bodies"):
            stage.publish("q", ["text"])  # type: ignore[list-item]
        with pytest.raises(ConfigError, match="default exchange"):
            stage.declare("q", {"x-dead-letter-exchange": "dlx"})
        with pytest.raises(ConfigError, match="outcome"):
            stage.outcomes("acked")


def test_a_test_that_fails_on_stage_fails_with_its_own_error() -> None:
    consumer = consumer_of("q")
    with pytest.raises(ConfigError, match="seconds=-1"), Rehearsal(consumer, takes=10) as stage:
        stage.advance(-1)
    with Rehearsal(consumer) as stage:
        stage.publish("q", b"x")
        stage.run()
        assert stage.acked() == [b"x"]


def test_a_slow_handler_gives_up_its_first_window_after_a_few_messages() -> None:
    consumer = consumer_of("q")
    with Rehearsal(consumer, takes=1.0) as stage:
        stage.publish("q", [b""] * 50)
        stage.advance(4.5)
        assert consumer.stats().queues["q"].window <= 3


def test_the_tests_in_the_documentation_pass() -> None:
    text = (Path(__file__).parents[2] / "docs" / "testing.md").read_text()
    (example,) = re.findall(r"```python\n(.*?)```", text, flags=re.S)
    names: dict[str, Any] = {}
    exec(compile(example, "docs/testing.md", "exec"), names)  # noqa: S102
    tests = [name for name in names if name.startswith("test_")]
    assert len(tests) == 2
    for name in tests:
        names[name]()
