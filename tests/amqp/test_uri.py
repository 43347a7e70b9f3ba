"""URIs: parsed, refused with a reason, and never shown with their password."""

from __future__ import annotations

import traceback

import pytest
from hypothesis import given
from hypothesis import strategies as st

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
        ("amqp://me:sec@secret@host:x/", "'host:x' is not host"),
        ("amqp://me:12/secret@host", "@ after the host.*%2F"),
        ("amqp://me:12?secret@host/", "@ after the host.*%3F"),
        ("amqp://me:12#secret@host/", "@ after the host.*%23"),
        ("amqp://me:secret\u2100@host/", "malformed host"),
        ("amqp://me:secret@host/?password=secret", "'password' is not known"),
        ("me:secret@host", "'\\*\\*\\*@host'"),
        ("amqp:/me:secret@host/", "must look like"),
        ("AMQP://me:secret@host/", "AMQP://me:\\*\\*\\*@host/"),
        (b"amqp://me:secret@host/", "class 'bytes'"),
        ("amqp://me:secret@host..name/", "'host..name' is not the name of a host"),
        ("amqp://me:secret@.name/", "'.name' is not the name of a host"),
        ("amqp://me:secret@good,host%2E%2Ename/", "'host..name' is not the name of a host"),
        (f"amqp://me:secret@{'x' * 64}.name/", "1 to 63 bytes"),
        (f"amqp://me:secret@{'ö' * 60}/", "1 to 63 bytes"),
        ("amqp://me:secret@host%00/", "not the name of a host"),
        ("amqp://me:secret@host%FF%FE\ud800/", "not the name of a host"),
        ("amqps://me:secret@host/?server_name_indication=a..b", "'a..b' is not the name of a host"),
    ],
)
def test_a_bad_uri_is_refused_without_its_password(text: str, says: str) -> None:
    with pytest.raises(ConfigError, match=says) as caught:
        parse(text)
    assert "secret" not in everything(caught.value)


def everything(error: BaseException) -> str:
    """All that a log could show of it."""
    return "".join([str(error), repr(error), *traceback.format_exception(error)])


MARK = "4242"  # digits, for those that look like a port
ODD = [MARK, *"@:/?#[]%&=+,;*\\\"' \t\n", "://", "%40", "amqp://a:", "\u2100", "\udc80", "é", "x"]
SHAPES = [
    *("amqp://me:{}@host/v", "amqps://me:{}@[::1]:5/", "amqp://:{}@"),
    *("amqp://me:{}@host:x/", "amqp://me:{}@host:99999", "amqp://me:{}@[::1/", "amqp://me:{}@a,b:x,c"),
    *("amqp://me:{}@host/a/b", "amqp://me:{}@host/?no=1", "amqp://me:{}@host/?heartbeat=x"),
    *("amqp://me:{}@host/v@w", "amqp://m/e:{}@host", "amqp://me@place:{}@host"),
    *("me:{}@host", "amqp:/me:{}@host/", "amqp:me:{}@host", "http://me:{}@host", " amqp://me:{}@host"),
]


@given(st.sampled_from(SHAPES), st.lists(st.sampled_from(ODD)), st.lists(st.sampled_from(ODD)))
def test_whatever_the_password_is_no_part_of_it_shows(shape: str, first: list[str], then: list[str]) -> None:
    text = shape.format("".join([*first, MARK, *then]))
    assert MARK not in redact(text)
    try:
        shown = repr(parse(text))
    except ConfigError as error:
        shown = everything(error)
    assert MARK not in shown


def test_a_password_shows_nowhere() -> None:
    text = "amqp://me:secret@host/v"
    uri = parse(text)
    for shown in (str(uri), repr(uri), redact(text), redact(f"cannot reach {text}, sorry"), f"{uri}"):
        assert "secret" not in shown
        assert "host" in shown
