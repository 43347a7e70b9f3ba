"""What the page refuses, and what it never shows as markup."""

from __future__ import annotations

import json
import logging
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlsplit

import pytest

from leash.amqp import Channel
from leash.errors import ConfigError
from leash.page.fleet import Fleet
from leash.page.listen import Exchange
from leash.page.server import Page
from tests.consumer.kit import depth, fill
from tests.page.kit import ask, served

GOOD = {"Content-Type": "application/json"}


def test_an_action_needs_the_token_the_origin_the_host_and_to_be_allowed(
    channel: Channel, uri: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "leash.page")
    fill(channel, "leash.dead.q", 3)
    look = {"queue": "q"}
    with served(uri, actions=True) as (page, url):
        assert page.token is not None
        port = urlsplit(url).port
        token = {"Authorization": f"Bearer {page.token}"}
        assert f"#token={page.token}" in url
        assert ask(url, "/api/parked", look, **GOOD, **token)[0] == 200
        assert ask(url, "/api/parked", look, **GOOD, **token, Origin=f"http://127.0.0.1:{port}")[0] == 200
        refused: list[dict[str, str]] = [
            {**GOOD},
            {**GOOD, "Authorization": "Bearer nonsense"},
            {**GOOD, "Authorization": f"Basic {page.token}"},
            {**GOOD, "Authorization": "Bearer \xe4"},
            {**GOOD, **token, "Origin": "https://evil.example"},
            {**GOOD, **token, "Origin": "null"},
            {**GOOD, **token, "Sec-Fetch-Site": "cross-site"},
            {**GOOD, **token, "Host": "evil.example"},
            {**GOOD, **token, "Host": f"evil.example:{port}"},
            {**token, "Content-Type": "text/plain"},
        ]
        for headers in refused:
            for path in ("/api/parked", "/api/purge", "/api/retry", "/api/change"):
                status, _, said = ask(url, path, {"queue": "q", "keys": ["x"], "action": "pause"}, **headers)
                assert status == 403, headers
                assert page.token not in said.decode()
        wrong: list[Any] = [{}, {"queue": 3}, {"queue": "q"}, {"queue": "q", "keys": []}, []]
        for body in wrong:
            assert ask(url, "/api/purge", body, **GOOD, **token)[0] == 400
        rates = [("rate", value) for value in ("x", True, -1, float("nan"), float("inf"))]
        for action, value in [("drop", None), ("quantum", 0), ("quantum", True), *rates]:
            change = {"queue": "q", "action": action, "value": value}
            assert ask(url, "/api/change", change, **GOOD, **token)[0] == 400
        assert page.token not in caplog.text
        assert caplog.text.count("event=action_refused") == 4 * len(
            [each for each in refused if "Host" not in each]
        )
        assert "event=action action=look" in caplog.text
    assert depth(channel, "leash.dead.q") == 3
    with served(uri) as (page, url):
        assert "#" not in url
        assert page.token is None
        status, _, said = ask(url, "/api/parked", look, **GOOD, Authorization="Bearer None")
        assert status == 403
        assert b"--allow-actions" in said


def test_it_listens_on_loopback_serves_only_its_files_and_forbids_everything_foreign(uri: str) -> None:
    with served(uri) as (page, url):
        assert page._server is not None
        assert page._server.server_address[0] == "127.0.0.1"
        for path in ("/", "/app.js", "/draw.js", "/style.css", "/uPlot.js", "/uPlot.LICENSE.txt"):
            status, headers, body = ask(url, path)
            assert status == 200
            assert headers["Content-Security-Policy"].startswith("default-src 'self'")
            assert headers["X-Content-Type-Options"] == "nosniff"
            assert body
        for path in ("/../server.py", "/static/../server.py", "/%2e%2e/server.py", "/index.html/x"):
            assert ask(url, path)[0] == 404
        for host in ("evil.example", "127.0.0.1", "localhost:1", ""):
            assert ask(url, "/view.json", Host=host)[0] == 403
        status, headers, body = ask(url, "/certificate.json")
        assert 'attachment; filename="leash-certificate-' in headers["Content-Disposition"]
        assert json.loads(body)["version"] == 1


def test_it_can_listen_on_the_loopback_of_ipv6_and_know_a_proxys_name(uri: str) -> None:
    page = Page(Fleet(), lambda heard: Exchange(uri, heard), hosts=("Leash.Example",))
    try:
        url = page.start("::1", 0)
    except ConfigError as error:
        pytest.skip(f"no IPv6 here: {error}")
    try:
        assert url.startswith("http://[::1]:")
        assert ask(url, "/view.json")[0] == 200
        assert ask(url, "/view.json", Host="leash.example")[0] == 200
        assert ask(url, "/view.json", Host="evil.example")[0] == 403
    finally:
        page.stop()


@contextmanager
def command(uri: str, *more: str) -> Iterator[int]:
    """The port of a `leash page` in a process of its own."""
    environment = {**os.environ, "LEASH_URI": uri, "PYTHONPATH": os.pathsep.join(sys.path)}
    process = subprocess.Popen(
        [sys.executable, "-m", "leash.cli", "page", "--port", "0", *more],
        env=environment,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        yield urlsplit(process.stdout.readline().split()[-1]).port or 0
    finally:
        process.kill()
        process.communicate(timeout=60)


@pytest.mark.skipif(
    sys.platform != "linux", reason="elsewhere 127.0.0.2 may not be an address of this machine"
)
def test_the_command_listens_on_other_than_loopback_only_if_told(uri: str) -> None:
    other = "127.0.0.2"  # an address of this machine, and not the one that it is to listen on
    with command(uri) as port:
        socket.create_connection(("127.0.0.1", port), 30).close()
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection((other, port), 30)
    with command(uri, "--host", "0.0.0.0") as port:  # noqa: S104
        socket.create_connection((other, port), 30).close()
        assert ask(f"http://{other}:{port}", "/view.json")[0] == 403
        assert ask(f"http://{other}:{port}", "/view.json", Host=f"localhost:{port}")[0] == 200
