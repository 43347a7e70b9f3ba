"""Several hosts: which of them is taken, whatever the others do; and servers that cannot be trusted."""

from __future__ import annotations

import socket
import threading
import time
from contextlib import ExitStack
from dataclasses import replace

import pytest
from pamqp import commands, frame

from leash import errors
from leash.amqp import Connection, Outgoing, Publisher, connect, topology, wire
from leash.amqp.uri import Uri, parse
from leash.broker import Broker
from tests.admin import limit
from tests.amqp import fake
from tests.amqp.test_connection import free_port
from tests.amqp.test_wire import delivery

FULL = "NOT_ALLOWED - connection refused: node connection limit (10) is reached"
NOT_NOW = {
    "down": (541, "INTERNAL_ERROR - access to vhost 'v' refused for user 'me': vhost 'v' is down"),
    "node full": (530, FULL),
    "vhost full": (
        530,
        "NOT_ALLOWED - access to vhost 'v' refused for user 'me': connection limit (0) is reached",
    ),
    "user full": (
        530,
        "NOT_ALLOWED - connection refused for user 'me': user connection limit (5) is reached",
    ),
    "backend away": (
        530,
        "NOT_ALLOWED - access to vhost 'v' refused for user 'me', "
        "backend rabbit_auth_backend_ldap returned an error: timeout",
    ),
    "maintenance": (320, "CONNECTION_FORCED - Node was put into maintenance mode"),
    "shutdown": (320, "CONNECTION_FORCED - broker forced connection closure with reason 'shutdown'"),
    "boot": (541, "INTERNAL_ERROR"),
}
FOR_GOOD = {
    "no vhost": (530, "NOT_ALLOWED - vhost nowhere not found", errors.VirtualHostError),
    "no access": (
        530,
        "NOT_ALLOWED - access to vhost 'limit' refused for user 'down'",
        errors.VirtualHostError,
    ),
    "password": (403, "ACCESS_REFUSED - Login was refused", errors.AuthenticationError),
}
HEARTBEATS = wire.HEARTBEAT * 1000


def silent(peer: socket.socket) -> None:
    peer.recv(8)
    peer.recv(8)  # until the client has given up


def closing(peer: socket.socket) -> None:
    peer.recv(8)


def reset(peer: socket.socket) -> None:
    peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\x00\x00\x00\x00\x00\x00\x00")


TROUBLED: dict[str, fake.Act] = {
    **{name: fake.refusing(*said) for name, said in NOT_NOW.items()},
    "silent": silent,
    "silent when it matters": fake.greet_and(silent),
    "closing": closing,
    "reset": reset,
    "flooding": fake.flooding(HEARTBEATS),
    "flooding when it matters": fake.flooding(HEARTBEATS, fake.greet),
    "something else": fake.flooding(b"HTTP/1.1 400 Bad Request\r\n\r\n"),
}


@pytest.mark.parametrize("trouble", TROUBLED)
def test_a_host_in_trouble_is_passed_over(uri: str, trouble: str) -> None:
    place = parse(uri)
    with fake.serving(TROUBLED[trouble]) as other:
        with connect(replace(place, hosts=(other, *place.hosts), timeout=10.0)) as opened:
            assert opened.where == "{}:{}".format(*place.hosts[0])


@pytest.mark.parametrize("trouble", NOT_NOW)
def test_what_may_pass_is_no_refusal_for_good(trouble: str) -> None:
    with fake.serving(fake.refusing(*NOT_NOW[trouble])) as host:
        with pytest.raises(errors.ConnectError) as caught:
            connect(Uri((host,)))
    assert type(caught.value) is errors.ConnectError
    assert NOT_NOW[trouble][1] in str(caught.value)


@pytest.mark.parametrize("why", FOR_GOOD)
def test_what_every_node_would_say_ends_the_search(uri: str, why: str) -> None:
    code, text, kind = FOR_GOOD[why]
    place = parse(uri)
    with fake.serving(fake.refusing(code, text)) as other, pytest.raises(kind):
        connect(replace(place, hosts=(other, *place.hosts)))


def test_a_lost_host_is_tried_last_and_used_if_there_is_no_other(uri: str) -> None:
    place = parse(uri)
    with fake.serving(fake.let_in) as first, fake.serving(fake.let_in) as second:
        hosts = replace(place, hosts=(first, second))
        names = ["{}:{}".format(*host) for host in (first, second)]
        for avoid, expected in (("", 0), (names[0], 1), (names[1], 0), ("elsewhere:1", 0)):
            opened = connect(hosts, avoid=avoid)
            opened.abort()
            assert opened.where == names[expected]
        opened = connect(replace(place, hosts=(first,)), avoid=names[0])
        opened.abort()


def test_all_that_was_tried_is_named(uri: str) -> None:
    with ExitStack() as stack:
        hosts = [stack.enter_context(fake.serving(act)) for act in (closing, fake.refusing(530, FULL))]
        with pytest.raises(errors.ConnectError, match=r"closed the connection.*; .*limit \(10\) is reached"):
            connect(Uri(tuple(hosts)))
        with pytest.raises(errors.ConnectError) as caught:
            connect(Uri((("127.0.0.1", free_port()), hosts[1])))
    assert type(caught.value) is errors.ConnectError


@pytest.mark.parametrize("flood", ["heartbeats", "confirms", "half a message"])
@pytest.mark.parametrize("when", ["at once", "before open-ok"])
def test_a_server_that_floods_in_the_handshake_is_given_up(flood: str, when: str) -> None:
    data = {
        "heartbeats": HEARTBEATS,
        "confirms": wire.ack(1, 1) * 1000,
        "half a message": b"".join(b"".join(delivery(n, 1, b"x" * 9000)[:2]) for n in range(1, 100)),
    }[flood]
    act = fake.flooding(data) if when == "at once" else fake.flooding(data, fake.greet)
    with fake.serving(act) as host, pytest.raises(errors.ConnectError) as caught:
        connect(Uri((host,), timeout=60.0 if flood == "half a message" else 0.5))
    expected = "not open" if flood == "half a message" else "did not arrive in time"
    assert expected in str(caught.value)


def test_a_tls_handshake_that_never_ends_is_given_up() -> None:
    record = b"\x16\x03\x03\x00\x04" + b"\x02\x00\xff\xff"  # the beginning of a server hello
    piece = b"\x16\x03\x03\x00\x01\x00"  # and one byte more of it, and one more

    def act(peer: socket.socket) -> None:
        peer.recv(65536)
        peer.sendall(record)
        fake.flooding(piece, lambda _: time.sleep(0.01))(peer)

    with fake.serving(act) as host, pytest.raises(errors.ConnectError):
        connect(Uri((host,), tls=True, timeout=0.5))


@pytest.mark.parametrize("whole", [True, False])
def test_a_message_on_a_channel_that_nobody_opened_ends_the_connection(whole: bool) -> None:
    frames = delivery(7, 1, b"x" * 9000)
    data = b"".join(frames if whole else frames[:2])
    go = threading.Event()

    def act(peer: socket.socket) -> None:
        fake.let_in(peer)
        go.wait(fake.LIMIT)
        peer.sendall(data)
        peer.recv(65536)

    with fake.serving(act) as host:
        opened = connect(Uri((host,)))
        go.set()
        with opened.changed:
            assert opened.changed.wait_for(lambda: opened.closed, 20)
        with pytest.raises(errors.ConnectionLost, match="a message on channel 7, which is not open"):
            opened.channel()


def test_channels_that_close_while_messages_flow_do_not_end_the_connection(connection: Connection) -> None:
    with connection.channel() as channel:
        topology.declare_queue(channel, "q")
        topology.declare_queue(channel, "other")
    with Publisher(connection) as publisher:
        publisher.publish(Outgoing(b"x" * (n % 3) * 100_000, "", "q") for n in range(60))
    for n in range(60):
        channel = connection.channel()
        channel.consume("q", deliver=lambda _: None)
        if n % 2:
            channel.close()
            continue
        with pytest.raises(errors.NotFound):
            topology.state(channel, "nowhere")  # the broker closes it, with the deliveries on their way
    assert not connection.closed
    with connection.channel() as channel:
        assert topology.state(channel, "other").ready == 0


def test_a_message_cut_in_two_by_the_end_of_its_channel_leaves_nothing() -> None:
    channels = {1}
    decoder = wire.Decoder(channels=channels)
    assert decoder.feed(b"".join(delivery(1, 1, b"x" * 9000)[:2])) == []
    with pytest.raises(errors.ProtocolError, match="channel 2, which is not open"):
        decoder.feed(delivery(2, 1)[0])
    decoder = wire.Decoder(channels=channels)
    assert decoder.feed(frame.marshal(commands.Channel.CloseOk(), 2))  # methods are for whoever asked


def test_a_virtual_host_that_is_down_on_a_real_broker_is_no_refusal(broker: Broker, uri: str) -> None:
    name = parse(uri).vhost
    there = f'[X] = [X || X <- ets:tab2list(rabbit_vhost_sup_sup), element(2, X) =:= <<"{name}">>]'
    broker.eval(f"{there}, supervisor:terminate_child(rabbit_vhost_sup_sup, element(4, X)).")
    try:
        with pytest.raises(errors.ConnectError, match="is down") as caught:
            connect(uri)
        assert type(caught.value) is errors.ConnectError
    finally:
        broker.ctl("restart_vhost", "-p", name)
    connect(uri).close()


def test_a_full_virtual_host_on_a_real_broker_is_no_refusal(broker: Broker, uri: str) -> None:
    limit(broker, uri, "max-connections", 0)
    try:
        with pytest.raises(errors.ConnectError, match="limit") as caught:
            connect(uri)
        assert type(caught.value) is errors.ConnectError
    finally:
        limit(broker, uri, "max-connections", None)
    connect(uri).close()


@pytest.mark.parametrize("host", ["a..b", ".a", "x" * 64, "a\0b", "\udc80", "a b", "999.999.999.999"])
def test_a_host_that_cannot_be_looked_up_is_unreachable(host: str) -> None:
    with pytest.raises(errors.HostUnreachable):
        connect(Uri(((host, 5672),), timeout=1.0))


@pytest.mark.parametrize("name", ["a..b", ".a", "x" * 64])
def test_a_server_name_that_is_none_is_a_tls_error(name: str) -> None:
    with fake.serving(silent) as host, pytest.raises(errors.TlsError):
        connect(Uri((host,), tls=True, server_name=name))


def test_a_dead_address_leaves_time_for_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    with fake.serving(fake.let_in) as (host, port):
        dead = socket.socket()
        dead.bind((host, 0))
        dead.listen(0)
        full = [socket.create_connection(dead.getsockname(), 5)]
        look_up = socket.getaddrinfo

        def both(*arguments: object, **named: object) -> list[object]:
            answer = look_up(host, port, type=socket.SOCK_STREAM)
            return [(*answer[0][:4], dead.getsockname()), *answer]

        monkeypatch.setattr(socket, "getaddrinfo", both)
        opened = connect(Uri((("two.example", port),), timeout=10.0))
        opened.abort()
        for each in (*full, dead):
            each.close()
