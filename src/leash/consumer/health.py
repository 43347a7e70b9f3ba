"""Serves a consumer's health over HTTP, beside its metrics.

    /healthz    200 while the process lives
    /readyz     200 while it is connected and consumes every queue that is not paused; else 503
    /metrics    for Prometheus

Anything else is 404. The first two answer in JSON; the second says why it is not ready.
"""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, ClassVar

from prometheus_client import CollectorRegistry
from prometheus_client.exposition import choose_encoder

from leash.consumer.metrics import ConsumerCollector
from leash.errors import ConfigError

if TYPE_CHECKING:
    from leash.consumer.consumer import Consumer
    from leash.consumer.stats import Stats

ADDRESS = "a port, or host:port such as 0.0.0.0:8080"
_NAMED = 5  # queues in a reason


def address(argument: str, given: int | str) -> tuple[str, int]:
    """Where to listen. A port alone is for this machine only."""
    host, colon, port = str(given).rpartition(":")
    host = host.removeprefix("[").removesuffix("]") if colon else "127.0.0.1"
    if isinstance(given, bool) or not host or not (port.isascii() and port.isdecimal()) or int(port) > 65535:
        raise ConfigError(argument, given, ADDRESS)
    return host, int(port)


def unready(stats: Stats | None) -> str | None:
    """Why it is not ready; None: it is."""
    if stats is None:
        return "not started"
    if stats.stopping:
        return "stopping"
    if not stats.connected:
        return "not connected to the broker"
    missing = [name for name, each in stats.queues.items() if not (each.connected or each.why == "paused")]
    if missing:
        more = f" and {len(missing) - _NAMED} more" if len(missing) > _NAMED else ""
        return f"not consuming {', '.join(map(repr, missing[:_NAMED]))}{more}"
    return None


def serve_health(consumer: Consumer, where: int | str, argument: str = "health") -> Callable[[], None]:
    """Serve `/healthz`, `/readyz` and `/metrics` in a thread; call the result to end it.

    `where` is a port, to which only this machine can connect, or `"0.0.0.0:8080"`, which admits others.
    """
    registry = CollectorRegistry()
    registry.register(ConsumerCollector(consumer))
    return serve(registry, lambda: unready(_stats(consumer)), where, argument)


def serve(
    registry: CollectorRegistry, reason: Callable[[], str | None], where: int | str, argument: str
) -> Callable[[], None]:
    """The same for any registry; `reason` says why it is not ready."""
    host, port = address(argument, where)
    answer = type("Answer", (_Answer,), {"reason": staticmethod(reason), "registry": registry})
    try:
        server = (_Server6 if ":" in host else _Server)((host, port), answer)
    except OSError as error:
        why = f"a host and a port that are free here ({error.strerror or error})"
        raise ConfigError(argument, where, why) from error
    thread = threading.Thread(target=server.serve_forever, args=(0.1,), name="leash-health", daemon=True)
    thread.start()

    def stop() -> None:
        server.shutdown()
        server.server_close()
        thread.join(5)

    return stop


def _stats(consumer: Consumer) -> Stats | None:
    try:
        return consumer.stats()
    except ConfigError:  # not started, or not any more
        return None


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False


class _Server6(_Server):
    address_family = socket.AF_INET6


class _Answer(BaseHTTPRequestHandler):
    reason: ClassVar[Callable[[], str | None]]
    registry: ClassVar[CollectorRegistry]
    timeout = 10  # seconds for a client to say what it wants

    def do_GET(self) -> None:
        path = self.path.partition("?")[0]
        if path == "/metrics":
            encode, kind = choose_encoder(self.headers.get("Accept") or "")
            self._send(200, kind, encode(self.registry))
        elif path == "/healthz":
            self._json(200, {"alive": True})
        elif path == "/readyz":
            reason = type(self).reason()
            told: dict[str, object] = {"ready": reason is None}
            self._json(200 if reason is None else 503, told | ({"reason": reason} if reason else {}))
        else:
            self._json(404, {"error": "not found", "paths": ["/healthz", "/readyz", "/metrics"]})

    do_HEAD = do_GET  # noqa: N815

    def _json(self, status: int, told: dict[str, object]) -> None:
        self._send(status, "application/json", json.dumps(told).encode() + b"\n")

    def _send(self, status: int, kind: str, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Cache-Control", "no-store")
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def version_string(self) -> str:
        return "leash"

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        """Log nothing: there is a probe every few seconds."""
