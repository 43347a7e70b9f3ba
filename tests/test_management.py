"""Where the management plugin is said to be: refused with a reason, and never shown with a password."""

from __future__ import annotations

import traceback

import pytest

from leash.amqp.uri import parse
from leash.errors import BrokerError, ConfigError
from leash.management import Management


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("notaurl", "'notaurl'"),
        ("ftp://host", "'ftp://host'"),
        ("http://", "'http://'"),
        ("http://host:bad", "'http://host:bad'"),
        ("http://me:secret@host:1", "'http://me:\\*\\*\\*@host:1'"),
        ("http://me:se/secret@host:1", "'http://me:\\*\\*\\*@host:1'"),
        ("http://me:secret\u2100@host:1", "'http://me:\\*\\*\\*@host:1'"),
        ("me:secret@host", "'\\*\\*\\*@host'"),
    ],
)
def test_an_unusable_url_is_refused_without_its_password(
    url: str, shown: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LEASH_MANAGEMENT_URL", url)
    with pytest.raises(ConfigError, match=f"LEASH_MANAGEMENT_URL={shown}: must look like") as caught:
        Management.beside("amqp://localhost")
    assert "secret" not in "".join([repr(caught.value), *traceback.format_exception(caught.value)])


def test_what_does_not_answer_as_http_is_an_error_of_ours(uri: str, monkeypatch: pytest.MonkeyPatch) -> None:
    host, port = parse(uri).hosts[0]
    monkeypatch.setenv("LEASH_MANAGEMENT_URL", f"http://{host}:{port}")
    with pytest.raises(BrokerError, match="the management plugin at http://"):
        Management.beside(uri).ask("GET", "/api/overview")
