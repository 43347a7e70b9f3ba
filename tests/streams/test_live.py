"""Streams through the live consumer: shares, rates, retries, offsets, and what is refused."""

from __future__ import annotations

import pkgutil
import threading
import time
from collections import Counter
from datetime import UTC, datetime
from itertools import pairwise
from typing import Any

import pytest

from leash import Breaker, Consumer, Message, Queue, Retry, Stream
from leash.amqp import Channel, Outgoing, Properties, connect
from leash.amqp import Publisher as AmqpPublisher
from leash.broker import Broker
from leash.consumer.dead_queue import send_back
from leash.errors import ChunkError, ConfigError, LeashError, NotFound, StreamMissing, StreamUnsupported
from leash.flow import Dispatch, Flow
from leash.streams import (
    Connection,
    Publisher,
    create_stream,
    create_super_stream,
    delete_stream,
    query_offset,
    sections,
    store_offset,
)
from leash.testing import Rehearsal
from tests.consumer.kit import depth, fill, running, until
from tests.consumer.test_fairness import Spread, watched

ONCE = Retry(tries=1)


@pytest.fixture
def port(broker: Broker) -> int:
    return broker.port("stream")


def write(stream_uri: str, stream: str, bodies: list[bytes], chunk: int = 500) -> None:
    with Publisher(stream_uri, stream) as publisher:
        for at in range(0, len(bodies), chunk):
            publisher.publish(bodies[at : at + chunk])


def numbers(count: int, start: int = 0) -> list[bytes]:
    return [b"%d" % number for number in range(start, start + count)]


def made(streams: Connection, stream_uri: str, **counts: int) -> None:
    for name, count in counts.items():
        create_stream(streams, name)
        write(stream_uri, name, numbers(count))


# --- shares and rates ---


@pytest.mark.parametrize("workers", [1, 4])
def test_three_streams_stay_within_one_round_of_each_other(
    streams: Connection, stream_uri: str, uri: str, port: int, workers: int
) -> None:
    quanta, totals = {"a": 10, "b": 3, "c": 1}, {"a": 20_000, "b": 6_000, "c": 2_000}
    made(streams, stream_uri, **totals)
    for attempt in ("first", "second", "third"):
        spread = Spread(totals, quanta)
        consumer = Consumer(
            uri,
            streams=[Stream(name, quantum) for name, quantum in quanta.items()],
            name=attempt,
            workers=workers,
            stream_port=port,
        )
        consumer.handler(lambda _: None)
        with watched(spread), running(consumer):
            until(lambda spread=spread: spread.over)  # type: ignore[misc]
            stats = consumer.stats()
        if not spread.late:
            break
    assert spread.measured > 2_800
    assert spread.worst <= 1
    assert stats.spread <= 1


def test_streams_and_queues_share_by_quantum(
    channel: Channel, streams: Connection, stream_uri: str, uri: str, port: int
) -> None:
    totals = {"s": 9_000, "q": 3_000}
    made(streams, stream_uri, s=9_000)
    fill(channel, "q", 3_000)
    spread = Spread(totals, {"s": 3, "q": 1})
    seen: Counter[str] = Counter()
    consumer = Consumer(uri, [Queue("q")], streams=[Stream("s", 3)], name="both", stream_port=port)

    @consumer.handler
    def work(message: Message) -> None:
        seen[message.queue] += 1

    with watched(spread), running(consumer):
        until(lambda: seen == totals)
    assert spread.worst <= 1 or spread.late
    assert depth(channel, "q") == 0


def test_a_stream_is_never_above_its_rate(
    streams: Connection, stream_uri: str, uri: str, port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    made(streams, stream_uri, free=2_000, gold=20_000)
    times: list[int] = []
    take = Flow.take

    def noting(flow: Flow, *args: Any) -> list[Dispatch]:
        work = take(flow, *args)
        for dispatch in work:
            if dispatch.lane == "free":
                times.extend([flow.now] * len(dispatch.messages))
        return work

    monkeypatch.setattr(Flow, "take", noting)
    seen: Counter[str] = Counter()
    listed = [Stream("free", rate=100, burst=20), Stream("gold", 10)]
    consumer = Consumer(uri, streams=listed, name="n", workers=2, stream_port=port)

    @consumer.handler
    def work(message: Message) -> None:
        seen[message.queue] += 1

    with running(consumer):
        until(lambda: seen["gold"] == 20_000)
        until(lambda: len(times) > 250)
    for i, first in enumerate(times):
        for count, last in enumerate(times[i:], 1):
            assert count <= 20 + 100 * (last - first + 1) / 1e9


def test_costs_count_for_streams(streams: Connection, stream_uri: str, uri: str, port: int) -> None:
    create_stream(streams, "large")
    create_stream(streams, "small")
    write(stream_uri, "large", [b"x" * 1_000] * 2_000)
    write(stream_uri, "small", [b"x" * 100] * 2_000)
    seen: Counter[str] = Counter()
    listed = [Stream("large", 1_000), Stream("small", 1_000)]
    consumer = Consumer(uri, streams=listed, name="n", cost="bytes", stream_port=port)
    over: Counter[str] = Counter()

    @consumer.handler
    def work(message: Message) -> None:
        seen[message.queue] += 1
        if seen["small"] == 1_000:
            over.update({"large": seen["large"]} if not over else {})

    with running(consumer):
        until(lambda: over)
    assert 90 <= over["large"] <= 110


# --- offsets ---


def test_a_stop_stores_the_offset_and_the_next_consumer_continues(
    streams: Connection, stream_uri: str, uri: str, port: int
) -> None:
    made(streams, stream_uri, s=3_000)
    seen: list[int] = []
    for first in (True, False):
        consumer = Consumer(uri, streams=["s"], name="billing", workers=3, stream_port=port)
        enough = threading.Event()

        @consumer.handler
        def work(message: Message, first: bool = first, enough: threading.Event = enough) -> None:
            time.sleep(0.0005)
            seen.append(int(message.body))
            assert message.offset is not None
            if first and len(seen) > 700:
                enough.set()

        with running(consumer):
            until(lambda: enough.is_set() or len(seen) >= 3_000)  # noqa: B023
        if first:
            assert query_offset(streams, "billing", "s") == len(seen) - 1
            assert len(seen) < 3_000
    assert sorted(seen) == list(range(3_000))
    assert query_offset(streams, "billing", "s") is not None


def test_only_what_is_below_an_unsettled_message_is_stored(
    streams: Connection, stream_uri: str, uri: str, port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("leash.consumer.stream_lane.STORE_EVERY", 0.05)
    made(streams, stream_uri, s=500)
    go_on, seen = threading.Event(), []
    consumer = Consumer(uri, streams=["s"], name="n", workers=2, stream_port=port)

    @consumer.handler
    def work(message: Message) -> None:
        if message.offset == 7:
            assert go_on.wait(300)
        seen.append(message.offset)

    with running(consumer):
        until(lambda: len(seen) == 499)
        until(lambda: query_offset(streams, "n", "s") == 6)
        time.sleep(0.3)  # it must not go on
        assert query_offset(streams, "n", "s") == 6
        go_on.set()
        until(lambda: (query_offset(streams, "n", "s") or 0) >= 499)


def test_a_message_that_hangs_lets_only_so_many_pass(
    streams: Connection, stream_uri: str, uri: str, port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("leash.consumer.stream_link.SPAN", 200)
    made(streams, stream_uri, s=5_000)
    go_on, seen = threading.Event(), []
    consumer = Consumer(uri, streams=[Stream("s", window=50)], name="n", workers=2, stream_port=port)

    @consumer.handler
    def work(message: Message) -> None:
        if message.offset == 7:
            assert go_on.wait(300)
        seen.append(message.offset)

    with running(consumer):
        until(lambda: len(seen) >= 200)
        until(lambda: consumer.stats().queues["s"].unsettled == 1)  # the one that hangs
        count = len(seen)
        assert 7 + 200 <= count <= 7 + 200 + 50
        time.sleep(0.2)
        assert len(seen) == count
        go_on.set()
        until(lambda: len(seen) == 5_000)


def test_offsets_are_stored_while_it_runs(
    streams: Connection, stream_uri: str, uri: str, port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("leash.consumer.stream_lane.STORE_EVERY", 0.05)
    create_stream(streams, "s")
    consumer = Consumer(uri, streams=["s"], name="n", stream_port=port)
    seen: list[bytes] = []
    consumer.handler(lambda message: seen.append(message.body))
    with running(consumer):
        for at in range(10):  # a stored offset takes a place in the stream: offsets have gaps
            write(stream_uri, "s", numbers(10, 10 * at))
            until(lambda at=at: len(seen) == 10 * at + 10)  # type: ignore[misc]
            until(lambda at=at: (query_offset(streams, "n", "s") or 0) >= 10 * at + 9)  # type: ignore[misc]
    assert seen == numbers(100)


@pytest.mark.parametrize("start", ["next", "last", "1h"])
def test_a_start_that_moves_is_kept_from_the_first_moment_on(
    streams: Connection, stream_uri: str, uri: str, port: int, start: str
) -> None:
    made(streams, stream_uri, s=1_000)
    consumer = Consumer(uri, streams=[Stream("s", start=start, rate=0.001)], name="n", stream_port=port)
    consumer.handler(lambda _: time.sleep(600))
    consumer.start()
    consumer.abandon()  # nothing was settled
    stored = query_offset(streams, "n", "s")
    begins = 0 if stored is None else stored + 1
    assert begins in {"next": [1_000], "last": range(500, 1_000), "1h": [0]}[start]
    write(stream_uri, "s", numbers(1_000, 1_000))
    seen: list[int] = []
    consumer = Consumer(uri, streams=[Stream("s", start=start)], name="n", stream_port=port)
    consumer.handler(lambda message: seen.append(int(message.body)))
    with running(consumer):
        until(lambda: len(seen) >= 2_000 - begins)
    assert seen == list(range(begins, 2_000))


def test_it_begins_at_an_offset_within_a_chunk(
    streams: Connection, stream_uri: str, uri: str, port: int
) -> None:
    made(streams, stream_uri, s=1_000)
    seen: list[int | None] = []
    consumer = Consumer(uri, streams=[Stream("s", start=750)], name="n", stream_port=port)
    consumer.handler(lambda message: seen.append(message.offset))
    with running(consumer):
        until(lambda: len(seen) >= 250)
    assert seen == list(range(750, 1_000))


# --- failures ---


@pytest.mark.parametrize("ordered", [True, False])
def test_a_failing_message_is_tried_in_place_then_parked_and_the_stream_goes_on(
    channel: Channel, streams: Connection, stream_uri: str, uri: str, port: int, ordered: bool
) -> None:
    made(streams, stream_uri, s=200)
    tries: Counter[int | None] = Counter()
    order: list[int | None] = []
    consumer = Consumer(
        uri,
        streams=[Stream("s", ordered=ordered)],
        name="n",
        workers=1 if ordered else 4,
        retry=Retry(tries=3, delay=0.01),
        stream_port=port,
    )

    @consumer.handler
    def work(message: Message) -> None:
        tries[message.offset] += 1
        assert message.tries == tries[message.offset] - 1
        if message.offset in (5, 6, 100):
            raise ValueError("never")
        if message.offset == 50 and not message.tries:
            raise ValueError("once")
        order.append(message.offset)

    with running(consumer):
        until(lambda: len(order) == 197 and depth(channel, "leash.dead.s") == 3)
    assert {offset: count for offset, count in tries.items() if count > 1} == {5: 3, 6: 3, 50: 2, 100: 3}
    if ordered:
        assert order == [offset for offset in range(200) if offset not in (5, 6, 100)]
    assert query_offset(streams, "n", "s") == 199
    parked = channel.get("leash.dead.s")
    assert parked is not None
    assert parked.body in (b"5", b"6", b"100")


@pytest.mark.parametrize("ordered", [True, False])
def test_an_outage_with_a_breaker_parks_nothing(
    channel: Channel, streams: Connection, stream_uri: str, uri: str, port: int, ordered: bool
) -> None:
    made(streams, stream_uri, s=50)
    done: list[int | None] = []
    works = threading.Event()
    consumer = Consumer(
        uri,
        streams=[Stream("s", ordered=ordered)],
        name="n",
        retry=Retry(tries=20, delay=0.01),
        breaker=Breaker(failures=1, probe=0.05),
        stream_port=port,
    )

    @consumer.handler
    def work(message: Message) -> None:
        if not works.is_set():
            raise ValueError("down")
        done.append(message.offset)

    with running(consumer):
        until(lambda: consumer.stats().queues["s"].counts.get("excused", 0) > 20)
        works.set()
        until(lambda: len(done) == 50)
    assert sorted(done) == list(range(50))  # type: ignore[type-var]
    assert not ordered or done == list(range(50))
    assert depth(channel, "leash.dead.s") == 0


def test_a_parked_message_that_is_sent_back_comes_again_at_the_end(
    channel: Channel, streams: Connection, stream_uri: str, uri: str, port: int
) -> None:
    made(streams, stream_uri, s=10)
    seen: list[bytes] = []
    consumer = Consumer(uri, streams=["s"], name="n", retry=None, stream_port=port)

    @consumer.handler
    def work(message: Message) -> None:
        seen.append(message.body)
        if message.body == b"3" and seen.count(b"3") == 1:
            raise ValueError("once")

    with running(consumer), connect(uri) as publishing:
        until(lambda: len(seen) == 10 and depth(channel, "leash.dead.s") == 1)
        assert send_back(channel.connection, publishing, "s") == 1
        until(lambda: len(seen) == 11)
    assert seen == [*numbers(10), b"3"]


def test_discarded_messages_are_skipped(streams: Connection, stream_uri: str, uri: str, port: int) -> None:
    made(streams, stream_uri, s=20)
    consumer = Consumer(
        uri, streams=["s"], name="n", retry=None, on_exhausted="discard", stream_port=port, workers=3
    )

    @consumer.handler
    def work(message: Message) -> None:
        raise ValueError(message.offset)

    with running(consumer):
        until(lambda: consumer.stats().queues["s"].counts.get("discarded") == 20)
    assert query_offset(streams, "n", "s") == 19


@pytest.mark.parametrize("verb", ["requeue", "reject"])
def test_a_message_cannot_be_given_back(
    channel: Channel, streams: Connection, stream_uri: str, uri: str, port: int, verb: str
) -> None:
    made(streams, stream_uri, s=1)
    errors: list[str] = []
    consumer = Consumer(uri, streams=["s"], name="n", retry=None, stream_port=port)

    @consumer.handler
    def work(message: Message) -> None:
        try:
            getattr(message, verb)()
        except ConfigError as error:
            errors.append(str(error))
            raise

    with running(consumer):
        until(lambda: depth(channel, "leash.dead.s") == 1)
    assert errors == [f"{verb}='s': not for a stream, which takes no message back: ack it, or raise"]


def test_a_message_settled_by_hand(streams: Connection, stream_uri: str, uri: str, port: int) -> None:
    made(streams, stream_uri, s=10)
    consumer = Consumer(uri, streams=["s"], name="n", stream_port=port)
    got: list[bool] = []
    consumer.handler(lambda message: got.extend([message.ack(), message.ack()]))
    with running(consumer):
        until(lambda: len(got) == 20)
    assert got == [True, False] * 10
    assert query_offset(streams, "n", "s") == 9


# --- what comes ---


def test_properties_of_amqp_and_of_streams(
    channel: Channel, streams: Connection, stream_uri: str, uri: str, port: int
) -> None:
    create_stream(streams, "s")
    properties = Properties(
        message_id="m1",
        headers={"tenant": "gold", "n": 7},
        content_type="text/plain",
        delivery_mode=2,
        timestamp=datetime(2026, 1, 31, 8, tzinfo=UTC),
    )
    with AmqpPublisher(channel.connection) as publisher:
        publisher.publish([Outgoing(b"by amqp", "", "s", properties)])
    with Publisher(stream_uri, "s") as stream_publisher:
        own = sections({"message_id": "m2", "content_type": "a/b"}, {"tenant": "free", "n": 8})
        stream_publisher.publish([b"by stream"], sections=own)
        stream_publisher.publish([b"bare"])
    seen: list[Message] = []
    consumer = Consumer(uri, streams=["s"], name="n", stream_port=port)
    consumer.handler(seen.append)
    with running(consumer):
        until(lambda: len(seen) == 3)
    first, second, third = seen
    assert (first.body, first.properties.message_id, first.routing_key) == (b"by amqp", "m1", "s")
    assert (first.headers["tenant"], first.headers["n"]) == ("gold", 7)
    assert first.properties.content_type == "text/plain"
    assert first.properties.timestamp == datetime(2026, 1, 31, 8, tzinfo=UTC)
    assert (second.properties.message_id, second.properties.content_type) == ("m2", "a/b")
    assert second.headers == {"tenant": "free", "n": 8}
    assert (third.body, third.headers, third.properties.message_id) == (b"bare", {}, None)
    assert third.age < 300


def test_sub_entries_and_large_messages(streams: Connection, stream_uri: str, uri: str, port: int) -> None:
    create_stream(streams, "s")
    large = [bytes([number]) * 1_000_000 for number in range(20)]
    with Publisher(stream_uri, "s") as publisher:
        publisher.publish(numbers(1_000), sub_entries=100, codec="gzip")
        for body in large:
            publisher.publish([body])
    seen: list[bytes] = []
    consumer = Consumer(uri, streams=["s"], name="n", stream_port=port, buffer_bytes=4 << 20)
    consumer.handler(lambda message: seen.append(message.body))
    with running(consumer):
        until(lambda: len(seen) == 1_020)
    assert seen == numbers(1_000) + large


def test_a_broker_that_is_killed_repeats_nothing_and_skips_nothing(
    broker: Broker, streams: Connection, stream_uri: str, uri: str, port: int
) -> None:
    made(streams, stream_uri, s=5_000)
    seen: list[int] = []
    consumer = Consumer(uri, streams=[Stream("s", ordered=True)], name="n", stream_port=port)

    @consumer.handler
    def work(message: Message) -> None:
        seen.append(int(message.body))

    with running(consumer):
        until(lambda: len(seen) > 500)
        broker.kill()
        broker.start()
        until(lambda: len(seen) >= 5_000)
        until(lambda: not consumer.stats().queues["s"].unsettled)
        write(stream_uri, "s", numbers(1_000, 5_000))
        until(lambda: len(seen) >= 6_000)
    assert seen == list(range(6_000))


def test_a_stream_made_again_is_read_from_its_beginning(
    streams: Connection,
    stream_uri: str,
    uri: str,
    port: int,
    caplog: pytest.LogCaptureFixture,
) -> None:
    made(streams, stream_uri, s=1_000)
    seen: list[bytes] = []
    consumer = Consumer(uri, streams=["s"], name="n", stream_port=port)
    consumer.handler(lambda message: seen.append(message.body))
    with running(consumer):
        until(lambda: len(seen) == 1_000)
        delete_stream(streams, "s")
        create_stream(streams, "s")
        write(stream_uri, "s", [b"new %d" % number for number in range(300)])
        until(lambda: len(seen) == 1_300)
    assert seen[1_000:] == [b"new %d" % number for number in range(300)]
    assert "event=data_lost" in caplog.text
    assert query_offset(streams, "n", "s") == 299


@pytest.mark.parametrize("where", ["leash.streams.reader.to_arrow", "leash.consumer.stream_lane.Spare.add"])
def test_what_cannot_be_read_is_not_skipped(
    streams: Connection,
    stream_uri: str,
    uri: str,
    port: int,
    where: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    made(streams, stream_uri, s=300)
    module, _, name = where.rpartition(".")
    real = pkgutil.resolve_name(
        f"{module.replace('.Spare', ':Spare')}{'.' if 'Spare' in module else ':'}{name}"
    )
    calls: Counter[str] = Counter()

    def failing(*args: Any, **more: Any) -> Any:
        calls["all"] += 1
        if 2 <= calls["all"] <= 4:
            raise ChunkError("s", 100, "for the test")
        return real(*args, **more)

    monkeypatch.setattr(where, failing)
    seen: list[int] = []
    consumer = Consumer(uri, streams=["s"], name="n", stream_port=port)
    consumer.handler(lambda message: seen.append(int(message.body)))
    with running(consumer):
        until(lambda: len(seen) >= 300)
        write(stream_uri, "s", numbers(3_000, 300))
        until(lambda: len(seen) >= 3_300)
    assert calls["all"] > 4
    assert seen == list(range(3_300))
    assert "event=cannot_consume" in caplog.text


def test_a_paused_stream_waits(streams: Connection, stream_uri: str, uri: str, port: int) -> None:
    made(streams, stream_uri, s=2_000)
    seen: list[int] = []
    consumer = Consumer(uri, streams=["s"], name="n", stream_port=port)

    @consumer.handler
    def work(message: Message) -> None:
        time.sleep(0.001)
        seen.append(int(message.body))

    with running(consumer):
        until(lambda: len(seen) > 100)
        consumer.pause("s")
        until(lambda: not consumer.stats().queues["s"].in_work)
        count = len(seen)
        time.sleep(0.2)
        assert len(seen) == count < 2_000
        consumer.resume("s")
        until(lambda: len(seen) >= 2_000)
    assert seen == list(range(2_000))


def test_an_async_handler(streams: Connection, stream_uri: str, uri: str, port: int) -> None:
    made(streams, stream_uri, s=1_000)
    seen: list[int] = []
    consumer = Consumer(uri, streams=["s"], name="n", stream_port=port, workers=4)

    @consumer.handler
    async def work(body: bytes) -> None:
        seen.append(int(body))

    with running(consumer):
        until(lambda: len(seen) == 1_000)
    assert sorted(seen) == list(range(1_000))


# --- super streams ---


def can(streams: Connection) -> bool:
    return streams.version >= (3, 11)


def test_a_super_stream_in_order_by_partition(
    streams: Connection, stream_uri: str, uri: str, port: int
) -> None:
    create_super_stream(streams, "orders", 3, amqp=uri)
    for partition in range(3):
        write(stream_uri, f"orders-{partition}", numbers(500))
    seen: dict[str, list[int]] = {f"orders-{partition}": [] for partition in range(3)}
    consumer = Consumer(uri, super_stream="orders", name="billing", stream_port=port)

    @consumer.handler
    def work(message: Message) -> None:
        seen[message.queue].append(int(message.body))

    if not can(streams):
        with pytest.raises(StreamUnsupported, match=r"needs RabbitMQ 3\.11, and .* is RabbitMQ 3\.10"):
            consumer.start()
        return
    with running(consumer):
        until(lambda: all(len(each) >= 500 for each in seen.values()))
        assert consumer.settings.workers == 3
    assert all(each == list(range(500)) for each in seen.values())
    assert [query_offset(streams, "billing", f"orders-{partition}") for partition in range(3)] == [499] * 3


def test_two_consumers_share_a_super_stream_and_hand_over_in_good_order(
    streams: Connection, stream_uri: str, uri: str, port: int
) -> None:
    if not can(streams):
        pytest.skip("a single active consumer needs RabbitMQ 3.11")
    create_super_stream(streams, "orders", 2, amqp=uri)
    lock, seen = threading.Lock(), {f"orders-{partition}": [] for partition in range(2)}  # type: ignore[var-annotated]

    def started() -> Consumer:
        consumer = Consumer(uri, super_stream="orders", name="billing", stream_port=port)

        @consumer.handler
        def work(message: Message) -> None:
            time.sleep(0.0005)
            with lock:
                seen[message.queue].append((int(message.body), id(consumer)))

        consumer.start()
        return consumer

    def fed(start: int) -> None:
        for partition in range(2):
            write(stream_uri, f"orders-{partition}", numbers(1_000, start))

    fed(0)
    one = started()
    until(lambda: all(len(each) > 100 for each in seen.values()))
    two = started()  # takes one of the partitions over, in the middle of it
    until(lambda: len({who for each in seen.values() for _, who in each}) == 2)
    fed(1_000)
    until(lambda: all(len(each) >= 2_000 for each in seen.values()))
    last = {each[-1][1] for each in seen.values()}
    assert last == {id(one), id(two)}
    assert one.stop()
    fed(2_000)
    until(lambda: all(len(each) >= 3_000 for each in seen.values()))
    assert {each[-1][1] for each in seen.values()} == {id(two)}
    assert two.stop()
    for each in seen.values():
        assert [number for number, _ in each] == list(range(3_000))  # in order, each once
        assert sum(a != b for (_, a), (_, b) in pairwise(each)) <= 2


def test_one_stream_with_a_single_active_consumer(
    streams: Connection, stream_uri: str, uri: str, port: int
) -> None:
    made(streams, stream_uri, s=500)
    seen: list[int] = []
    consumers = []
    for _ in range(2):
        consumer = Consumer(uri, streams=[Stream("s", single_active=True)], name="n", stream_port=port)
        consumer.handler(lambda message: seen.append(int(message.body)))
        consumers.append(consumer)
    if not can(streams):
        with pytest.raises(StreamUnsupported, match=r"'s'.*needs RabbitMQ 3\.11"):
            consumers[0].start()
        return
    for consumer in consumers:
        consumer.start()
    until(lambda: len(seen) >= 500)
    assert all(consumer.stats().queues["s"].connected for consumer in consumers)
    assert consumers[0].stop()
    write(stream_uri, "s", numbers(500, 500))
    until(lambda: len(seen) >= 1_000)
    assert consumers[1].stop()
    assert seen == list(range(1_000))


# --- what is refused ---


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ({"streams": "orders", "name": "n"}, "streams='orders': a list of names and Streams"),
        ({"streams": [7], "name": "n"}, "streams=7: a list of names and Streams"),
        ({"streams": None, "name": "n"}, "streams=None: a list of names and Streams"),
        (
            {"streams": ["orders"]},
            "name='': a name for stream 'orders', under which its offset is stored",
        ),
        (
            {"super_stream": "orders"},
            "name='': a name of 1 to 255 bytes, which all processes of 'orders' share",
        ),
        ({"super_stream": "", "name": "n"}, "super_stream='': the super stream's name"),
        ({"streams": ["s"], "name": "n", "stream_port": 0}, "stream_port=0: a port, from 1 to 65535"),
        (
            {"streams": ["s"], "name": "n", "on_exhausted": "reject"},
            "on_exhausted='reject': park or discard: a stream has no dead-letter exchange",
        ),
        (
            {"streams": ["s"], "name": "n", "partitions": "p"},
            "partitions='p': streams or partitions, not both",
        ),
        (
            {"super_stream": "s", "name": "n", "partitions": "p"},
            "super_stream='s': a super stream or partitions, not both",
        ),
        ({"streams": ["s"], "name": "n" * 256}, "name="),
        ({"queues": ["s"], "streams": ["s"], "name": "n"}, "'s'"),
    ],
)
def test_a_wrong_argument_is_named_in_one_sentence(arguments: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ConfigError) as caught:
        Consumer("amqp://localhost", **arguments)
    assert sentence in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ({"stream": ""}, "stream="),
        ({"stream": "s", "start": "yesterday"}, "start='yesterday'"),
        ({"stream": "s", "start": datetime(2026, 1, 31)}, "start="),  # noqa: DTZ001
        ({"stream": "s", "start": -1}, "offset=-1"),
        ({"stream": "s", "shed": "return"}, "shed='return': one of observe, shrink, drop"),
        ({"stream": "s", "kind": "stream"}, "kind='stream'"),
        ({"stream": "s", "single_active": 1}, "single_active=1"),
        ({"stream": "s", "ordered": 1}, "ordered=1"),
        ({"stream": "s", "quantum": 0}, "quantum=0"),
        ({"stream": "s", "burst": 3}, "burst=3"),
        ({"stream": "s", "name": "n" * 256}, "name="),
    ],
)
def test_a_wrong_stream_is_named_in_one_sentence(arguments: dict[str, Any], named: str) -> None:
    with pytest.raises(ConfigError) as caught:
        Stream(**arguments)
    assert named in str(caught.value)


@pytest.mark.parametrize("arguments", [{"streams": ["s"]}, {"super_stream": "s"}])
def test_streams_are_not_rehearsed(arguments: dict[str, Any]) -> None:
    consumer = Consumer("amqp://localhost", name="n", **arguments)
    consumer.handler(lambda _: None)
    with pytest.raises(ConfigError, match="a rehearsal has no streams"):
        Rehearsal(consumer)


def test_what_is_not_there_is_named(channel: Channel, streams: Connection, uri: str, port: int) -> None:
    fill(channel, "q", 1)
    create_stream(streams, "s")

    def refused(kind: type[LeashError], match: str, **arguments: Any) -> None:
        consumer = Consumer(uri, stream_port=arguments.pop("stream_port", port), **arguments)
        consumer.handler(lambda _: None)
        with pytest.raises(kind, match=match):
            consumer.start()

    refused(NotFound, "leash stream create none", streams=["none"], name="n")
    refused(ConfigError, "streams='q': a stream: this is a classic queue", streams=["q"], name="n")
    refused(ConfigError, "queues='s': a queue: this is a stream", queues=["s"])
    refused(StreamMissing, "'none'", super_stream="none", name="n")


def test_an_offset_stored_by_another_client_counts(
    streams: Connection, stream_uri: str, uri: str, port: int
) -> None:
    made(streams, stream_uri, s=100)
    store_offset(streams, "n", "s", 89)
    until(lambda: query_offset(streams, "n", "s") == 89)
    seen: list[int | None] = []
    consumer = Consumer(uri, streams=["s"], name="n", stream_port=port)
    consumer.handler(lambda message: seen.append(message.offset))
    with running(consumer):
        until(lambda: len(seen) >= 10)
    assert seen[-1] == 99 + (seen[0] or 0) - 90
    assert seen[0] == 90
