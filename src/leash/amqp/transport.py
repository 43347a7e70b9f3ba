"""One TCP connection, plain or TLS: bytes out, bytes in, from two threads at once.

The law: reading never waits for writing. TLS runs over memory buffers, because one SSL object must not be
read and written at the same time, while one socket may.
"""

from __future__ import annotations

import contextlib
import select
import socket
import ssl
import struct
import threading
import time

from leash.errors import ConfigError, ConnectError, HostUnreachable, TlsError

READ = 1 << 16


class Transport:
    """A connected socket."""

    def __init__(self, sock: socket.socket) -> None:
        self._socket = sock
        self._sending = threading.Lock()
        self._patience = -1.0
        self._writable = select.poll()
        self._writable.register(sock, select.POLLOUT)

    def read(self, timeout: float) -> bytes | None:
        """The next bytes; None if none arrived in time; empty if the peer closed."""
        if timeout != self._patience:
            # The socket's own timeout, for reading only: `poll` would cost another system call per read.
            self._patience = timeout
            microseconds = max(1, int(timeout * 1_000_000))
            limit = struct.pack("@ll", *divmod(microseconds, 1_000_000))
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, limit)
        try:
            return self._socket.recv(READ)
        except BlockingIOError:
            return None

    def write(self, data: bytes, deadline: float | None = None) -> None:
        """Write everything to the socket. TimeoutError after the deadline: then half a frame may be sent."""
        with self._sending:
            self._send(self._sealed(data), deadline)

    def try_write(self, data: bytes) -> bool:
        """Write a few bytes now or not at all; for the reader's thread, which must not wait."""
        if not self._sending.acquire(blocking=False):
            return False  # another thread is writing, so the peer hears from us anyway
        try:
            if not self._writable.poll(0):
                return False
            self._send(self._sealed(data), time.monotonic() + 1)
            return True
        finally:
            self._sending.release()

    def _sealed(self, data: bytes) -> bytes:
        return data

    def _send(self, data: bytes, deadline: float | None) -> None:
        view = memoryview(data)
        while view:
            try:
                view = view[self._socket.send(view, socket.MSG_DONTWAIT) :]
            except BlockingIOError:
                if deadline is None:
                    self._writable.poll()
                elif not self._writable.poll(max(0, int((deadline - time.monotonic()) * 1000))):
                    raise TimeoutError("the peer takes no more data") from None

    def shutdown(self) -> None:
        """End it from any thread: reading and writing threads wake up."""
        with contextlib.suppress(OSError):  # the peer closed first
            self._socket.shutdown(socket.SHUT_RDWR)

    def disown(self) -> None:
        """Close this process's copy of the socket, and leave the connection as it is."""
        self._socket.close()

    def close(self) -> None:
        """Only for the reading thread: a polled descriptor must not be reused by another socket."""
        self.shutdown()
        with self._sending:
            self._socket.close()


class TlsTransport(Transport):
    """The same over TLS."""

    def __init__(self, sock: socket.socket, context: ssl.SSLContext, name: str, deadline: float) -> None:
        super().__init__(sock)
        self._tls = threading.Lock()
        self._incoming = ssl.MemoryBIO()
        self._outgoing = ssl.MemoryBIO()
        self._object = context.wrap_bio(self._incoming, self._outgoing, server_hostname=name)
        self._handshake(deadline)

    def _handshake(self, deadline: float) -> None:
        while True:
            try:
                self._object.do_handshake()
                return
            except ssl.SSLWantReadError:
                self._send(self._outgoing.read(), deadline)
                left = deadline - time.monotonic()
                came = super().read(left) if left > 0 else None
                if came is None:
                    raise TimeoutError("no answer to the TLS handshake in time") from None
                if not came:
                    raise ConnectionResetError("closed during the TLS handshake") from None
                self._incoming.write(came)
            finally:
                self._send(self._outgoing.read(), deadline)

    def read(self, timeout: float) -> bytes | None:
        came = super().read(timeout)
        if not came:
            return came
        with self._tls:
            self._incoming.write(came)
            plain = []
            try:
                while True:
                    plain.append(self._object.read(READ))
                    if not plain[-1]:
                        return b"".join(plain)
            except ssl.SSLWantReadError:
                return b"".join(plain) or None
            except ssl.SSLZeroReturnError:
                return b"".join(plain)

    def _sealed(self, data: bytes) -> bytes:
        with self._tls:
            self._object.write(data)
            return self._outgoing.read()


def tls_context(
    cafile: str | None, certfile: str | None, keyfile: str | None, verify: bool
) -> ssl.SSLContext:
    """The TLS context. Verification is on unless it was turned off."""
    try:
        context = ssl.create_default_context(cafile=cafile)
        if certfile:
            context.load_cert_chain(certfile, keyfile)
    except (OSError, ssl.SSLError) as error:
        raise ConfigError(
            "tls", cafile or certfile, f"certificate files that can be read ({error})"
        ) from error
    if not verify:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context


def open_transport(
    host: str, port: int, timeout: float, context: ssl.SSLContext | None, server_name: str | None
) -> Transport:
    """Connect, or raise an error that says why not in one sentence."""
    deadline = time.monotonic() + timeout
    where = f"{host}:{port}"
    try:
        sock = _connected(host, port, deadline)
    except TimeoutError as error:
        raise HostUnreachable(f"{where} did not answer within {timeout:g} s") from error
    except OSError as error:
        raise HostUnreachable(f"{where}: {error.strerror or error}") from error
    except (ValueError, OverflowError) as error:  # an invalid name: "a..b", a label of 64 bytes
        raise HostUnreachable(f"{where}: not the name of a host ({error})") from error
    sock.settimeout(None)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    if context is None:
        return Transport(sock)
    try:
        return TlsTransport(sock, context, server_name or host, deadline)
    except BaseException as error:
        sock.close()
        raise _tls_failure(error, where) from error


def _connected(host: str, port: int, deadline: float) -> socket.socket:
    """Connect to the first of a host's addresses that answers. The remaining time is divided among them, so
    that one that drops every packet leaves time for the next.
    """
    addresses = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    failure: OSError = OSError(f"{host} has no address")
    for count, (family, kind, protocol, _, address) in enumerate(addresses):
        left = (deadline - time.monotonic()) / (len(addresses) - count)
        if left <= 0:
            raise TimeoutError
        sock = socket.socket(family, kind, protocol)
        try:
            sock.settimeout(left)
            sock.connect(address)
            return sock
        except OSError as error:
            sock.close()
            failure = error
        except BaseException:
            sock.close()
            raise
    raise failure


def _tls_failure(error: BaseException, where: str) -> BaseException:
    if isinstance(error, ssl.SSLCertVerificationError):
        return TlsError(f"{where}: certificate not accepted: {error.verify_message}")
    if isinstance(error, ssl.SSLError):
        return TlsError(f"{where}: TLS handshake failed: {error.reason or error}")
    if isinstance(error, TimeoutError):
        return HostUnreachable(f"{where}: {error}")
    if isinstance(error, OSError):
        return ConnectError(f"{where}: {error}")
    if isinstance(error, ValueError):
        return TlsError(f"{where}: not a name that a certificate can have ({error})")
    return error
