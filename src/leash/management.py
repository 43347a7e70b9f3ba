"""RabbitMQ's management plugin over HTTP: what AMQP cannot ask (virtual hosts, policies, bindings)."""

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
    """The plugin at a base URL, asked as one user."""

    def __init__(self, url: str, user: str, password: str) -> None:
        self._url = url.rstrip("/")
        self._user = user
        self._authorization = "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()

    def __repr__(self) -> str:
        return f"<Management {self._url}>"

    @classmethod
    def beside(cls, uri: str) -> Management:
        """The one that belongs to a broker: at LEASH_MANAGEMENT_URL, or on port 15672 of its first host."""
        place = parse(uri)
        given = os.environ.get(_VARIABLE)
        url = _checked(given) if given else f"http://{place.hosts[0][0]}:15672"
        return cls(url, place.username, place.password)

    def ask(self, method: str, path: str, body: object = None) -> Any:
        """`ask("GET", "/api/overview")`."""
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
        """Make a virtual host and let this user do everything in it."""
        self.ask("PUT", f"/api/vhosts/{quote(name, safe='')}")
        everything = {"configure": ".*", "write": ".*", "read": ".*"}
        self.ask("PUT", f"/api/permissions/{quote(name, safe='')}/{quote(self._user, safe='')}", everything)

    def delete_vhost(self, name: str) -> None:
        """Delete a virtual host with all that is in it."""
        self.ask("DELETE", f"/api/vhosts/{quote(name, safe='')}")


def _checked(url: str) -> str:
    """A URL that can be asked. One with a password in it cannot, and is not shown with it."""
    try:
        parts = urlsplit(url)
        usable = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:  # it may quote the password
        usable = False
    if not usable or "@" in url:
        shown = redact(url).partition("?")[0]
        raise ConfigError(_VARIABLE, shown, "must look like http://host:15672, without a user")
    return url
