"""Acks take effect even if their channel ends at once, while the broker's disk stands still."""

from __future__ import annotations

from leash.amqp import Channel, Connection, Outgoing, Publisher, topology, wire
from leash.amqp.last_acks import settled
from tests.conftest import StalledLog
from tests.consumer.kit import until

COUNT = 200


def take(connection: Connection) -> tuple[Channel, list[int]]:
    """All of a quorum queue, on a channel of their own."""
    with Publisher(connection) as publisher:
        publisher.publish(Outgoing(b"", "", "q") for _ in range(COUNT))
    taker = connection.channel()
    taker.qos(COUNT)
    taker.consume("q")
    tags: list[int] = []
    while len(tags) < COUNT:
        lot = taker.deliveries(60)
        assert lot is not None
        tags += lot.tags
    return taker, tags


def test_acks_one_by_one_are_applied_before_the_channel_ends(
    connection: Connection, channel: Channel, stalled_log: StalledLog
) -> None:
    topology.declare_queue(channel, "q", kind="quorum")
    for sure in (True, False):
        taker, tags = take(connection)
        stalled_log.begin()
        taker.write(b"".join(wire.ack(taker.number, tag) for tag in tags[:-1]))
        if sure:
            stalled_log.ends_with(settled)([(taker, "q")])
        taker.close()
        stalled_log.end()
        until(lambda: topology.state(channel, "q").consumers == 0)  # then the rest is back, too
        left = topology.state(channel, "q").ready
        assert left == 1 if sure else left > 100  # else there is nothing to wait for any more


def test_a_channel_or_a_queue_that_is_gone_is_passed_over(connection: Connection, channel: Channel) -> None:
    ended = connection.channel()
    ended.close()
    topology.declare_queue(channel, "q")
    with Publisher(connection) as publisher:
        publisher.publish([Outgoing(b"", "", "q")])
    taken = settled([(ended, "q"), (connection.channel(), "nowhere"), (channel, "q")])
    assert [each.channel for each in taken] == [channel]
    channel.nack(0, multiple=True)
    until(lambda: topology.state(channel, "q") == ("q", 1, 0))


def test_a_message_that_must_not_go_back_once_more_is_not_dropped(
    connection: Connection, channel: Channel
) -> None:
    """It was returned as often as its queue allows, and no consumer got to it again."""
    topology.declare_queue(channel, "q", kind="quorum", arguments={"x-delivery-limit": 1})
    with Publisher(connection) as publisher:
        publisher.publish(Outgoing(b"%d" % number, "", "q") for number in range(4))
    with connection.channel() as taker:
        assert all(taker.get("q") for _ in range(4))
    until(lambda: topology.state(channel, "q").ready == 4)
    last = connection.channel()
    settled([(last, "q")])
    last.close()
    until(lambda: topology.state(channel, "q").consumers == 0)
    until(lambda: topology.state(channel, "q").ready == 4, 20)
