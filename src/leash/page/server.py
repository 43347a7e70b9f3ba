"""The page's server: files, events once a second, a certificate, and actions where they are allowed.

Every request must name a host that we serve: a forged one may come from another page in the browser, by DNS.
Actions need more (`access.py`), and each is logged: what, and from where.
"""

from __future__ import annotations

import json
import secrets
import socket
import threading
import time
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar

from leash.consumer.reporting import EVERY, pace
from leash.errors import ConfigError, LeashError
from leash.logfmt import logger
from leash.page.access import host_of, refused
from leash.page.actions import Actions
from leash.page.fleet import Fleet
from leash.page.listen import Exchange, Heard, Own

log = logger("leash.page")

STATIC = Path(__file__).with_name("static")
_KINDS = {".html": "text/html", ".js": "text/javascript", ".css": "text/css", ".txt": "text/plain"}
FILES = {
    "/": "index.html",
    **{
        f"/{name}": name
        for name in ("app.js", "draw.js", "style.css", "uPlot.js", "uPlot.css", "uPlot.LICENSE.txt")
    },
}
_POLICY = "default-src 'self'; frame-ancestors 'none'; base-uri 'none'; form-action 'none'"
_LARGEST = 1 << 20  # bytes of a request


class Page:
    """A fleet, its source, and a server for it, from start to stop."""

    def __init__(
        self,
        fleet: Fleet,
        source: Callable[[Heard], Exchange | Own],
        actions: Actions | None = None,
        hosts: tuple[str, ...] = (),
    ) -> None:
        self.fleet = fleet
        self.actions = actions
        self.token = secrets.token_urlsafe(24) if actions is not None else None
        fleet.about["actions"] = actions is not None
        self._hosts = tuple(name.lower() for name in hosts)
        self._lock = threading.Lock()
        self._heard_of = source
        self.source: Exchange | Own | None = None
        self.ticked = threading.Condition()
        self.event = b""
        """The last view, as an event."""
        self._left = threading.Event()
        self._server: ThreadingHTTPServer | None = None
        self._threads: list[threading.Thread] = []

    def heard(self, now: float, report: Any) -> None:
        with self._lock:
            self.fleet.heard(now, report)

    def start(self, host: str, port: int) -> str:
        """Serve; returns the address, with the token behind it."""
        answer = type("Answer", (_Answer,), {"page": self})
        try:
            self._server = (_Server6 if ":" in host else _Server)((host, port), answer)
        except OSError as error:
            why = f"a port that is free on {host} ({error.strerror or error})"
            raise ConfigError("port", port, why) from error
        port = self._server.server_address[1]
        shown = f"[{host}]" if ":" in host else host
        names = {shown.lower(), "127.0.0.1", "localhost", "[::1]", *self._hosts}
        self.names = {f"{name}:{port}" for name in names} | set(self._hosts)
        self.source = self._heard_of(self.heard)
        for target in (self._server.serve_forever, self._tick):
            thread = threading.Thread(target=target, name="leash-page", daemon=True)
            self._threads.append(thread)
            thread.start()
        shown = {"0.0.0.0": "127.0.0.1", "": "127.0.0.1", "::": "[::1]"}.get(host, shown)  # noqa: S104
        return f"http://{shown}:{port}/" + (f"#token={self.token}" if self.token else "")

    def stop(self) -> None:
        self._left.set()
        with self.ticked:
            self.ticked.notify_all()
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()
        if self.source is not None:
            self.source.close()
        for thread in self._threads:
            thread.join(5)

    @property
    def left(self) -> bool:
        return self._left.is_set()

    def _tick(self) -> None:
        """Once a second, and at the moment when a process has been silent for too long."""
        pause = EVERY
        while not self._left.wait(pause):
            try:
                pause = self._turn()
            except Exception:  # the next view may be better
                log.exception("event=page_failed")
                pause = EVERY

    def _turn(self) -> float:
        """Make an event of what is known now; returns the seconds until the next."""
        began = time.thread_time()
        trouble = self.source.trouble if self.source is not None else None
        with self._lock:
            self.fleet.trouble = trouble
            now = time.time()
            view = self.fleet.tick(now)
            silence = self.fleet.silence(now)
        body = json.dumps(view, separators=(",", ":"))
        with self.ticked:
            self.event = f"data: {body}\n\n".encode()
            self.ticked.notify_all()
        if self.source is not None and self.source.thrifty:
            return pace(time.thread_time() - began)
        return EVERY if silence is None else min(EVERY, silence + 0.01)

    def view(self) -> dict[str, Any]:
        with self._lock:
            return self.fleet.view(time.time()) | {"history": self.fleet.history}

    def certificate(self) -> dict[str, Any]:
        with self._lock:
            return self.fleet.certificate(time.time())


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False


class _Server6(_Server):
    address_family = socket.AF_INET6


class _Answer(BaseHTTPRequestHandler):
    page: ClassVar[Page]
    timeout = 30
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        path = self.path.partition("?")[0]
        if not self._known_host():
            return
        if path in FILES:
            file = STATIC / FILES[path]
            self._send(200, f"{_KINDS[file.suffix]}; charset=utf-8", file.read_bytes())
        elif path == "/favicon.ico":
            self._send(204, "image/x-icon", b"")
        elif path == "/events":
            self._events()
        elif path == "/view.json":
            self._json(200, self.page.view())
        elif path == "/certificate.json":
            name = time.strftime("leash-certificate-%Y%m%d-%H%M%S.json", time.gmtime())
            self._json(
                200, self.page.certificate(), {"Content-Disposition": f'attachment; filename="{name}"'}
            )
        else:
            self._json(404, {"error": "not found"})

    def do_POST(self) -> None:
        if not self._known_host():
            return
        length = self.headers.get("Content-Length") or ""
        if not length.isdecimal() or int(length) > _LARGEST:
            self._json(411, {"error": "a body of known and modest length is needed"}, {"Connection": "close"})
            return
        body = self.rfile.read(int(length))
        refusal = refused(self.headers, self.page.token)
        if refusal is not None:
            log.warning("event=action_refused path=%r by=%r reason=%r", self.path, self._who(), refusal)
            self._json(403, {"error": refusal})
            return
        assert self.page.actions is not None
        assert self.page.source is not None
        try:
            asked = json.loads(body)
            done = self.page.actions.do(self.path, asked, self._who(), self.page.source.ask)
            self._json(200, done)
        except (LeashError, ValueError, KeyError, TypeError, RecursionError) as error:
            self._json(400, {"error": str(error) or type(error).__name__})

    def _known_host(self) -> bool:
        if host_of(self.headers) in self.page.names:
            return True
        self._json(
            403, {"error": "this host name is not served here; see --allow-host"}, {"Connection": "close"}
        )
        return False

    def _who(self) -> str:
        return f"page {self.client_address[0]}"

    def _events(self) -> None:
        self.send_response(200)
        self._headers("text/event-stream")
        self.send_header("Connection", "close")
        self.end_headers()
        self.close_connection = True
        first = json.dumps(self.page.view(), separators=(",", ":"))
        sent = f"event: first\ndata: {first}\n\n".encode()
        try:
            while not self.page.left:
                self.wfile.write(sent)
                self.wfile.flush()
                with self.page.ticked:
                    self.page.ticked.wait(5)
                    sent = self.page.event
        except OSError:  # the viewer has gone
            return

    def _json(self, status: int, told: object, more: dict[str, str] | None = None) -> None:
        self._send(status, "application/json", json.dumps(told).encode(), more)

    def _send(self, status: int, kind: str, body: bytes, more: dict[str, str] | None = None) -> None:
        self.send_response(status)
        self._headers(kind)
        self.send_header("Content-Length", str(len(body)))
        for name, value in (more or {}).items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def _headers(self, kind: str) -> None:
        self.send_header("Content-Type", kind)
        self.send_header("Content-Security-Policy", _POLICY)
        self.send_header("X-Content-Type-Options", "nosniff")
        self.send_header("Referrer-Policy", "no-referrer")
        self.send_header("Cache-Control", "no-store")

    def version_string(self) -> str:
        return "leash"

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        """Log no requests; actions are logged elsewhere."""
