"""What a consumer promises, on a real broker and on the test double alike: one suite over both."""

from __future__ import annotations

import asyncio
from collections import Counter
from itertools import pairwise

import pytest

from leash import Consumer, Message, Queue, Retry
from tests.consumer.worlds import World, bodies


def test_each_message_is_handled_once_and_acked(world: World) -> None:
    world.declare("q")
    world.publish("q", bodies(50), {"tenant": "a"})
    seen: list[tuple[bytes, object, str, str, int, bool]] = []
    consumer = Consumer(world.uri, ["q"])

    @consumer.handler
    def work(message: Message) -> None:
        tenant = message.headers["tenant"]
        seen.append(
            (message.body, tenant, message.routing_key, message.queue, message.tries, message.redelivered)
        )
        assert 0 <= message.age < 20

    with world.play(consumer):
        world.until(lambda: len(seen) == 50)
        world.until(lambda: consumer.stats().queues["q"].unsettled == 0)
        assert consumer.stats().queues["q"].handled == 50
        assert "failed" not in consumer.stats().queues["q"].counts
    assert seen == [(body, "a", "q", "q", 0, False) for body in bodies(50)]
    assert world.depth("q") == 0


def test_a_failing_message_comes_again_after_the_delay_and_is_parked_in_the_end(world: World) -> None:
    world.declare("q")
    world.publish("q", [b"bad"], {"tenant": 7})
    tries: list[tuple[float, int, str, object]] = []
    consumer = Consumer(world.uri, ["q"], retry=Retry(tries=3, delay=0.2))

    @consumer.handler
    def work(message: Message) -> None:
        tries.append((world.now(), message.tries, message.routing_key, message.headers["tenant"]))
        raise ValueError("no such customer")

    with world.play(consumer):
        world.until(lambda: len(tries) == 3 and world.depth("leash.dead.q") == 1)
        counts = consumer.stats().queues["q"].counts
        assert (counts["failed"], counts["retried"], counts["parked"]) == (3, 2, 1)
        body, headers = world.peek("leash.dead.q")
    assert [each[1:] for each in tries] == [(0, "q", 7), (1, "q", 7), (2, "q", 7)]
    assert all(later[0] - sooner[0] >= 0.19 for sooner, later in pairwise(tries))
    assert body == b"bad"
    assert headers["x-leash-error"] == "ValueError: no such customer"
    assert "in work" in headers["x-leash-traceback"]
    assert (headers["x-leash-exchange"], headers["x-leash-routing-key"]) == ("", "q")
    assert (headers["x-leash-queue"], headers["x-leash-tries"], headers["tenant"]) == ("q", 3, 7)
    assert world.depth("q") == 0


@pytest.mark.parametrize(("mode", "dead", "parked"), [("reject", 1, 0), ("discard", 0, 0), ("park", 0, 1)])
def test_what_is_exhausted_goes_where_it_was_asked_to(
    world: World, mode: str, dead: int, parked: int
) -> None:
    world.declare("dlq")
    world.declare("leash.dead.q")
    world.declare("q", {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dlq"})
    world.publish("q", [b"x"])
    tries: list[int] = []
    consumer = Consumer(
        world.uri,
        ["q"],
        retry=Retry(2, delay=0.05),
        on_exhausted=mode,  # type: ignore[arg-type]
    )

    @consumer.handler
    def work(message: Message) -> None:
        tries.append(message.tries)
        raise OSError("still down")

    with world.play(consumer):
        world.until(lambda: len(tries) == 2 and consumer.stats().queues["q"].unsettled == 0)
        world.sleep(0.2)
    assert tries == [0, 1]
    assert (world.depth("q"), world.depth("dlq"), world.depth("leash.dead.q")) == (0, dead, parked)


def test_a_message_settled_by_hand_is_settled_once(world: World) -> None:
    world.declare("dlq")
    world.declare("q", {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dlq"})
    world.publish("q", bodies(3))
    answers: dict[str, list[bool]] = {}
    again: list[bytes] = []
    consumer = Consumer(world.uri, ["q"])

    @consumer.handler
    def work(message: Message) -> None:
        body = message.body.decode()
        if body == "0":
            answers[body] = [message.ack(), message.ack(), message.reject()]
            raise RuntimeError("after the ack, nobody minds")
        if body == "1":
            answers[body] = [message.reject(), message.requeue()]
        elif message.redelivered:
            again.append(message.body)
        else:
            answers[body] = [message.requeue(), message.ack()]

    with world.play(consumer):
        world.until(lambda: len(answers) == 3 and again)
        world.until(lambda: world.depth("dlq") == 1)
        world.sleep(0.1)
    assert answers == {"0": [True, False, False], "1": [True, False], "2": [True, False]}
    assert again == [b"2"]
    assert (world.depth("q"), world.depth("dlq")) == (0, 1)


@pytest.mark.parametrize("asynchronous", [False, True])
def test_queues_share_by_quantum_while_they_have_work(world: World, asynchronous: bool) -> None:
    quanta = {"gold": 10, "silver": 4, "free": 1}
    for name in quanta:
        world.declare(name)
        world.publish(name, bodies(40 * quanta[name]))
    order: list[str] = []
    consumer = Consumer(world.uri, [Queue(name, quantum) for name, quantum in quanta.items()])

    def note(message: Message) -> None:
        order.append(message.queue)
        world.spend(0.0005)

    async def note_async(message: Message) -> None:
        order.append(message.queue)
        await asyncio.sleep(0.0005)

    consumer.handler(note_async if asynchronous else note)
    with world.play(consumer):
        world.until(lambda: len(order) == 600)
        assert consumer.stats().queues["gold"].share == pytest.approx(10 / 15)
    counts: Counter[str] = Counter()
    for name in order[:450]:
        counts[name] += 1
        rounds = [counts[each] / quantum for each, quantum in quanta.items()]
        assert max(rounds) - min(rounds) <= 2, counts


def test_shares_go_by_what_a_message_costs(world: World) -> None:
    for name, size in (("large", 90), ("small", 10)):
        world.declare(name)
        world.publish(name, [b"x" * size] * 600)
    seen: Counter[str] = Counter()
    order: list[str] = []
    consumer = Consumer(world.uri, [Queue("large", 100), Queue("small", 100)], cost="bytes")

    @consumer.handler
    def work(message: Message) -> None:
        order.append(message.queue)
        world.spend(0.0002)

    with world.play(consumer):
        world.until(lambda: len(order) >= 500)
    seen.update(order[:500])
    assert seen["small"] == pytest.approx(450, rel=0.05)


def test_a_rate_holds_for_its_queue_and_for_no_other(world: World) -> None:
    for name in ("sms", "mail"):
        world.declare(name)
        world.publish(name, bodies(20))
    times: dict[str, list[float]] = {"sms": [], "mail": []}
    consumer = Consumer(world.uri, [Queue("sms", rate=25, burst=5), "mail"], workers=2)

    @consumer.handler
    def work(message: Message) -> None:
        times[message.queue].append(world.now())

    with world.play(consumer):
        begin = world.now()
        world.until(lambda: len(times["mail"]) == 20)
        assert len(times["sms"]) < 20
        world.until(lambda: len(times["sms"]) == 20)
    sms = times["sms"]
    assert 15 / 25 - 0.05 <= sms[-1] - begin < 3
    for first in range(20):
        for last in range(first, 20):
            allowed = 5 + 25 * (sms[last] - sms[first] + 0.1)  # dispatched, and noted a little later
            assert last - first + 1 <= allowed


def test_a_total_rate_holds_for_all_queues_together(world: World) -> None:
    for name in ("a", "b"):
        world.declare(name)
        world.publish(name, bodies(8))
    times: list[float] = []
    consumer = Consumer(world.uri, ["a", "b"], rate=20, burst=4)

    @consumer.handler
    def work(message: Message) -> None:
        times.append(world.now())

    with world.play(consumer):
        world.until(lambda: len(times) == 16)
    assert 12 / 20 - 0.05 <= times[-1] - times[0] < 3


def test_an_ordered_lane_waits_for_its_failing_message_and_parks_it(world: World) -> None:
    world.declare("q", {"x-single-active-consumer": True})
    world.publish("q", bodies(6))
    order: list[tuple[bytes, int]] = []
    consumer = Consumer(world.uri, [Queue("q", ordered=True)], workers=4, retry=Retry(3, delay=0.1))

    @consumer.handler
    def work(message: Message) -> None:
        order.append((message.body, message.tries))
        if message.body == b"2":
            raise ValueError("never")

    with world.play(consumer):
        world.until(lambda: len(order) == 8 and world.depth("leash.dead.q") == 1)
        body, headers = world.peek("leash.dead.q")
    assert (body, headers["x-leash-tries"]) == (b"2", 3)
    assert order == [
        *[(b"0", 0), (b"1", 0), (b"2", 0), (b"2", 1), (b"2", 2)],
        *[(b"3", 0), (b"4", 0), (b"5", 0)],
    ]
    assert world.depth("q") == 0


@pytest.mark.parametrize("asynchronous", [False, True])
def test_batch_handlers_get_full_batches_and_what_is_left_after_a_while(
    world: World, asynchronous: bool
) -> None:
    world.declare("q")
    world.publish("q", bodies(25))
    sizes: list[int] = []
    seen: list[bytes] = []
    consumer = Consumer(world.uri, ["q"])

    def note(messages: list[Message]) -> None:
        sizes.append(len(messages))
        seen.extend(message.body for message in messages)

    async def note_async(messages: list[Message]) -> None:
        await asyncio.sleep(0)
        note(messages)

    consumer.batch_handler(10, wait=0.3)(note_async if asynchronous else note)
    with world.play(consumer):
        world.until(lambda: sum(sizes) == 25)
    assert sizes == [10, 10, 5]
    assert seen == bodies(25)
    assert world.depth("q") == 0


def test_of_a_failed_batch_only_what_was_not_settled_by_hand_is_tried_again(world: World) -> None:
    world.declare("q")
    world.publish("q", bodies(10))
    tries: Counter[bytes] = Counter()
    consumer = Consumer(world.uri, ["q"], retry=Retry(3, delay=0.1))

    @consumer.batch_handler(10, wait=0.2)
    def work(messages: list[Message]) -> None:
        tries.update(message.body for message in messages)
        if messages[0].tries == 0:
            for message in messages[:4]:
                message.ack()
            raise ValueError("the rest later")

    with world.play(consumer):
        world.until(lambda: sum(tries.values()) == 16)
        world.until(lambda: consumer.stats().queues["q"].unsettled == 0)
    assert [tries[body] for body in bodies(10)] == [1] * 4 + [2] * 6
    assert world.depth("q") == 0


def test_async_handlers_run_at_the_same_time(world: World) -> None:
    world.declare("q")
    world.publish("q", bodies(20))
    running = most = done = 0
    consumer = Consumer(world.uri, ["q"], workers=4)

    @consumer.handler
    async def work(message: Message) -> None:
        nonlocal running, most, done
        running += 1
        most = max(most, running)
        await asyncio.sleep(0.02)
        running -= 1
        done += 1

    with world.play(consumer):
        world.until(lambda: done == 20)
    assert most == 4
