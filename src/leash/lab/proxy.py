"""A TCP proxy that makes the network slow, or cuts it: every byte arrives `delay` seconds later, in order.

For the lab and for tests. It listens on loopback only; `delay` may be changed while it runs. With a `rate`,
at most that many bytes per second pass in each direction of a connection, and the rest waits at its sender.
"""

from __future__ import annotations

import contextlib
import itertools
import socket
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import replace

from leash.amqp.uri import parse

_LINE = 4  # reads in flight at a time, with a rate


class Proxy:
    """A proxy in front of `host:port`, as a context manager. With `more` hosts, connections go to each in
    turn, as behind a load balancer.
    """

    def __init__(
        self,
        host: str,
        port: int,
        delay: float = 0.0,
        rate: float | None = None,
        *,
        more: Iterable[tuple[str, int]] = (),
    ) -> None:
        self.delay = delay
        self.rate = rate
        self.refuse = False
        """True if new connections are refused."""
        self._targets = itertools.cycle([(host, port), *more])
        self._sockets: list[socket.socket] = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, name="proxy", daemon=True).start()

    def __enter__(self) -> Proxy:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self.refuse = True
        _end(self._listener)
        self.cut()

    def cut(self) -> None:
        """End every connection."""
        while self._sockets:
            _end(self._sockets.pop())

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            try:
                if self.refuse:
                    raise ConnectionRefusedError
                server = socket.create_connection(next(self._targets))
            except OSError:
                client.close()
                continue
            self._sockets += [client, server]
            with contextlib.suppress(OSError):  # already cut
                for sock in (client, server):
                    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                _Pipe(self, client, server)
                _Pipe(self, server, client)


def _end(sock: socket.socket) -> None:
    with contextlib.suppress(OSError):
        sock.shutdown(socket.SHUT_RDWR)
    sock.close()


@contextlib.contextmanager
def slow_apart(uri: str, delay: float) -> Iterator[str]:
    """The same in another process, so that measurements do not wait for the proxy's threads."""
    host, port = parse(uri).hosts[0]
    command = [sys.executable, "-m", "leash.lab.proxy", host, str(port), str(delay)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            far = int(process.stdout.readline())
            yield replace(parse(uri), hosts=(("127.0.0.1", far),)).reveal()
        finally:
            process.kill()


def _serve(host: str, port: str, delay: str) -> None:
    """Run until standard input ends, which is when the parent ends."""
    sys.setswitchinterval(0.0005)
    with Proxy(host, int(port), float(delay)) as proxy:
        sys.stdout.write(f"{proxy.port}\n")
        sys.stdout.flush()
        sys.stdin.read()


class _Pipe:
    """One direction: one thread reads and timestamps, another writes what is due."""

    def __init__(self, proxy: Proxy, source: socket.socket, sink: socket.socket) -> None:
        self._proxy, self._source, self._sink = proxy, source, sink
        self._chunks: deque[tuple[float, bytes]] = deque()
        self._more = threading.Semaphore(0)
        self._room = threading.Semaphore(_LINE)
        for run in (self._read, self._write):
            threading.Thread(target=run, name="proxy pipe", daemon=True).start()

    def _read(self) -> None:
        data = b"-"
        while data:
            if self._proxy.rate is not None:
                self._room.acquire()
            try:
                data = self._source.recv(1 << 16)
            except OSError:
                data = b""
            self._chunks.append((time.monotonic() + self._proxy.delay, data))
            self._more.release()

    def _write(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                self._more.acquire()
                due, data = self._chunks.popleft()
                time.sleep(max(0.0, due - time.monotonic()))
                if not data:
                    self._sink.shutdown(socket.SHUT_WR)
                    return
                self._sink.sendall(data)
                if self._proxy.rate is not None:
                    time.sleep(len(data) / self._proxy.rate)
                    self._room.release()


def slow(uri: str, delay: float) -> tuple[Proxy, str]:
    """A proxy in front of a broker, and the URI through it."""
    place = parse(uri)
    host, port = place.hosts[0]
    proxy = Proxy(host, port, delay)
    return proxy, replace(place, hosts=(("127.0.0.1", proxy.port),)).reveal()


if __name__ == "__main__":
    _serve(*sys.argv[1:4])
