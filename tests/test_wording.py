"""What errors say of values that cannot be used."""

from __future__ import annotations

from pathlib import Path

import pytest

from leash import Consumer, Queue
from leash.errors import ConfigError
from leash.wording import counted, refused


def test_only_one_is_singular() -> None:
    assert [counted(number, "message") for number in (0, 1, 2)] == ["0 messages", "1 message", "2 messages"]


@pytest.mark.parametrize(
    ("allowed", "said"),
    [
        ("a whole number of at least 1", "x=0: must be a whole number of at least 1"),
        ("a number above 0", "x=0: must be a number above 0"),
        ("one of 'a', 'b'", "x=0: must be one of 'a', 'b'"),
        ("one of them: an exchange hashes by one", "x=0: one of them: an exchange hashes by one"),
        ("a rate with it", "x=0: a rate with it"),
        ("a message has a body", "x=0: a message has a body"),
        ("must be from 1970 to 9999", "x=0: must be from 1970 to 9999"),
    ],
)
def test_a_number_does_not_read_as_if_it_were_one(allowed: str, said: str) -> None:
    assert refused("x", 0, allowed) == said


def test_arguments_are_refused_in_that_way() -> None:
    with pytest.raises(ConfigError, match=r"^quantum=0: must be a whole number of at least 1$"):
        Queue("orders", quantum=0)


def nothing() -> None: ...


def test_a_function_is_named_with_its_place(monkeypatch: pytest.MonkeyPatch) -> None:
    here = Path(__file__)
    monkeypatch.chdir(here.parent)
    with pytest.raises(ConfigError) as caught:
        Consumer("amqp://localhost", ["q"]).handler(nothing)  # type: ignore[arg-type]
    line = nothing.__code__.co_firstlineno
    assert str(caught.value).startswith(
        f"handler=nothing ({here.name}, line {line}): a function of one or two "
    )
    assert "`def work(message)`; this takes 0" in str(caught.value)
