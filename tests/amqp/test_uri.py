"""URIs: parsed, refused with a reason, and never shown with their password."""

from __future__ import annotations

import pytest

from leash.amqp.uri import Uri, parse, redact
from leash.errors import ConfigError


def test_a_full_uri_comes_apart() -> None:
    uri = parse(
        "amqps://me:p%40ss@a.example:1,[::1]:2,b/some%2Fhost?heartbeat=7&connection_timeout=1500&verify=verify_none"
    )
    assert uri.hosts == (("a.example", 1), ("::1", 2), ("b", 5671))
    assert (uri.username, uri.password, uri.vhost, uri.tls) == ("me", "p@ss", "some/host", True)
    assert (uri.heartbeat, uri.timeout, uri.verify, uri.mechanism) == (7, 1.5, False, "PLAIN")


@pytest.mark.parametrize("text", ["amqp://localhost", "amqp://localhost/", "amqp://"])
def test_what_is_left_out_is_what_rabbitmq_ships_with(text: str) -> None:
    assert parse(text) == Uri((("localhost", 5672),), "guest", "guest", "/")


def test_a_uri_with_its_password_parses_to_itself() -> None:
    uri = parse("amqp://user:s%2Fcr%3At@[::1]:5673/v%2Fh")
    assert parse(uri.reveal()) == uri


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("http://host", "must look like"),
        ("", "must look like"),
        ("amqp://me:secret@host:0/", "not a port"),
        ("amqp://me:secret@host:99999/", "not a port"),
        ("amqp://me:secret@host:x/", "not host, host:port"),
        ("amqp://me:secret@host/a/b", "%2F"),
        ("amqp://me:secret@host/?heartbeat=soon", "heartbeat"),
        ("amqp://me:secret@host/?hartbeat=1", "known are heartbeat"),
        ("amqp://me:secret@host/?auth_mechanism=magic", "plain, external"),
        ("amqp://me:secret@[::1/", "malformed|not host"),
    ],
)
def test_a_bad_uri_is_refused_without_its_password(text: str, says: str) -> None:
    with pytest.raises(ConfigError, match=says) as caught:
        parse(text)
    assert "secret" not in str(caught.value)
    assert "secret" not in repr(caught.value)


def test_a_password_shows_nowhere() -> None:
    text = "amqp://me:secret@host/v"
    uri = parse(text)
    for shown in (str(uri), repr(uri), redact(text), redact(f"cannot reach {text}, sorry"), f"{uri}"):
        assert "secret" not in shown
        assert "host" in shown
