"""Arguments for streams that are wrong are named in one sentence."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import pytest

from leash import Consumer, Stream
from leash.amqp import Channel
from leash.errors import ConfigError, LeashError, NotFound, StreamMissing
from leash.streams import (
    Connection,
    create_stream,
)
from leash.testing import Rehearsal
from tests.consumer.kit import fill


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
        ({"stream": "s", "shed": "return"}, "shed='return': must be one of observe, shrink, drop"),
        ({"stream": "s", "kind": "stream"}, "kind='stream'"),
        ({"stream": "s", "single_active": 1}, "single_active=1"),
        ({"stream": "s", "ordered": 1}, "ordered=1"),
        ({"stream": "s", "filters": "emea"}, "filters='emea': a list of filter values"),
        ({"stream": "s", "filters": [""]}, "filters=''"),
        ({"stream": "s", "filters": 7}, "filters=7"),
        ({"stream": "s", "unfiltered": True}, "unfiltered=True: filters with it"),
        ({"stream": "s", "fail_on_data_loss": "no"}, "fail_on_data_loss='no': must be True or False"),
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
    beyond = Stream("s", start=7)
    refused(ConfigError, "start=7: stream 's' ends at 0", streams=[beyond], name="n")
    refused(ConfigError, "queues='s': a queue: this is a stream", queues=["s"])
    refused(StreamMissing, "'none'", super_stream="none", name="n")
