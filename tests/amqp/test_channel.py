"""Channels on the real broker: requests, errors, consuming and settling."""

from __future__ import annotations

import threading
from dataclasses import replace

import pytest
from pamqp import commands

from leash import errors
from leash.amqp import (
    Channel,
    Connection,
    Outgoing,
    Properties,
    Publisher,
    connect,
    decode_properties,
    topology,
)
from leash.amqp.uri import parse
from leash.lab.proxy import Proxy
from leash.testing.broker import MemoryBroker
from leash.testing.connection import MemoryConnection
from tests.consumer.kit import until


def fill(connection: Connection, queue: str, count: int, **fields: object) -> None:
    with Publisher(connection) as publisher:
        publisher.publish(Outgoing(b"%d" % n, "", queue, **fields) for n in range(count))  # type: ignore[arg-type]


def take(channel: Channel, count: int) -> list[int]:
    """Wait for exactly this many and return their tags; nothing may come beyond."""
    tags: list[int] = []
    while len(tags) < count:
        batch = channel.deliveries(60)
        assert batch is not None, f"{len(tags)} of {count} came"
        tags += batch.tags
    assert len(tags) == count
    return tags


def test_an_unknown_queue_is_not_found_and_the_connection_lives_on(connection: Connection) -> None:
    channel = connection.channel()
    with pytest.raises(errors.NotFound, match="no queue 'nowhere'"):
        topology.state(channel, "nowhere")
    with pytest.raises(errors.NotFound):
        channel.qos(1)
    assert channel.closed
    assert topology.declare_queue(connection.channel(), "q").name == "q"


def test_each_reply_code_has_its_class(connection: Connection) -> None:
    topology.declare_queue(connection.channel(), "q")
    with pytest.raises(errors.PreconditionFailed, match="inequivalent"):
        topology.declare_queue(connection.channel(), "q", durable=False)
    with pytest.raises(errors.AccessRefused):
        topology.delete_exchange(connection.channel(), "amq.direct")
    connection.channel().consume("q", exclusive=True)
    with pytest.raises(errors.AccessRefused, match="exclusive"):
        connection.channel().consume("q")


def test_the_number_that_was_free_for_the_longest_time_is_used_again(connection: Connection) -> None:
    first = connection.channel()
    number = first.number
    connection.channel_max = number + 3
    first.close()
    first.close()
    for _ in range(3):
        with pytest.raises(errors.NotFound):
            topology.state(connection.channel(), "nowhere")
    until(lambda: connection.free == 4)  # their close-ok may go out a moment later
    numbers = [connection.channel().number for _ in range(4)]
    assert numbers == [number, number + 1, number + 2, number + 3]
    with pytest.raises(errors.AmqpError, match="in use"):
        connection.channel()


def test_a_number_that_is_about_to_be_free_is_waited_for(
    connection: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    channel = connection.channel()
    connection.channel_max = channel.number
    transport = connection._transport
    try_write, tries = transport.try_write, []

    def busy(data: bytes) -> bool:
        """As while another thread is writing."""
        tries.append(data)
        return len(tries) > 20 and try_write(data)

    monkeypatch.setattr(transport, "try_write", busy)
    with pytest.raises(errors.NotFound):
        topology.state(channel, "nowhere")
    assert connection.channel().number == channel.number


def test_a_channel_that_the_broker_closes_is_lost_before_its_number_is_free() -> None:
    connection = MemoryConnection(MemoryBroker(lambda: 0, lambda *_: None), parse("amqp://nowhere.invalid"))
    channel, free = connection.channel(), []
    channel.on_lost = lambda _: free.append(connection.free)
    with pytest.raises(errors.NotFound):
        topology.state(channel, "nowhere")
    assert free == [connection.free - 1]


def test_names_may_be_anything_that_rabbitmq_allows(connection: Connection, channel: Channel) -> None:
    name = "größe [eu] {1} " + "x" * 200
    topology.declare_queue(channel, name)
    topology.declare_exchange(channel, name, kind="fanout")
    topology.bind_queue(channel, name, name)
    with Publisher(connection) as publisher:
        publisher.publish([Outgoing(b"hello", name, "any")])
    got = channel.get(name)
    assert got is not None
    assert got.body == b"hello"
    assert channel.get(name) is None


def test_the_window_holds_back_what_is_not_acked(connection: Connection, channel: Channel) -> None:
    topology.declare_queue(channel, "q")
    fill(connection, "q", 20)
    channel.qos(5)
    channel.consume("q")
    tags = take(channel, 5)
    assert channel.deliveries(0.2) is None
    channel.ack(tags[2], multiple=True)
    assert take(channel, 3) == [6, 7, 8]
    assert topology.state(channel, "q") == ("q", 12, 1)


def test_ack_nack_and_reject_do_what_they_say(connection: Connection, channel: Channel) -> None:
    topology.declare_queue(channel, "dead")
    arguments = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"}
    topology.declare_queue(channel, "q", arguments=arguments)
    fill(connection, "q", 4)
    channel.qos(4)
    tag = channel.consume("q")
    tags = take(channel, 4)
    channel.ack(tags[0])
    channel.nack(tags[1], requeue=True)
    channel.reject(tags[2], requeue=False)
    channel.nack(tags[3], requeue=False)
    batch = channel.deliveries(60)
    assert batch is not None
    assert (batch.bodies, batch.redelivered) == ([b"1"], [True])
    channel.cancel(tag)
    channel.ack(batch.tags[0])
    assert topology.state(channel, "q").ready == 0
    until(lambda: topology.state(channel, "dead").ready == 2)  # they go from one queue to the other


def test_after_cancel_nothing_is_on_its_way(connection: Connection, channel: Channel) -> None:
    topology.declare_queue(channel, "q")
    fill(connection, "q", 3000)
    got: list[int] = []
    channel.qos(1000)
    tag = channel.consume("q", deliver=lambda batch: got.extend(batch.tags))
    channel.cancel(tag)
    seen = len(got)
    assert topology.state(channel, "q").ready == 3000 - seen
    assert len(got) == seen


def test_the_broker_cancels_the_consumer_of_a_deleted_queue(connection: Connection, channel: Channel) -> None:
    topology.declare_queue(channel, "q")
    cancelled = threading.Event()
    channel.consume("q", tag="mine", on_cancel=lambda tag: cancelled.set() if tag == "mine" else None)
    topology.delete_queue(connection.channel(), "q")
    assert cancelled.wait(60)
    assert not channel.closed


def test_closing_the_channel_gives_back_what_is_not_settled(connection: Connection, channel: Channel) -> None:
    topology.declare_queue(channel, "q")
    fill(connection, "q", 10)
    with connection.channel() as other:
        other.qos(10)
        other.consume("q")
        take(other, 10)
    assert topology.state(channel, "q").ready == 10


def test_properties_arrive_as_they_were_sent(connection: Connection, channel: Channel) -> None:
    topology.declare_queue(channel, "q")
    sent = Properties(
        message_id="m-1", headers={"price": 0.1, "n": 2**40, "who": {"name": "Ümit"}}, priority=3
    )
    fill(connection, "q", 1, properties=sent)
    channel.consume("q")
    batch = channel.deliveries(60)
    assert batch is not None
    sent.delivery_mode = 2  # nobody said otherwise
    assert decode_properties(batch.properties[0]) == sent


def test_a_call_from_the_readers_thread_is_refused_instead_of_hanging(
    connection: Connection, channel: Channel
) -> None:
    topology.declare_queue(channel, "q")
    fill(connection, "q", 1)
    caught: list[BaseException] = []
    done = threading.Event()

    def deliver(_: object) -> None:
        try:
            channel.qos(1)
        except RuntimeError as error:
            caught.append(error)
        done.set()

    channel.consume("q", deliver=deliver)
    assert done.wait(60)
    assert "would make the reader" in str(caught[0])


def test_a_request_without_an_answer_ends_the_channel(connection: Connection) -> None:
    channel = connection.channel()
    with pytest.raises(errors.ReplyTimeout, match=r"no answer to Basic.Qos in 0.2 s"):
        channel.call(commands.Basic.Qos(0, 1, False), commands.Basic.CancelOk, timeout=0.2)  # never comes
    with pytest.raises(errors.ReplyTimeout):
        channel.qos(2)
    connection.channel().qos(3)


@pytest.mark.parametrize("prefetch", [-1, 65536])
def test_a_prefetch_beyond_sixteen_bits_is_refused(channel: Channel, prefetch: int) -> None:
    with pytest.raises(errors.ConfigError, match="prefetch"):
        channel.qos(prefetch)


def test_channels_that_the_broker_closes_can_follow_each_other_at_once(connection: Connection) -> None:
    for _ in range(300):
        with pytest.raises(errors.NotFound), connection.channel() as channel:
            topology.check_exchange(channel, "missing")
    assert not connection.closed


def test_an_answer_behind_a_large_message_is_waited_for_as_long_as_that_comes(
    uri: str, channel: Channel, connection: Connection
) -> None:
    topology.declare_queue(channel, "q")
    with Publisher(connection) as publisher:
        publisher.publish([Outgoing(b"." * (4 << 20), "", "q"), Outgoing(b"." * (4 << 20), "", "q")])
    place = parse(uri)
    with Proxy(*place.hosts[0], rate=2 << 20) as proxy:
        near = replace(place, hosts=(("127.0.0.1", proxy.port),))
        for patient in (True, False):
            with connect(near) as slow:
                far = slow.channel()
                far.qos(1)
                far.consume("q")
                answer = far.ask(commands.Basic.Qos(0, 1, False), commands.Basic.QosOk)
                if patient:
                    answer(0.5, patient=True)
                    assert far.deliveries(0) is not None  # it was sent before the answer, so it is here
                else:
                    with pytest.raises(errors.ReplyTimeout, match=r"no answer to Basic\.Qos"):
                        answer(0.5)
