"""What goes wrong with streams that are read, and what is refused before anything is read."""

from __future__ import annotations

import logging
from typing import Any

import pytest
from pyspark.sql.types import StringType, StructField, StructType

from leash.amqp import Channel, topology
from leash.amqp.uri import parse
from leash.broker import Broker
from leash.errors import ConfigError, DataLost, OffsetError, StreamMissing
from leash.spark.browse import BrowseReader
from leash.spark.columns import source_schema
from leash.spark.settings import browse_settings, source_settings
from leash.spark.source import RabbitMQ
from leash.spark.streams import links, positions, read
from leash.spark.streams.settings import stream_read_settings, stream_settings, stream_sink_settings
from leash.streams import Connection, Publisher, create_super_stream, first_and_end

from .kit import Query, bodies, fill, make, read_batch, remove, values, wait_plan

URL = "rabbitmq-stream://user:hunter2@broker:5552/"


def test_the_broker_is_killed_in_a_task(place: str, broker: Broker) -> None:
    make(place, "s")
    sent = fill(place, "s", 0, 200_000, pieces=20)
    query = Query(place, stream="s")
    assert query.plan()
    rows: list[bytes] = []
    for number, batch in enumerate(query.reader.read(query.partitions()[0])):
        if number == 0:
            broker.kill()
            broker.start()
        rows += batch.column("value").to_pylist()
    assert rows == sent
    fill(place, "s", 200_000, 5)
    assert values(query.batch()) == bodies(200_000, 5)


def overtaken(place: str) -> int:
    """Retention deletes whole segments, once there is another."""
    make(place, "s", max_length_bytes="200000", stream_max_segment_size_bytes="100000")
    with Publisher(place, "s") as publisher:
        for _ in range(40):
            publisher.publish([bytes(1000)] * 50)
    with_link = Query(place, stream="s", startingOffsets="earliest")
    return int(with_link.first["next"]["s"])


def test_a_start_that_retention_has_deleted(place: str, caplog: pytest.LogCaptureFixture) -> None:
    first = overtaken(place)
    assert first > 100
    told = {"stream": "s", "startingOffsets": '{"s": 100}'}
    with pytest.raises(DataLost, match=f"'s'.*expected offset 100, and the first there is {first}"):
        Query(place, **told)
    with caplog.at_level(logging.WARNING):
        rows = Query(place, **told, failOnDataLoss="false").drain()
    assert rows[0]["offset"] == first
    assert f"expected offset 100, and the first there is {first}" in caplog.text


def test_a_query_that_retention_overtakes(place: str) -> None:
    make(place, "s", max_length_bytes="200000", stream_max_segment_size_bytes="100000")
    with Publisher(place, "s") as publisher:
        publisher.publish([bytes(1000)] * 50)
        query = Query(place, stream="s", maxRecordsPerTrigger=10)
        assert len(query.batch()) == 10
        assert query.plan()
        for _ in range(40):
            publisher.publish([bytes(1000)] * 50)
    with pytest.raises(DataLost, match="expected offset 10,"):
        query.read()
    with pytest.raises(DataLost, match="expected offset 20,"):
        wait_plan(query, 10)
    query.restart(failOnDataLoss="false")
    assert query.read() == []  # the planned batch is gone, and the log says so
    rows = query.drain(most=300)
    assert [row["offset"] for row in rows] == list(range(rows[0]["offset"], 2050))


@pytest.mark.parametrize("again", [30, 300])
def test_a_stream_that_was_deleted_and_made_again(
    place: str, again: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(positions, "_BEHIND", 0.2)
    monkeypatch.setattr(read, "_LOOK", 1.0)
    make(place, "s")
    fill(place, "s", 0, 100)
    query = Query(place, stream="s", maxRecordsPerTrigger=60)
    assert values(query.batch()) == bodies(0, 60)
    assert query.plan()
    remove(place, "s")
    with pytest.raises(StreamMissing):
        query.read()
    make(place, "s")
    fill(place, "s", 1000, again)
    with pytest.raises(DataLost, match=r"'s'.*expected offset"):
        query.read()
    with pytest.raises(DataLost, match="expected offset 100, and the first there is 0"):
        wait_plan(query, 30)
    query.restart(failOnDataLoss="false", maxRecordsPerTrigger=1000)
    assert values(query.batch(60)) == bodies(1000, again)


def test_a_stream_that_was_made_again_as_long_as_it_was(place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(links, "_FRESH", 0.1)
    make(place, "s")
    fill(place, "s", 0, 100)
    query = Query(place, stream="s")
    assert values(query.batch()) == bodies(0, 100)
    remove(place, "s")
    make(place, "s")
    fill(place, "s", 1000, 100)
    with pytest.raises(DataLost, match="it was deleted and made again: expected offset 100"):
        wait_plan(query, 30)


def test_a_missing_stream(place: str) -> None:
    with pytest.raises(ConfigError, match="stream='s': there is no stream of that name"):
        Query(place, stream="s")
    make(place, "there")
    fill(place, "there", 0, 5)
    query = Query(place, streams="s,there", failOnDataLoss="false")
    assert values(query.drain()) == bodies(0, 5)
    make(place, "s")
    fill(place, "s", 5, 5)
    assert values(query.batch()) == bodies(5, 5)


def test_a_queue_where_a_stream_is_meant_and_the_reverse(place: str, uri: str, channel: Channel) -> None:
    topology.declare_queue(channel, "q", kind="classic")
    with pytest.raises(ConfigError, match=r"stream='q': there is no stream.*option queue"):
        Query(place, stream="q")
    make(place, "s")
    browse = browse_settings({"url": uri, "queue": "s", "mode": "browse"})
    with pytest.raises(ConfigError, match="queue='s': is a stream: read it by the option stream"):
        list(BrowseReader(browse, source_schema(False)).read(None))  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="superStream='s': there is no super stream of that name"):
        Query(place, superStream="s")


def test_the_amqp_port(uri: str, place: str) -> None:
    port = parse(uri).hosts[0][1]
    make(place, "s")
    with pytest.raises(ConfigError, match=f"streamPort={port}: .* is an AMQP port"):
        Query(uri, stream="s", streamPort=port)
    wrong = place.replace(place.rpartition(":")[2].partition("/")[0], str(port))
    with pytest.raises(ConfigError, match=r"url=.* is an AMQP port"):
        Query(wrong, stream="s")


def test_an_amqp_url_with_the_stream_port(uri: str, place: str, broker: Broker) -> None:
    make(place, "s")
    sent = fill(place, "s", 0, 10)
    assert values(Query(uri, stream="s", streamPort=broker.port("stream")).drain()) == sent


def test_offsets_that_do_not_fit(place: str, uri: str, link: Connection) -> None:
    make(place, "s")
    fill(place, "s", 0, 100)
    with pytest.raises(ConfigError, match="startingOffsets=500: stream 's' ends at 100"):
        Query(place, stream="s", startingOffsets='{"s": 500}')
    with pytest.raises(
        ConfigError, match="startingOffsets=50: stream 's' would begin after endingOffsets, 20"
    ):
        read_batch(place, stream="s", startingOffsets='{"s": 50}', endingOffsets='{"s": 20}')
    with pytest.raises(ConfigError, match="endingOffsets=101: stream 's' ends at 100"):
        read_batch(place, stream="s", endingOffsets='{"s": 101}')
    create_super_stream(link, "orders", 2, amqp=uri)
    with pytest.raises(
        ConfigError, match="startingOffsets='orders-7': is not read here; there are orders-0, orders-1"
    ):
        Query(place, superStream="orders", startingOffsets='{"orders-7": 1}')
    assert first_and_end(link, "s").end == 100


def test_filters_on_a_broker_that_has_none(place: str, link: Connection) -> None:
    if link.version >= (3, 13):
        pytest.skip("this broker has filters")
    make(place, "s")
    with pytest.raises(ConfigError, match=r"filterValues='a': filters need RabbitMQ 3.13"):
        Query(place, stream="s", filterValues="a")


@pytest.mark.parametrize(
    ("given", "named"),
    [
        ({"stream": "s", "stagingLocation": "x"}, "stagingLocation=.*is for queues"),
        ({"stream": "s", "deduplication": "messageId"}, "deduplication=.*is for queues"),
        ({"stream": "s", "queue": "q"}, "queue=.*is for queues"),
        ({"stream": "s", "queues": "q"}, "queues=.*is for queues"),
        ({"stream": "s", "pollTimeout": "1s"}, "pollTimeout=.*is for queues"),
        ({"stream": "s", "streams": "a,b"}, "exactly one of stream"),
        ({"stream": "s", "superStream": "t"}, "superStream='t': set superStream, or stream"),
        ({"streams": "a:x"}, "streams='a:x'"),
        ({"streams": '{"a": {"rat": 1}}'}, r"streams\[a\].rat"),
        ({"stream": "s", "budget": "sms:rate=5"}, "budget=.*is for queues"),
        ({"streams": '{"a": {"budget": "sms:rate=5"}}'}, r"streams\[a\].budget='sms': budgets are"),
        ({"stream": "s", "startingOffsets": "first"}, "startingOffsets='first': earliest, latest"),
        ({"stream": "s", "startingOffsets": '{"s": -1}'}, "startingOffsets="),
        ({"stream": "s", "startingOffsets": '{"t": 1}'}, "startingOffsets='t': is not read here"),
        ({"stream": "s", "startingTimestamp": "2026-01-01T00:00:00"}, "startingTimestamp=.*zone"),
        ({"stream": "s", "startingTimestamp": "5", "startingOffsets": "latest"}, "startingTimestamp=5"),
        ({"stream": "s", "endingOffsets": "latest"}, "endingOffsets=.*not of the stream source"),
        ({"stream": "s", "matchUnfiltered": "true"}, "matchUnfiltered=True: only beside filterValues"),
        ({"stream": "s", "streamPort": "5552"}, "streamPort=5552: only with an amqp"),
        ({"stream": "s", "burst": "5"}, "burst=5: needs maxRatePerSecond"),
        ({"stream": "s", "confirmTimeout": "5s"}, "confirmTimeout=.*not of the stream source"),
        ({"stream": "s", "starting_offset": "latest"}, "did you mean startingOffsets"),
    ],
)
def test_options_that_do_not_belong(given: dict[str, str], named: str) -> None:
    with pytest.raises(ConfigError, match=named) as caught:
        stream_settings({"url": URL, **given})
    assert "hunter2" not in str(caught.value)


def test_options_of_the_batch_read_and_the_sink() -> None:
    with pytest.raises(ConfigError, match=r"maxRecordsPerTrigger=.*not of the batch read of streams"):
        stream_read_settings({"url": URL, "stream": "s", "maxRecordsPerTrigger": "5"})
    with pytest.raises(ConfigError, match="endingOffsets='earliest'"):
        stream_read_settings({"url": URL, "stream": "s", "endingOffsets": "earliest"})
    with pytest.raises(ConfigError, match="exactly one of stream and superStream"):
        stream_sink_settings({"url": URL, "stream": "s", "superStream": "t"})
    with pytest.raises(ConfigError, match=r"routingKey=.*is for queues"):
        stream_sink_settings({"url": URL, "stream": "s", "routingKey": "k"})
    with pytest.raises(ConfigError, match=r"startingOffsets=.*is for streams"):
        source_settings({"url": URL, "queue": "q", "stagingLocation": "x", "startingOffsets": "latest"})


def test_a_checkpoint_of_queues(place: str) -> None:
    make(place, "s")
    query = Query(place, stream="s")
    other: dict[str, Any] = {"version": 1, "run": "x", "seq": 1}
    with pytest.raises(OffsetError, match="belongs to a query on queues"):
        query.reader.partitions(query.first, other)


def test_the_source_takes_the_reader_by_the_options() -> None:
    source = RabbitMQ({"url": URL, "stream": "s", "includeHeaders": "true"})
    schema = source.schema()
    assert schema.names == ["value", "stream", "offset", "timestamp", "headers"]
    assert type(source.streamReader(schema)).__name__ == "StreamsReader"
    assert type(source.reader(schema)).__name__ == "StreamsBatchReader"
    more = StructType([StructField("message_id", StringType())])
    with pytest.raises(ConfigError, match="message_id needs includeProperties=true"):
        source.reader(more)
