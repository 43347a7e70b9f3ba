"""From the first byte to the open virtual host, before a connection's reader thread exists.

The law: it ends by its deadline, whatever the peer sends. And it tells apart what every node of a cluster
would answer (wrong credentials, no such virtual host) from what only this one says, or only now.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import NamedTuple

import leash
from leash.amqp.handshake import version, wrong_login
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
from leash.streams import wire
from leash.streams.wire import Fields, Key, Member

FRAME_MAX = 1 << 20
"""What a server proposes unless it is configured otherwise."""

_WRONG = 8
_REFUSED = (7, _WRONG, 9, 11)  # mechanism, credentials, SASL error, a user that may log in from loopback only
_BEFORE_VERSIONS = (3, 11)


class Agreed(NamedTuple):
    """What both sides said."""

    server: Mapping[str, str]
    heartbeat: int
    frame_max: int
    itself: Member | None
    commands: Mapping[int, tuple[int, int]]


class Handshake:
    """One attempt to be let in."""

    def __init__(
        self, uri: Uri, transport: Transport, decoder: wire.Decoder, where: str, deadline: float
    ) -> None:
        self._uri = uri
        self._transport = transport
        self._decoder = decoder
        self._where = where
        self._deadline = deadline
        self._came: list[wire.Frame] = []
        self._first = b""

    def run(self, name: str, heartbeat: int | None) -> Agreed:
        """Say hello; raises ConnectError if that ends in anything but an open virtual host."""
        self._decoder.limit = FRAME_MAX
        about = {"product": "leash", "version": leash.__version__, "platform": "Python"}
        if name:
            about["connection_name"] = name
        server = self._ask(Key.PEER_PROPERTIES, wire.pairs(about)).pairs()
        self._log_in()
        tune = Fields(self._expect(Key.TUNE).body)
        frame_max, proposed = tune.number(4), tune.number(4)
        asked = self._uri.heartbeat if heartbeat is None else heartbeat
        beat = proposed if asked is None else asked
        said = frame_max.to_bytes(4, "big") + beat.to_bytes(4, "big")
        self._send(wire.frame(Key.TUNE | wire.ANSWER, said))
        opened = self._ask(Key.OPEN, wire.text(self._uri.vhost))
        properties = opened.pairs() if opened.left else {}
        itself = None
        if "advertised_host" in properties and properties.get("advertised_port", "").isdecimal():
            itself = Member(properties["advertised_host"], int(properties["advertised_port"]))
        self._decoder.limit = wire.MAX_INCOMING
        return Agreed(server, beat, frame_max or wire.MAX_INCOMING, itself, self._versions(server))

    def _log_in(self) -> None:
        uri = self._uri
        mechanisms = self._ask(Key.SASL_HANDSHAKE).texts()
        if uri.mechanism not in mechanisms:
            raise AuthenticationError(f"{self._where} offers {', '.join(mechanisms)}, not {uri.mechanism}")
        response = f"\0{uri.username}\0{uri.password}".encode() if uri.mechanism == "PLAIN" else b""
        self._ask(Key.SASL_AUTHENTICATE, wire.text(uri.mechanism) + wire.blob(response))

    def _versions(self, server: Mapping[str, str]) -> Mapping[int, tuple[int, int]]:
        if version(server) < _BEFORE_VERSIONS:  # it would close the connection
            return {key: (1, 1) for key in Key if key <= Key.PARTITIONS}
        ours = wire.SENT_BY_US
        said = len(ours).to_bytes(4, "big") + b"".join(
            number.to_bytes(2, "big") for key, range_ in ours.items() for number in (key, *range_)
        )
        return wire.read_versions(self._ask(Key.EXCHANGE_COMMAND_VERSIONS, said))

    def _ask(self, key: Key, body: bytes = b"") -> Fields:
        self._send(wire.request(key, int(key), body))
        fields = Fields(self._expect(key).body)
        fields.number(4)
        code = fields.number(2)
        if code == wire.OK:
            return fields
        said = f"{self._where}: {key.name.lower()} refused ({code})"
        if key is Key.SASL_AUTHENTICATE and code in _REFUSED:
            why = {11: ", which may log in from the broker's own machine only"}.get(code, "")
            advice = wrong_login(self._uri.mechanism) if code == _WRONG else ""
            raise AuthenticationError(
                f"{self._where} refused the credentials of user {self._uri.username!r}{why} ({code}){advice}"
            )
        if key is Key.OPEN and code == 12:
            raise VirtualHostError(
                f"{said}: virtual host {self._uri.vhost!r} is missing or closed to the user"
            )
        raise ConnectError(said)

    def _send(self, data: bytes) -> None:
        try:
            self._transport.write(data, self._deadline)
        except OSError as error:
            raise ConnectError(f"{self._where}: {error.strerror or error}") from error

    def _expect(self, wanted: Key) -> wire.Frame:
        try:
            while True:
                while self._came:
                    came = self._came.pop(0)
                    if came.key == wanted:
                        return came
                    if came.key == Key.CLOSE:
                        fields = Fields(came.body)
                        fields.number(4)
                        code = fields.number(2)
                        raise ConnectError(f"{self._where} closed: {fields.text()} ({code})")
                self._came = self._read(wanted)
        except ProtocolError as error:
            raise ConnectError(self._not_streams(str(error))) from error
        except OSError as error:
            raise ConnectError(f"{self._where}: {error.strerror or error}") from error

    def _read(self, wanted: Key) -> list[wire.Frame]:
        while (left := self._deadline - time.monotonic()) > 0:
            data = self._transport.read(left)
            if data is None:
                continue
            if not data:
                raise ConnectError(f"{self._where} closed the connection during the handshake")
            if len(self._first) < 4:
                self._first += data[:4]
            if self._first[:2] == b"\x15\x03":
                raise TlsRequired(f"{self._where} expects TLS: use rabbitmq-stream+tls://")
            return self._decoder.feed(data)
        raise HostUnreachable(
            f"{self._where} accepted the connection and did not answer {wanted.name.lower()}"
        )

    def _not_streams(self, said: str) -> str:
        if self._first.startswith(b"AMQP"):
            return f"{self._where} is an AMQP port: the stream port is another, 5552 unless configured"
        return f"{self._where}: {said}"
