"""AMQP URIs: parsed, checked and shown without their password.

amqp[s]://user:password@host[:port][,host[:port]...]/virtual-host?heartbeat=10&cacertfile=ca.pem

A protocol beside AMQP, on ports of its own, is a tuple of two `Scheme`s: plain and TLS.
"""

from __future__ import annotations

import re
from contextlib import suppress
from dataclasses import dataclass, field
from typing import NamedTuple
from urllib.parse import parse_qsl, quote, unquote, urlsplit

from leash.errors import ConfigError

_SECRET = re.compile(
    r"([^:@]*\b(?:amqp|http|rabbitmq-stream)s?(?:\+tls)?://[^:@/?#]*:)?.*@", re.DOTALL | re.IGNORECASE
)
_ESCAPES = "in names and passwords, / is written %2F, ? %3F, # %23, @ %40, [ %5B and ] %5D"
_QUERY = [
    *("heartbeat", "connection_timeout", "auth_mechanism"),
    *("cacertfile", "certfile", "keyfile", "verify", "server_name_indication"),
]


class Scheme(NamedTuple):
    """What stands before `://`, and the port that it means."""

    name: str
    port: int
    tls: bool


AMQP = (Scheme("amqp", 5672, False), Scheme("amqps", 5671, True))


@dataclass(frozen=True, slots=True)
class Uri:
    """A broker's address and credentials."""

    hosts: tuple[tuple[str, int], ...]
    username: str = "guest"
    password: str = field(default="guest", repr=False)
    vhost: str = "/"
    tls: bool = False
    heartbeat: int | None = None
    timeout: float = 5.0
    mechanism: str = "PLAIN"
    cafile: str | None = None
    certfile: str | None = None
    keyfile: str | None = None
    verify: bool = True
    server_name: str | None = None
    scheme: str = ""
    """As it was given, if it was neither amqp nor amqps."""

    def __str__(self) -> str:
        scheme = self.scheme or ("amqps" if self.tls else "amqp")
        hosts = ",".join(f"[{h}]:{p}" if ":" in h else f"{h}:{p}" for h, p in self.hosts)
        return f"{scheme}://{quote(self.username, safe='')}:***@{hosts}/{quote(self.vhost, safe='')}"

    def reveal(self) -> str:
        """The URI with its password: for files that only their owner can read, and for other clients."""
        return str(self).replace(":***@", f":{quote(self.password, safe='')}@", 1)


def redact(text: str) -> str:
    """Text with everything hidden that may be part of a password: from the user to the last `@`."""
    return _SECRET.sub(r"\1***@", text, count=1)


def parse(uri: str | Uri, schemes: tuple[Scheme, Scheme] = AMQP) -> Uri:
    """Parse and check a URI. Without a path, or with `/`, the virtual host is `/`."""
    if isinstance(uri, Uri):
        return uri
    plain, other = schemes
    shape = f"must look like {plain.name}://user:password@host:{plain.port}/vhost (or {other.name}://)"
    if not isinstance(uri, str):
        raise ConfigError("url", type(uri), shape)
    shown = redact(uri).partition("?")[0]  # an unexpected option may hold a secret
    scheme = next((each for each in schemes if uri.startswith(f"{each.name}://")), None)
    if scheme is None:
        raise ConfigError("url", shown, shape)
    try:
        parts = urlsplit(uri)
    except ValueError:  # its text quotes the password
        raise ConfigError("url", shown, f"has a malformed host; {_ESCAPES}") from None
    if "@" in parts.path + parts.query + parts.fragment:  # then the apparent host may be a password
        raise ConfigError("url", shown, f"has an @ after the host; {_ESCAPES}")
    credentials, _, places = parts.netloc.rpartition("@")
    username, _, password = credentials.partition(":")
    vhost = unquote(parts.path[1:]) or "/"
    if "/" in parts.path[1:]:
        raise ConfigError("url", shown, "a slash inside the virtual host is written %2F")
    options = _options(parts.query, shown)
    server_name = options.get("server_name_indication")
    return Uri(
        hosts=tuple(_host(place, scheme.port, shown) for place in places.split(",")),
        username=unquote(username) if credentials else "guest",
        password=unquote(password) if credentials else "guest",
        vhost=vhost,
        tls=scheme.tls,
        heartbeat=_number(options, "heartbeat", shown),
        timeout=(_number(options, "connection_timeout", shown) or 5000) / 1000,
        mechanism=_choice(options, "auth_mechanism", ("plain", "external"), "plain", shown).upper(),
        cafile=options.get("cacertfile"),
        certfile=options.get("certfile"),
        keyfile=options.get("keyfile"),
        verify=_choice(options, "verify", ("verify_peer", "verify_none"), "verify_peer", shown)
        == "verify_peer",
        server_name=_name(server_name, shown) if server_name else None,
        scheme=scheme.name if schemes is not AMQP else "",
    )


def _host(place: str, default_port: int, shown: str) -> tuple[str, int]:
    match = re.fullmatch(r"(?:\[([0-9A-Fa-f:.%]+)\]|([^:\[\]]*))(?::(\d+))?", place)
    if match is None:
        raise ConfigError("url", shown, f"{place!r} is not host, host:port or [ipv6]:port")
    port = int(match[3]) if match[3] else default_port
    if not 0 < port < 65536:
        raise ConfigError("url", shown, f"{port} is not a port")
    return _name(unquote(match[1] or match[2]) or "localhost", shown), port


def _name(host: str, shown: str) -> str:
    """Check a host's name: the resolver raises odd errors for invalid ones."""
    with suppress(UnicodeError):
        if b"\0" not in host.encode("idna"):
            return host
    raise ConfigError(
        "url", shown, f"{host!r} is not the name of a host: its parts have 1 to 63 bytes of text"
    )


def _options(query: str, shown: str) -> dict[str, str]:
    found = dict(parse_qsl(query, keep_blank_values=True))
    for name in found:
        if name not in _QUERY:
            raise ConfigError("url", shown, f"{name!r} is not known; known are {', '.join(_QUERY)}")
    return found


def _number(options: dict[str, str], name: str, shown: str) -> int | None:
    value = options.get(name)
    if value is None:
        return None
    if not value.isdecimal() or int(value) > 65535:
        raise ConfigError("url", shown, f"{name}={value!r} must be a whole number up to 65535")
    return int(value)


def _choice(options: dict[str, str], name: str, allowed: tuple[str, ...], default: str, shown: str) -> str:
    value = options.get(name, default).lower()
    if value not in allowed:
        raise ConfigError("url", shown, f"{name}={value!r} must be one of {', '.join(allowed)}")
    return value
