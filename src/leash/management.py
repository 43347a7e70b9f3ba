"""RabbitMQ's management plugin over HTTP, for what AMQP cannot do: virtual hosts, policies, bindings."""

from __future__ import annotations

import base64
import http.client
import json
import os
import urllib.error
import urllib.request
from typing import Any
from urllib.parse import quote, urlsplit

from leash.amqp.uri import parse, redact
from leash.errors import BrokerError, ConfigError

_VARIABLE = "LEASH_MANAGEMENT_URL"
_SECONDS = 20.0


class Management:
    """The plugin at a base URL, with one user's credentials."""

    def __init__(self, url: str, user: str, password: str) -> None:
        self._url = url.rstrip("/")
        self._user = user
        self._authorization = "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()

    def __repr__(self) -> str:
        return f"<Management {self._url}>"

    @classmethod
    def beside(cls, uri: str) -> Management:
        """A broker's plugin: at LEASH_MANAGEMENT_URL, or on port 15672 of its first host."""
        place = parse(uri)
        given = os.environ.get(_VARIABLE)
        url = _checked(given) if given else f"http://{place.hosts[0][0]}:15672"
        return cls(url, place.username, place.password)

    def ask(self, method: str, path: str, body: object = None) -> Any:
        """Send a request, such as `ask("GET", "/api/overview")`."""
        request = urllib.request.Request(  # noqa: S310  (the user's own URL)
            self._url + path,
            method=method,
            data=None if body is None else json.dumps(body).encode(),
            headers={"Authorization": self._authorization, "Content-Type": "application/json"},
        )
        try:
            with urllib.request.urlopen(request, timeout=_SECONDS) as answer:  # noqa: S310
                raw = answer.read()
        except (urllib.error.URLError, OSError, http.client.HTTPException) as error:
            raise BrokerError(
                f"the management plugin at {self._url} refused {method} {path}: {error}"
            ) from error
        return json.loads(raw) if raw else None

    def add_vhost(self, name: str) -> None:
        """Create a virtual host, with all permissions for this user."""
        self.ask("PUT", f"/api/vhosts/{quote(name, safe='')}")
        everything = {"configure": ".*", "write": ".*", "read": ".*"}
        self.ask("PUT", f"/api/permissions/{quote(name, safe='')}/{quote(self._user, safe='')}", everything)

    def delete_vhost(self, name: str) -> None:
        """Delete a virtual host with its contents."""
        self.ask("DELETE", f"/api/vhosts/{quote(name, safe='')}")


def _checked(url: str) -> str:
    """Check a URL. One with a password in it is refused, and shown without it."""
    try:
        parts = urlsplit(url)
        usable = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:  # it may quote the password
        usable = False
    if not usable or "@" in url:
        shown = redact(url).partition("?")[0]
        raise ConfigError(_VARIABLE, shown, "must look like http://host:15672, without a user")
    return url
