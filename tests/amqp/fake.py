"""Servers that behave as no broker should, or as one does in a moment that is hard to catch."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from pamqp import commands, frame
from pamqp.base import Frame as Method

Act = Callable[[socket.socket], None]
"""What the server does with a client, from the first byte on. Afterwards the connection is closed."""

LIMIT = 30.0  # seconds: then whatever a fake does ends


@contextmanager
def serving(act: Act) -> Iterator[tuple[str, int]]:
    """A server on loopback; its host and port."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        peers: list[socket.socket] = []

        def serve() -> None:
            with suppress(OSError):
                while True:
                    peer, _ = server.accept()
                    peers.append(peer)
                    peer.settimeout(LIMIT)
                    with suppress(OSError), peer:
                        act(peer)

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield server.getsockname()
        finally:
            for each in [server, *peers]:
                with suppress(OSError):
                    each.shutdown(socket.SHUT_RDWR)
            thread.join()


def send(peer: socket.socket, method: Method, channel: int = 0) -> None:
    peer.sendall(frame.marshal(method, channel))


def receive(peer: socket.socket, wanted: type[Method], buffer: bytearray) -> None:
    """Read until that method has come."""
    while True:
        while len(buffer) >= 8 and len(buffer) >= (size := 8 + int.from_bytes(buffer[3:7], "big")):
            _, _, got = frame.unmarshal(bytes(buffer[:size]))
            del buffer[:size]
            if isinstance(got, wanted):
                return
        data = peer.recv(65536)
        if not data:
            raise ConnectionResetError
        buffer += data


def greet(peer: socket.socket) -> None:
    """The handshake up to the moment at which a virtual host is asked for."""
    assert peer.recv(8) == b"AMQP\x00\x00\x09\x01"
    send(peer, commands.Connection.Start(0, 9, {"product": "Fake"}, "PLAIN", "en_US"))
    buffer = bytearray()
    receive(peer, commands.Connection.StartOk, buffer)
    send(peer, commands.Connection.Tune(2047, 131072, 0))
    receive(peer, commands.Connection.Open, buffer)


def greet_and(act: Act) -> Act:
    def both(peer: socket.socket) -> None:
        greet(peer)
        act(peer)

    return both


def let_in(peer: socket.socket) -> None:
    greet(peer)
    send(peer, commands.Connection.OpenOk())


def refusing(code: int, text: str) -> Act:
    """Closes when it is asked for the virtual host."""

    def act(peer: socket.socket) -> None:
        greet(peer)
        send(peer, commands.Connection.Close(code, text, 10, 40))
        peer.recv(65536)

    return act


def flooding(data: bytes, after: Callable[[socket.socket], object] = lambda peer: peer.recv(8)) -> Act:
    """Sends the same bytes again and again, until nobody listens any more."""

    def act(peer: socket.socket) -> None:
        after(peer)
        stop = threading.Event()
        timer = threading.Timer(LIMIT, stop.set)
        timer.start()
        try:
            while not stop.is_set():
                peer.sendall(data)
        finally:
            timer.cancel()

    return act
