"""logfmt as its readers expect it: what goes in comes out, and a line stays a line."""

from __future__ import annotations

import json
import logging
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leash import logfmt


def read(line: str) -> dict[str, str]:
    """A reader of logfmt: bare values to the next space, quoted ones by the rules of a JSON string."""
    found = {}
    while line:
        match = re.match(r'(\w+)=("(?:[^"\\]|\\.)*"|[^\s"=]*)(?: |$)', line)
        assert match is not None, line
        name, raw = match.groups()
        found[name] = json.loads(_narrow(raw)) if raw.startswith('"') else raw
        line = line[match.end() :]
    return found


def _narrow(text: str) -> str:
    """JSON has no escape for what is outside of the first plane."""
    return re.sub(r"\\U(\w{8})", lambda match: json.dumps(chr(int(match[1], 16)))[1:-1], text)


@pytest.mark.parametrize(
    ("given_", "written"),
    [
        ("orders", "orders"),
        ("", '""'),
        ("two words", '"two words"'),
        ('say "no"', r'"say \"no\""'),
        ("a\nb\tc\\d", r'"a\nb\tc\\d"'),
        ("a=b", '"a=b"'),
        ("\x1b[31m", r'"\u001b[31m"'),
        (True, "true"),
        (None, "none"),
        (3.5, "3.5"),
    ],
)
def test_a_value_is_quoted_where_it_must_be(given_: object, written: str) -> None:
    assert logfmt.value(given_) == written


@given(st.dictionaries(st.sampled_from(["queue", "reason", "error"]), st.text(st.characters(codec="utf-8"))))
def test_whatever_is_written_can_be_read_again(fields: dict[str, str]) -> None:
    line = logfmt.line(**fields)
    assert line.isprintable()
    assert read(line) == fields


def test_log_calls_quote_their_arguments_and_numbers_stay_numbers(caplog: pytest.LogCaptureFixture) -> None:
    log = logfmt.logger("leash.some")

    class Odd(Exception):
        def __repr__(self) -> str:
            raise RuntimeError

    with caplog.at_level(logging.INFO, "leash.some"):
        log.warning("event=failed queue=%r error=%r tries=%d wait=%.1f", 'a "b"', ValueError("x y"), 3, 0.25)
        log.info("event=odd error=%r flag=%r", Odd(), True)
        log.debug("event=unseen")
    first, second = [record.getMessage() for record in caplog.records]
    assert first == 'event=failed queue="a \\"b\\"" error="ValueError(\'x y\')" tries=3 wait=0.2'
    assert second == 'event=odd error="a Odd that cannot be shown" flag=true'
    assert caplog.records[0].filename == "test_logfmt.py"


def test_whole_lines_carry_time_level_and_other_peoples_text() -> None:
    formatter = logfmt.Formatter()
    record = logging.LogRecord("app", logging.ERROR, "f", 1, "it %s\nbroke", ("all",), None)
    read_back = read(formatter.format(record))
    assert read_back["level"] == "error"
    assert read_back["logger"] == "app"
    assert read_back["msg"] == "it all\nbroke"
    try:
        raise ValueError("two\nlines")
    except ValueError as error:
        info = (type(error), error, error.__traceback__)
    record = logging.LogRecord("leash.consumer", logging.INFO, "f", 1, "event=x queue=q", (), info)
    line = formatter.format(record)
    assert "\n" not in line
    assert read(line)["queue"] == "q"
    assert "ValueError: two\nlines" in read(line)["exception"]
