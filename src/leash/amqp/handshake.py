"""From the protocol header to open-ok, before a connection's reader thread exists.

The law: it ends by its deadline, whatever the peer sends. And it distinguishes what every node of a cluster
would answer (wrong credentials, no such virtual host) from a fault of this node, or of this moment.
"""

from __future__ import annotations

import re
import time
from collections.abc import Mapping
from typing import Any, NamedTuple

from pamqp import commands
from pamqp.base import Frame as Method

import leash
from leash.amqp import wire
from leash.amqp.transport import Transport
from leash.amqp.uri import Uri
from leash.errors import (
    AuthenticationError,
    ConnectError,
    HostUnreachable,
    ProtocolError,
    TlsRequired,
    VirtualHostError,
)

_CAPABILITIES = dict.fromkeys(
    [
        "authentication_failure_close",
        "basic.nack",
        "connection.blocked",
        "consumer_cancel_notify",
        "exchange_exchange_bindings",
        "publisher_confirms",
    ],
    True,
)

# RabbitMQ says NOT_ALLOWED (530) of passing faults, too: "node connection limit (10) is reached", "vhost 'v'
# is down", "access to vhost 'v' refused for user 'u', backend ldap returned an error: timeout".
_PASSING = re.compile(r"\blimit\b.*\breached$|\bis down$|, backend .* returned an error")


SEVERAL_HOSTS = 4
"""Default seconds between heartbeats if there is another host: a host that is silent for one and a half
intervals is left, and the broker drops us after two. With less, busy machines would lose connections."""


class Agreed(NamedTuple):
    """What both sides agreed on."""

    server: Mapping[str, Any]
    heartbeat: int
    frame_max: int
    channel_max: int


def version(server: Mapping[str, Any]) -> tuple[int, ...]:
    """The broker's version as numbers, (3, 10, 8)."""
    parts = str(server.get("version", "")).split("-")[0].split(".")
    return tuple(int(part) for part in parts if part.isdecimal())


def wrong_login(mechanism: str) -> str:
    """What to do about a refused login, behind what the broker said."""
    if mechanism != "PLAIN":
        return ""
    return ": wrong user or password (in the URI, a / or @ in them is written %2F, %40)"


class Handshake:
    """One attempt to open a connection."""

    def __init__(
        self, uri: Uri, transport: Transport, decoder: wire.Decoder, where: str, deadline: float
    ) -> None:
        self._uri = uri
        self._transport = transport
        self._decoder = decoder
        self._where = where
        self._deadline = deadline

    def run(self, name: str, heartbeat: int | None) -> Agreed:
        """Run the handshake; raises ConnectError unless it ends with an open virtual host."""
        uri = self._uri
        self._write(wire.PROTOCOL_HEADER)
        start = self._expect(commands.Connection.Start)
        mechanisms = str(start.mechanisms).split()
        if uri.mechanism not in mechanisms:
            raise AuthenticationError(f"{self._where} offers {', '.join(mechanisms)}, not {uri.mechanism}")
        response = f"\0{uri.username}\0{uri.password}" if uri.mechanism == "PLAIN" else ""
        about: dict[str, Any] = {
            "product": "leash",
            "version": leash.__version__,
            "platform": "Python",
            "capabilities": _CAPABILITIES,
        }
        if name:
            about["connection_name"] = name
        self._send(commands.Connection.StartOk(about, uri.mechanism, response, "en_US"))
        tune = self._expect(commands.Connection.Tune)
        asked = uri.heartbeat if heartbeat is None else heartbeat
        if asked is None:
            asked = tune.heartbeat
            if len(uri.hosts) > 1:
                asked = min(asked or SEVERAL_HOSTS, SEVERAL_HOSTS)
        agreed = Agreed(
            dict(start.server_properties),
            asked,
            min(tune.frame_max or wire.FRAME_MAX, wire.FRAME_MAX),
            min(tune.channel_max or 65535, 65535),
        )
        self._decoder.frame_max = agreed.frame_max
        self._send(commands.Connection.TuneOk(agreed.channel_max, agreed.frame_max, agreed.heartbeat))
        self._send(commands.Connection.Open(uri.vhost))
        self._expect(commands.Connection.OpenOk)
        return agreed

    def _send(self, method: Method) -> None:
        self._write(wire.method(0, method))

    def _write(self, data: bytes) -> None:
        try:
            self._transport.write(data, self._deadline)
        except OSError as error:
            raise ConnectError(f"{self._where}: {error.strerror or error}") from error

    def _expect(self, wanted: type[Method]) -> Any:
        heard = "nothing"
        try:
            while (left := self._deadline - time.monotonic()) > 0:
                data = self._transport.read(left)
                if data is None:
                    continue
                if data[:2] == b"\x15\x03":
                    raise TlsRequired(f"{self._where} expects TLS: use amqps://")
                if not data:
                    raise ConnectError(f"{self._where} closed the connection during the handshake")
                for event in self._decoder.feed(data):
                    if isinstance(event, wire.MethodEvent):
                        if isinstance(event.method, wanted):
                            return event.method
                        self._refused(event.method)
                heard = f"nothing that opens it: {wanted.name} did not arrive in time"
        except ProtocolError as error:
            raise ConnectError(f"{self._where}: {error}") from error
        except OSError as error:
            raise ConnectError(f"{self._where}: {error.strerror or error}") from error
        raise HostUnreachable(f"{self._where} accepted the connection and said {heard}")

    def _refused(self, method: Method) -> None:
        if not isinstance(method, commands.Connection.Close):
            raise ConnectError(f"{self._where} sent {method.name} during the handshake")
        said = f"{self._where}: {method.reply_text} ({method.reply_code})"
        if method.reply_code == 403:
            elsewhere = "localhost" in method.reply_text  # right, but not from here
            advice = "" if elsewhere else wrong_login(self._uri.mechanism)
            raise AuthenticationError(f"{said}, as user {self._uri.username!r}{advice}")
        if method.reply_code in (402, 530) and not _PASSING.search(method.reply_text):
            raise VirtualHostError(f"{said}, virtual host {self._uri.vhost!r}")
        raise ConnectError(said)
