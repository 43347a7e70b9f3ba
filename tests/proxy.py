"""A TCP proxy that delays every byte by the same time each way, and can cut what runs through it."""

from __future__ import annotations

import contextlib
import queue
import socket
import threading
import time
from types import TracebackType
from typing import Self


class Proxy:
    """Listens on a port of its own and passes on to `port` of this machine."""

    def __init__(self, port: int, delay: float = 0.0) -> None:
        self._upstream = port
        self.delay = delay
        self._open: list[socket.socket] = []
        self._refuse = False
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None
    ) -> None:
        self._refuse = True
        _end(self._listener)
        self.cut()

    def cut(self) -> None:
        """End every connection."""
        while self._open:
            _end(self._open.pop())

    def refuse(self, refuse: bool) -> None:
        """Whether to turn new connections away."""
        self._refuse = refuse

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            if self._refuse:
                client.close()
                continue
            try:
                server = socket.create_connection(("127.0.0.1", self._upstream))
            except OSError:
                client.close()
                continue
            self._open += [client, server]
            with contextlib.suppress(OSError):  # cut already
                for a, b in ((client, server), (server, client)):
                    a.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                    self._pass_on(a, b)

    def _pass_on(self, source: socket.socket, sink: socket.socket) -> None:
        waiting: queue.SimpleQueue[tuple[float, bytes]] = queue.SimpleQueue()

        def read() -> None:
            with contextlib.suppress(OSError):
                while data := source.recv(1 << 16):
                    waiting.put((time.monotonic() + self.delay, data))
            waiting.put((time.monotonic() + self.delay, b""))

        def write() -> None:
            with contextlib.suppress(OSError):
                while True:
                    at, data = waiting.get()
                    time.sleep(max(0.0, at - time.monotonic()))
                    if not data:
                        break
                    sink.sendall(data)
            _end(sink)

        for target in (read, write):
            threading.Thread(target=target, daemon=True).start()


def _end(sock: socket.socket) -> None:
    with contextlib.suppress(OSError):
        sock.shutdown(socket.SHUT_RDWR)
    sock.close()
