"""Bad arguments are answered at once, and name what is allowed."""

from __future__ import annotations

from collections.abc import Callable

import pytest

import leash
from leash import Consumer, Queue, Retry
from leash.errors import ConfigError

URI = "amqp://user:secret@localhost"


def consumer(**arguments: object) -> Callable[[], object]:
    queues = arguments.pop("queues", ["q"])
    return lambda: Consumer(URI, queues, **arguments)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("make", "argument"),
    [
        (lambda: Queue(""), "name"),
        (lambda: Queue("q" * 256), "name"),
        (lambda: Queue("q", 0), "quantum"),
        (lambda: Queue("q", tier=-1), "tier"),
        (lambda: Queue("q", rate=-1), "rate"),
        (lambda: Queue("q", burst=5), "burst"),
        (lambda: Queue("q", rate=1, burst=0), "burst"),
        (lambda: Queue("q", window=0), "window"),
        (lambda: Queue("q", window=65536), "window"),
        (lambda: Queue("q", window="big"), "window"),  # type: ignore[arg-type]
        (lambda: Queue("q", shed="throw"), "shed"),  # type: ignore[arg-type]
        (lambda: Queue("q", shed="drop"), "deadline"),
        (lambda: Queue("q", deadline=-1), "deadline"),
        (lambda: Queue("q", target=2, interval=1), "target"),
        (lambda: Queue("q", kind="stream"), "kind"),  # type: ignore[arg-type]
        (lambda: Retry(0), "tries"),
        (lambda: Retry(delay=-1), "delay"),
        (lambda: Retry(factor=0.5), "factor"),
        (consumer(queues=[]), "queues"),
        (consumer(queues=["q", Queue("q")]), "lane"),
        (consumer(workers=0), "workers"),
        (consumer(on_exhausted="forget"), "on_exhausted"),
        (consumer(cost="size"), "cost"),
        (consumer(rate=0), "rate"),
        (consumer(drain=-1), "drain"),
        (consumer(guaranteed={3: 101}), "guaranteed"),
        (lambda: Consumer("http://x", ["q"]), "url"),
        (lambda: Consumer(URI, ["q"]).batch_handler(0), "size"),
        (lambda: Consumer(URI, ["q"]).pause("q"), "consumer"),
    ],
)
def test_a_bad_argument_is_named(make: Callable[[], object], argument: str) -> None:
    with pytest.raises(ConfigError) as caught:
        make()
    assert caught.value.argument == argument
    assert "secret" not in str(caught.value)


def test_a_consumer_has_one_handler() -> None:
    one = Consumer(URI, ["q"])
    one.handler(print)
    with pytest.raises(ConfigError, match="one handler"):
        one.handler(print)


def test_the_public_names_are_there() -> None:
    assert {"Consumer", "Message", "Queue", "Retry"} <= set(leash.__all__)
    assert all(getattr(leash, name) for name in leash.__all__)
    with pytest.raises(AttributeError):
        leash.nothing  # noqa: B018
