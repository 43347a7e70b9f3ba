"""Who is served when: quiet tenants ahead of a noisy one's backlog. Order is asserted, never speed."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable

import pytest

from leash import Consumer, Message, Tenants
from leash.amqp import Channel, topology
from tests.consumer.kit import fill, running
from tests.tenants.kit import JOBS, apart, message, send, together
from tests.waiting import until

QUIET = 5


class Line:
    """Handles messages one by one, writes down whose they were, and can be held."""

    def __init__(self, work: Callable[[str], None] = lambda _: None) -> None:
        self.order: list[str] = []
        self.go = threading.Event()
        self._work = work

    def __call__(self, message: Message) -> None:
        assert self.go.wait(300)
        tenant = str(message.headers["tenant"])
        self._work(tenant)
        self.order.append(tenant)

    def before_the_last_of(self, quiet: list[str], noisy: str) -> int:
        """How many of the noisy tenant's messages were handled before the last one of the quiet ones."""
        last = max(at for at, tenant in enumerate(self.order) if tenant in quiet)
        return self.order[:last].count(noisy)


def consume(uri: str, line: Line, sent: int, cost: str = "count", tenants: Tenants = JOBS) -> None:
    """Handle all that was sent, with one worker that begins when each lane with work has shown some."""
    consumer = Consumer(uri, tenants=tenants, cost=cost)
    consumer.handler(line)
    with running(consumer):
        until(lambda: _all_here(consumer))
        line.go.set()
        until(lambda: len(line.order) == sent)


def _all_here(consumer: Consumer) -> bool:
    """All lanes that have messages at the broker have some here, and all were looked at."""
    queues = consumer.stats().queues.values()
    return all(each.depth is not None and (each.buffered + each.in_work or not each.depth) for each in queues)


def test_a_tenant_with_nine_messages_of_ten_waits_for_itself(uri: str, channel: Channel) -> None:
    JOBS.declare(uri)
    quiet = apart(JOBS, uri, QUIET, "acme")
    sent = [message("acme") for _ in range(900)]
    sent += [message(quiet[n % QUIET]) for n in range(100)]
    send(uri, sent)
    line = Line()
    consume(uri, line, 1000)
    # 20 messages of each quiet tenant, so 20 rounds; a round may be under way at either end, and a round that
    # waits in vain for messages in flight lets others go on.
    assert line.before_the_last_of(quiet, "acme") <= 100

    fill(channel, "fifo", 0)
    send(uri, [each._replace(exchange="", routing_key="fifo") for each in sent])
    fifo = Line()
    fifo.go.set()
    consumer = Consumer(uri, ["fifo"])
    consumer.handler(fifo)
    with running(consumer):
        until(lambda: len(fifo.order) == 1000)
    assert fifo.before_the_last_of(quiet, "acme") == 900, "one FIFO: behind all of it"


def test_a_tenant_with_few_slow_messages_waits_for_itself(uri: str) -> None:
    JOBS.declare(uri)
    quiet = apart(JOBS, uri, QUIET, "acme")
    took: list[tuple[str, float]] = []

    def work(tenant: str) -> None:
        begin = time.monotonic()
        time.sleep(0.05 if tenant == "acme" else 0.001)
        took.append((tenant, time.monotonic() - begin))

    send(uri, [message("acme") for _ in range(60)] + [message(quiet[n % QUIET]) for n in range(100)])
    line = Line(work)
    consume(uri, line, 160, cost="time")
    before = line.before_the_last_of(quiet, "acme")
    # By time, the noisy tenant has had no more than a quiet one, and one message that was under way. (Before
    # anything is known about its time, a few go together.)
    times: dict[str, float] = {}
    last = max(at for at, (tenant, _) in enumerate(took) if tenant != "acme")
    for tenant, seconds in took[:last]:
        times[tenant] = times.get(tenant, 0.0) + seconds
    slowest = max(seconds for tenant, seconds in took if tenant == "acme")
    most = max(seconds for tenant, seconds in times.items() if tenant != "acme")
    assert times.get("acme", 0.0) <= most + 4 * slowest
    assert before < 30


def test_a_tenant_that_was_quiet_is_next(uri: str, channel: Channel) -> None:
    JOBS.declare(uri)
    quiet, *busy = apart(JOBS, uri, 5)
    send(uri, [message(busy[n % 4]) for n in range(200)])
    steps = threading.Semaphore(0)
    order: list[str] = []

    def handle(message: Message) -> None:
        assert steps.acquire(timeout=300)
        order.append(str(message.headers["tenant"]))

    consumer = Consumer(uri, tenants=JOBS)
    consumer.handler(handle)
    lane = JOBS.state(uri).lane(quiet)
    with running(consumer):
        until(lambda: _all_here(consumer))
        steps.release(40)
        until(lambda: len(order) == 40)
        send(uri, [message(quiet)])
        until(lambda: consumer.stats().queues[lane].buffered == 1)
        already = sum(each.in_work for each in consumer.stats().queues.values())
        steps.release(160)
        until(lambda: len(order) == 200)
        at = order.index(quiet)
        steps.release(1)
        until(lambda: len(order) == 201)
    assert at <= 40 + already, "behind what was in work, and ahead of the rounds of four lanes"


def test_after_isolate_those_in_its_lane_are_served_ahead_too_and_release_undoes_it(uri: str) -> None:
    JOBS.declare(uri)
    neighbour = together(JOBS, uri, "acme")
    sent = [message("acme") for _ in range(500)] + [message(neighbour) for _ in range(20)]

    send(uri, sent)
    line = Line()
    consume(uri, line, 520)
    assert line.before_the_last_of([neighbour], "acme") == 500, "in one lane, they wait like in any queue"

    send(uri, sent)
    own, moved = JOBS.isolate(uri, "acme")
    assert moved >= 520
    line = Line()
    consume(uri, line, 520)
    assert line.before_the_last_of([neighbour], "acme") <= 60

    assert JOBS.release(uri, "acme") == own
    send(uri, sent)
    line = Line()
    consume(uri, line, 520)
    assert line.before_the_last_of([neighbour], "acme") == 500


def test_a_consumer_goes_on_while_a_tenant_is_isolated_and_released(uri: str) -> None:
    JOBS.declare(uri)
    seen: list[tuple[str, bytes]] = []
    consumer = Consumer(uri, tenants=JOBS, workers=2)

    @consumer.handler
    def handle(message: Message) -> None:
        time.sleep(0.001)
        seen.append((message.queue, message.body))

    with running(consumer):
        send(uri, [message("acme", b"%d" % n) for n in range(500)])
        own, _ = JOBS.isolate(uri, "acme")
        send(uri, [message("acme", b"%d" % n) for n in range(500, 1000)])
        until(lambda: len(seen) >= 1000)
        JOBS.release(uri, "acme")
        send(uri, [message("acme", b"%d" % n) for n in range(1000, 1200)])
        until(lambda: len(seen) >= 1200)
    assert sorted(int(body) for _, body in seen) == list(range(1200)), "nothing lost, nothing repeated"
    by_lane = {lane for lane, body in seen if 500 <= int(body) < 1000}
    assert by_lane == {own}
    assert own not in {lane for lane, body in seen if int(body) >= 1000}


@pytest.mark.parametrize("kind", ["def", "async def", "batch"])
def test_the_noisy_are_named(uri: str, kind: str) -> None:
    JOBS.declare(uri)
    consumer = Consumer(uri, tenants=JOBS)
    if kind == "def":

        @consumer.handler
        def handle(message: Message) -> None:
            time.sleep(0.02 if message.headers["tenant"] == "slow" else 0)

    elif kind == "async def":

        @consumer.handler
        async def handle_async(message: Message) -> None:
            await asyncio.sleep(0.02 if message.headers["tenant"] == "slow" else 0)

    else:

        @consumer.batch_handler(1)
        def handle_batch(messages: list[Message]) -> None:
            time.sleep(0.02 if messages[0].headers["tenant"] == "slow" else 0)

    names = apart(JOBS, uri, 3, "acme", "slow")
    send(uri, [message("acme") for _ in range(200)] + [message(each) for each in [*names, "slow", "slow"]])
    with running(consumer):
        until(lambda: sum(each.handled for each in consumer.stats().queues.values()) == 205)
        told = consumer.stats().tenants
    assert told is not None
    assert (told.name, round(told.messages)) == ("jobs", 205)
    most = max(told.top, key=lambda each: each.messages)
    assert (most.tenant, most.lane) == ("acme", JOBS.state(uri).lane("acme"))
    slow = next(each for each in told.top if each.tenant == "slow")
    assert slow.seconds >= 0.039
    assert slow.seconds > max(each.seconds for each in told.top if each.tenant in names)


def test_lanes_are_queues_like_any_other(uri: str, channel: Channel) -> None:
    JOBS.declare(uri)
    seen: list[bytes] = []
    consumer = Consumer(uri, tenants=JOBS)
    consumer.handler(lambda message: seen.append(message.body))
    lane = JOBS.state(uri).lane("acme")
    with running(consumer):
        consumer.pause(lane)
        send(uri, [message("acme", b"1")])
        until(lambda: topology.state(channel, lane).ready == 1)
        consumer.resume(lane)
        until(lambda: seen == [b"1"])
