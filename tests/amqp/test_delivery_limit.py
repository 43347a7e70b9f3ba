"""How often a message came back, and copies that start at 0 again."""

from __future__ import annotations

import time

import pytest
from pamqp.common import FieldTable

from leash.amqp import (
    Channel,
    Connection,
    Outgoing,
    Properties,
    Publisher,
    decode_properties,
    encode_properties,
    topology,
)
from leash.amqp.delivery_limit import (
    RESCUED,
    copy,
    danger,
    declare_limbo,
    delivery_count,
    limbo_queue,
    limit_of,
    rescues,
)
from leash.amqp.queue_traits import Traits, traits
from leash.amqp.wire import ContentEvent


def _get(channel: Channel, queue: str) -> ContentEvent:
    """A message that was given back may take a moment to be there again."""
    deadline = time.monotonic() + 60
    while (came := channel.get(queue)) is None:
        assert time.monotonic() < deadline, f"{queue} is empty"
        time.sleep(0.01)
    return came


@pytest.mark.parametrize(("limit", "from_"), [(20, 10), (200, 10), (6, 3), (3, 1), (1, 1), (0, 1)])
def test_danger_is_half_the_limit_and_never_later_than_for_the_default(limit: int, from_: int) -> None:
    assert danger(limit) == from_


def test_a_limit_is_the_default_unless_the_queue_says_otherwise() -> None:
    assert limit_of(Traits(), (4, 0, 5)) == 20
    assert limit_of(Traits(), (3, 10, 8)) is None
    assert limit_of(Traits(arguments={"x-delivery-limit": 7}), (3, 10, 8)) == 7
    assert limit_of(Traits(arguments={"x-delivery-limit": -1}), (4, 3)) is None
    assert limit_of(None, (4,)) == 6  # nobody knows: rather too early
    assert danger(None) == danger(20) == 10


def test_a_count_that_is_nested_in_another_header_does_not_hide_the_brokers() -> None:
    headers: FieldTable = {"a": {"x-delivery-count": 1}, "x-delivery-count": 12}
    assert delivery_count(encode_properties(Properties(headers=headers))) == 12


def test_a_count_is_found_without_decoding() -> None:
    headers: FieldTable = {"a": "b", "x-delivery-count": 12, "z": [1]}
    assert delivery_count(encode_properties(Properties(headers=headers))) == 12
    assert delivery_count(b"\0\0") == delivery_count(b"") == 0
    assert delivery_count(b"\x20\0\0\0\0\x11\x10x-delivery-count") == 0
    assert delivery_count(b"\x20\0\0\0\0\x12\x10x-delivery-countl\0") == 0


@pytest.mark.parametrize("fake", [0, 15])
def test_a_count_that_a_publisher_put_inside_of_a_header_says_nothing(
    connection: Connection, channel: Channel, fake: int
) -> None:
    topology.declare_queue(channel, "q", kind="quorum", arguments={"x-delivery-limit": 50})
    inside: FieldTable = {
        "forwarded": {"x-delivery-count": fake},
        "text": f"\x10x-delivery-countb{chr(fake)}",
    }
    with Publisher(connection) as publisher:
        publisher.publish([Outgoing(b"", "", "q", Properties(headers=inside))])
    for back in range(3):
        with connection.channel() as taker:
            assert delivery_count(_get(taker, "q").properties) == back


def test_a_copy_bears_no_name_that_the_broker_would_refuse(connection: Connection, channel: Channel) -> None:
    topology.declare_queue(channel, "q")
    told = encode_properties(Properties(user_id="somebody else", message_id="m-1", headers={"k": 1}))
    with Publisher(connection) as publisher:
        publisher.publish([copy("q", b"", told)])
    found = decode_properties(_get(channel, "q").properties)
    assert (found.user_id, found.message_id, found.headers) == (None, "m-1", {"k": 1, RESCUED: 1})


def test_the_broker_counts_and_a_copy_starts_anew(connection: Connection, channel: Channel) -> None:
    topology.declare_queue(channel, "q", kind="quorum", arguments={"x-delivery-limit": 50})
    publisher = Publisher(connection)
    publisher.publish(
        [Outgoing(b"body", "", "q", encode_properties(Properties(message_id="1", headers={"k": 1})))]
    )
    for back in range(12):
        with connection.channel() as taker:
            came = _get(taker, "q")
            assert delivery_count(came.properties) == back
            if back == 11:
                publisher.publish([copy("q", came.body, came.properties)])
                taker.ack(1)
    with connection.channel() as taker:
        fresh = _get(taker, "q")
    assert delivery_count(fresh.properties) == 0
    assert rescues(fresh.properties) == 1
    assert rescues(copy("q", b"", fresh.properties).properties) == 2  # type: ignore[arg-type]
    assert RESCUED == "x-leash-rescued"


def test_a_limbo_counts_but_has_no_limit(connection: Connection, channel: Channel) -> None:
    declare_limbo(connection, "q")
    assert declare_limbo(connection, "q").ready == 0
    made = traits(connection, limbo_queue("q"))
    assert made is not None
    assert made.kind == "quorum"
    with Publisher(connection) as publisher:
        publisher.publish([Outgoing(b"", "", limbo_queue("q"), mandatory=True)])
    for back in range(25):
        with connection.channel() as taker:
            came = _get(taker, limbo_queue("q"))
            assert delivery_count(came.properties) == back
