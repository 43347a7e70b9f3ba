"""Connections to the stream port: getting in, and being told why not."""

from __future__ import annotations

import time
from dataclasses import replace

import pytest

from leash.amqp.uri import parse as parse_amqp
from leash.broker import Broker
from leash.errors import (
    AuthenticationError,
    ConfigError,
    ConnectError,
    ConnectionLost,
    HostUnreachable,
    StreamMissing,
    StreamUnavailable,
    StreamUnsupported,
    TlsError,
    TlsRequired,
    VirtualHostError,
)
from leash.lab.proxy import Proxy
from leash.streams import (
    Connection,
    connect,
    connecting,
    create_stream,
    metadata,
    open_leader,
    open_member,
    parse,
    stream_stats,
    wire,
)
from leash.streams.wire import Key
from tests.conftest import Tls


def test_uris_of_the_stream_port() -> None:
    assert parse("rabbitmq-stream://u:p@a,b:9").hosts == (("a", 5552), ("b", 9))
    assert parse("rabbitmq-stream+tls://u:p@a").hosts == (("a", 5551),)
    assert parse("rabbitmq-stream+tls://u:p@a").tls
    assert parse("amqp://u:p@a:5672,b:5673/v").hosts == (("a", 5552), ("b", 5552))
    assert parse("amqps://u:p@a", port=7).hosts == (("a", 7),)
    assert parse("amqps://u:p@a").hosts == (("a", 5551),)
    shown = parse("rabbitmq-stream://me:secret@a/v")
    assert str(shown) == "rabbitmq-stream://me:***@a:5552/v"
    assert parse(shown) == parse(shown.reveal()) == shown


@pytest.mark.parametrize(
    "text", ["http://u:secret@a", "rabbitmq-stream://u:sec/ret@a", "rabbitmq-stream:secret"]
)
def test_wrong_uris_are_refused_without_their_password(text: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse(text)
    assert "ret@" not in str(caught.value)
    with pytest.raises(ConfigError, match="amqp://user"):
        parse_amqp("rabbitmq-stream://u:secret@a")


def test_a_connection_tells_what_the_broker_can(streams: Connection) -> None:
    assert streams.version >= (3, 10)
    assert streams.can(Key.PARTITIONS)
    assert streams.can(Key.STREAM_STATS) == (streams.version >= (3, 11))
    assert streams.can(Key.PUBLISH, 2) == (streams.version >= (3, 13))
    assert streams.itself is not None
    assert f"127.0.0.1:{streams.itself.port}" == streams.where


def test_a_node_that_does_not_know_a_stream_is_passed_over(
    stream: str, stream_uri: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On 3.10, a node that lost its coordinator says "is not available" for good; the others do not."""
    place = parse(stream_uri)
    with Proxy(*place.hosts[0]) as unwell, Proxy(*place.hosts[0]) as well:
        hosts = (("127.0.0.1", unwell.port), ("127.0.0.1", well.port))
        asked: list[str] = []
        real = connecting.placement

        def placement(connection: Connection, name: str) -> wire.Placement:
            asked.append(connection.where)
            if connection.where == f"127.0.0.1:{unwell.port}":
                raise wire.error(wire.UNAVAILABLE, name)
            return real(connection, name)

        monkeypatch.setattr(connecting, "placement", placement)
        for opener in (open_leader, open_member):
            with opener(replace(place, hosts=hosts), stream) as opened:
                assert opened.itself == real(opened, stream).leader
        assert asked == [f"{host}:{port}" for host, port in hosts] * 2
        with pytest.raises(StreamUnavailable, match="not available"):
            open_leader(replace(place, hosts=hosts[:1]), stream)
        with pytest.raises(StreamMissing):
            open_leader(replace(place, hosts=hosts[1:]), "none")


def test_statistics_are_refused_before_they_end_the_connection(streams: Connection, stream: str) -> None:
    if streams.version >= (3, 11):
        assert "first_chunk_id" in stream_stats(streams, stream)
    else:
        with pytest.raises(StreamUnsupported, match=r"need RabbitMQ 3\.11, and .* is RabbitMQ 3\.10"):
            stream_stats(streams, stream)
    assert metadata(streams, stream)[stream].code == 1


def test_the_first_host_that_answers_is_taken(stream_uri: str) -> None:
    place = parse(stream_uri)
    with connect(replace(place, hosts=(("127.0.0.1", 1), *place.hosts))) as opened:
        assert opened.where.endswith(str(place.hosts[0][1]))


def test_who_is_not_let_in_is_told_why(stream_uri: str, uri: str, tls: Tls) -> None:
    place = parse(stream_uri)
    with pytest.raises(AuthenticationError, match=r"'leash' \(8\): wrong user or p") as refused:
        connect(replace(place, password="not-this-one"))
    assert "not-this-one" not in str(refused.value)
    with pytest.raises(VirtualHostError, match="'nowhere'"):
        connect(replace(place, vhost="nowhere"))
    with pytest.raises(HostUnreachable):
        connect(replace(place, hosts=(("127.0.0.1", 1),)))
    with pytest.raises(ConnectError, match="is an AMQP port"):
        connect(replace(place, hosts=parse_amqp(uri).hosts))
    with pytest.raises(TlsRequired, match=r"rabbitmq-stream\+tls"):
        connect(replace(place, hosts=(("127.0.0.1", tls.stream_port),)))


def test_tls_and_certificates(stream_uri: str, tls: Tls) -> None:
    place = replace(parse(stream_uri), hosts=(("localhost", tls.stream_port),), tls=True, cafile=str(tls.ca))
    with connect(place) as opened:
        assert create_stream(opened, "by-tls")
        assert opened.itself is not None
        assert opened.itself.port == tls.stream_port
    with pytest.raises(TlsError, match="certificate not accepted"):
        connect(replace(place, cafile=str(tls.other_ca)))


def test_a_certificate_can_be_the_login(stream_uri: str, tls: Tls, streams: Connection) -> None:
    place = replace(
        parse(stream_uri),
        hosts=(("localhost", tls.stream_port),),
        tls=True,
        cafile=str(tls.ca),
        certfile=str(tls.client_cert),
        mechanism="EXTERNAL",
        password="of no use",
    )
    if streams.version < (3, 11):  # its stream plugin crashes when it is asked to
        with pytest.raises(ConnectError, match="closed the connection during the handshake"):
            connect(place)
        return
    with connect(place) as opened:
        assert create_stream(opened, "by-certificate")


def test_heartbeats_go_on_while_user_code_is_busy(stream_uri: str) -> None:
    with connect(stream_uri, heartbeat=1) as opened:
        deadline = time.monotonic() + 5  # more than twice what the broker waits
        while time.monotonic() < deadline:
            sum(range(10_000))
        assert metadata(opened, "none")["none"].code == 2


def test_a_request_above_the_frame_size_is_refused_here(streams: Connection) -> None:
    with pytest.raises(ConfigError, match=f"at most {streams.frame_max} bytes"):
        streams.ask(Key.METADATA, bytes(streams.frame_max))
    assert metadata(streams, "none")["none"].code == 2


def test_a_killed_broker_ends_what_waits(broker: Broker, stream_uri: str) -> None:
    opened = connect(stream_uri)
    broker.kill()
    try:
        with opened.changed:
            assert opened.changed.wait_for(lambda: opened.closed, 60)
        with pytest.raises(ConnectionLost):
            opened.ask(Key.METADATA, wire.texts(["x"]))
    finally:
        opened.close()
        broker.start()
