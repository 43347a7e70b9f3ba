"""What the page's tests share: reports as a process would send them, a page, and requests to it."""

from __future__ import annotations

import http.client
import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlsplit

from leash import Consumer
from leash.amqp.uri import parse
from leash.page.actions import Actions
from leash.page.fleet import Fleet
from leash.page.listen import Exchange, Own
from leash.page.server import Page


def report(name: str = "worker-1", seconds: float = 1.0, **more: Any) -> dict[str, Any]:
    """Of a consumer that is fine."""
    told: dict[str, Any] = {
        "v": 1,
        "kind": "consumer",
        "id": name,
        "name": name,
        "host": "h",
        "pid": 1,
        "leash": "0",
        "workers": 4,
        "seconds": seconds,
        "connected": True,
        "stopping": False,
        "blocked": None,
        "round_trip": 0.001,
        "reconnects": 0,
        "republishing": 0,
        "trouble": None,
        "overdue": 0,
        "spread": 0.5,
        "bound": 1.0,
        "unfair": {},
        "broker": "b:1",
        "queues": {},
        "errors": [],
    }
    return told | more


def queue(**more: Any) -> dict[str, Any]:
    return {"quantum": 1, "window": 10, "consumed": True, **more}


@contextmanager
def served(uri: str, actions: bool = False, consumer: Consumer | None = None) -> Iterator[tuple[Page, str]]:
    fleet = Fleet({"vhost": parse(uri).vhost, "broker": "a broker"})

    def source(heard: Any) -> Exchange | Own:
        return Exchange(uri, heard) if consumer is None else Own(consumer, heard)

    page = Page(fleet, source, Actions(uri) if actions else None)
    url = page.start("127.0.0.1", 0)
    try:
        yield page, url
    finally:
        page.stop()


def ask(url: str, path: str, body: object = None, **headers: str) -> tuple[int, dict[str, str], bytes]:
    place = urlsplit(url)
    connection = http.client.HTTPConnection(place.hostname or "", place.port, timeout=30)
    try:
        if body is None:
            connection.request("GET", path, headers=headers)
        else:
            connection.request("POST", path, json.dumps(body), headers)
        answer = connection.getresponse()
        return answer.status, dict(answer.getheaders()), answer.read()
    finally:
        connection.close()
