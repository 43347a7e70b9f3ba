"""Connections on the real broker: getting in, being refused, staying alive, and losing it."""

from __future__ import annotations

import logging
import socket
import threading
import time
from dataclasses import replace

import pytest

from leash import errors
from leash.amqp import Connection, Outgoing, Publisher, connect, topology
from leash.amqp.handshake import SEVERAL_HOSTS
from leash.amqp.transport import Transport
from leash.amqp.uri import parse
from leash.broker import Broker
from tests.conftest import Tls

PASSWORD = "s3cret-word"


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def at(uri: str, port: int, *, tls: bool = False, **changes: object) -> str:
    place = replace(parse(uri), hosts=(("127.0.0.1", port),), tls=tls)
    return replace(place, **changes).reveal()  # type: ignore[arg-type]


@pytest.mark.parametrize("good", range(4))
def test_a_connection_that_breaks_while_we_say_hello_is_a_connect_error(
    uri: str, monkeypatch: pytest.MonkeyPatch, good: int
) -> None:
    write, written = Transport.write, 0

    def breaking(transport: Transport, data: bytes, deadline: float | None = None) -> None:
        nonlocal written
        written += 1
        if written > good:
            raise BrokenPipeError(32, "Broken pipe")
        write(transport, data, deadline)

    monkeypatch.setattr(Transport, "write", breaking)
    with pytest.raises(errors.ConnectError, match="Broken pipe"):
        connect(uri)


def test_the_broker_tells_its_version_and_the_connection_shows_no_password(
    connection: Connection, uri: str
) -> None:
    assert connection.version >= (3, 8)
    assert connection.server["product"] == "RabbitMQ"
    assert parse(uri).password not in repr(connection)
    assert parse(uri).password not in repr(connection.channel())


def refusals(uri: str, broker: Broker, tls: Tls) -> dict[str, tuple[str, type[errors.ConnectError], str]]:
    wrong = replace(parse(uri), password=PASSWORD)
    port = wrong.hosts[0][1]
    return {
        "wrong password": (
            wrong.reveal(),
            errors.AuthenticationError,
            "ACCESS_REFUSED.*: wrong user or p.*%2F",
        ),
        "missing vhost": (at(uri, port, vhost="nowhere"), errors.VirtualHostError, "nowhere"),
        "refused port": (at(wrong.reveal(), free_port()), errors.HostUnreachable, "refused"),
        "wrong CA": (
            at(uri, tls.port, tls=True) + f"?cacertfile={tls.other_ca}",
            errors.TlsError,
            "certificate",
        ),
        "plain to TLS": (at(wrong.reveal(), tls.port), errors.TlsRequired, "amqps://"),
        "TLS to plain": (at(wrong.reveal(), port, tls=True), errors.TlsError, "TLS"),
    }


@pytest.mark.parametrize(
    "case", ["wrong password", "missing vhost", "refused port", "wrong CA", "plain to TLS", "TLS to plain"]
)
def test_every_way_to_be_refused_has_its_own_error(
    case: str, uri: str, broker: Broker, tls: Tls, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    target, kind, says = refusals(uri, broker, tls)[case]
    with pytest.raises(kind, match=says) as caught:
        connect(target)
    assert type(caught.value) is kind
    for secret in (PASSWORD, parse(uri).password):
        assert secret not in f"{caught.value} {caught.value!r} {caplog.text}"


def test_a_host_that_says_nothing_is_given_up_in_time(uri: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        with pytest.raises(errors.HostUnreachable, match="said nothing"):
            connect(at(uri, silent.getsockname()[1]), timeout=0.5)


def test_a_server_that_speaks_something_else_is_named(uri: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:

        def answer() -> None:
            peer, _ = server.accept()
            with peer:
                peer.recv(100)
                peer.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")

        thread = threading.Thread(target=answer)
        thread.start()
        with pytest.raises(errors.ConnectError, match="not AMQP"):
            connect(at(uri, server.getsockname()[1]))
        thread.join()


def test_the_second_host_is_used_when_the_first_is_down(uri: str) -> None:
    place = parse(uri)
    both = replace(place, hosts=(("127.0.0.1", free_port()), *place.hosts))
    with connect(both) as opened:
        assert opened.where == f"127.0.0.1:{place.hosts[0][1]}"
    with pytest.raises(errors.HostUnreachable, match=r"refused.*; .*refused"):
        connect(replace(place, hosts=(("127.0.0.1", free_port()), ("127.0.0.1", free_port()))))


def test_tls_carries_messages_both_ways(uri: str, tls: Tls, broker: Broker) -> None:
    target = at(uri, tls.port, tls=True) + f"?cacertfile={tls.ca}"
    bodies = [bytes([n % 256]) * (n * 37) for n in range(300)]
    with connect(target) as opened:
        channel = opened.channel()
        topology.declare_queue(channel, "q")
        with Publisher(opened) as publisher:
            assert publisher.publish(Outgoing(body, "", "q") for body in bodies) == 300
        channel.qos(50)
        channel.consume("q")
        got: list[bytes] = []
        while len(got) < 300:
            batch = channel.deliveries(60)
            assert batch is not None
            got += batch.bodies
            channel.ack(batch.tags[-1], multiple=True)
    assert got == bodies


def test_a_client_certificate_is_enough_with_external(uri: str, tls: Tls, broker: Broker) -> None:
    target = at(uri, tls.port, tls=True)
    options = f"?cacertfile={tls.ca}&certfile={tls.client_cert}&auth_mechanism=external"
    with connect(target + options) as opened:
        topology.declare_queue(opened.channel(), "q")


@pytest.mark.parametrize("busy", ["sleeping", "computing"])
def test_a_busy_program_keeps_its_connection_with_a_heartbeat_of_two_seconds(busy: str, uri: str) -> None:
    with connect(uri, heartbeat=2) as opened:
        channel = opened.channel()
        end = time.monotonic() + 10
        if busy == "sleeping":
            time.sleep(10)
        while time.monotonic() < end:
            sum(range(1000))
        assert topology.declare_queue(channel, "still-here").ready == 0


def test_with_another_host_to_go_to_heartbeats_are_short_unless_told(uri: str) -> None:
    place = parse(uri)
    several = replace(place, hosts=(*place.hosts, ("localhost", place.hosts[0][1])))
    for where, heartbeat in ((place, 60), (several, SEVERAL_HOSTS), (replace(several, heartbeat=9), 9)):
        with connect(where) as opened:
            assert opened.heartbeat == heartbeat


def test_a_frozen_broker_is_noticed_within_two_heartbeats(uri: str, broker: Broker) -> None:
    opened = connect(uri, heartbeat=2)
    channel = opened.channel()
    broker.pause()
    try:
        with pytest.raises(errors.ConnectionLost, match="nothing heard"):  # not "no answer"
            topology.state(channel, "q")
        assert opened.closed
    finally:
        broker.resume()


def test_a_killed_broker_is_noticed_by_everybody_who_waits(uri: str, broker: Broker) -> None:
    opened = connect(uri, heartbeat=2)
    channel = opened.channel()
    topology.declare_queue(channel, "q")
    channel.consume("q")
    lost: list[errors.AmqpError] = []
    channel.on_lost = lost.append
    killer = threading.Timer(0.5, broker.kill)
    killer.start()
    try:
        with pytest.raises(errors.ConnectionLost):
            channel.deliveries(120)
        with pytest.raises(errors.ConnectionLost):
            channel.ack(1)
        with pytest.raises(errors.ConnectionLost):
            opened.channel()
        assert len(lost) == 1
        opened.close()
    finally:
        killer.join()
        broker.start()


def test_closing_leaves_no_thread_and_may_be_repeated(uri: str) -> None:
    before = threading.active_count()
    opened = connect(uri)
    opened.close()
    opened.close()
    assert threading.active_count() == before
    with pytest.raises(errors.ConnectionLost):
        opened.channel()
