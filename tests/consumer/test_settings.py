"""Bad arguments are answered at once, and name what is allowed."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

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
        (lambda: Queue("\ud800"), "name"),
        (lambda: Queue(b"q"), "name"),  # type: ignore[arg-type]
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
        (lambda: Queue("q", deadline=""), "deadline"),  # type: ignore[arg-type]
        (lambda: Queue("q", ordered="no"), "ordered"),  # type: ignore[arg-type]
        (lambda: Queue("q", exclusive="no"), "exclusive"),  # type: ignore[arg-type]
        (lambda: Queue("q", target=2, interval=1), "target"),
        (lambda: Queue("q", kind="stream"), "kind"),  # type: ignore[arg-type]
        (lambda: Retry(0), "tries"),
        (lambda: Retry(delay=-1), "delay"),
        (lambda: Retry(delay=1e300), "delay"),
        (lambda: Retry(cap=1e300), "cap"),
        (lambda: Retry(cap=10**400), "cap"),
        (lambda: Retry(delay=float("nan")), "delay"),
        (lambda: Retry(factor=0.5), "factor"),
        (consumer(queues=[]), "queues"),
        (consumer(queues="orders"), "queues"),
        (consumer(queues=b"orders"), "queues"),
        (consumer(queues={"orders": 1}), "queues"),
        (consumer(queues=None), "queues"),
        (consumer(queues=5), "queues"),
        (consumer(queues=[5]), "queues"),
        (consumer(queues=["q", None]), "queues"),
        (consumer(queues=[b"q"]), "queues"),
        (consumer(queues=[Queue]), "queues"),
        (consumer(queues=["q", Queue("q")]), "lane"),
        (consumer(workers=0), "workers"),
        (consumer(on_exhausted="forget"), "on_exhausted"),
        (consumer(cost="size"), "cost"),
        (consumer(rate=0), "rate"),
        (consumer(burst=5), "burst"),
        (consumer(burst="x"), "burst"),
        (consumer(rate=5, burst=0), "burst"),
        (consumer(drain=-1), "drain"),
        (consumer(drain=1e300), "drain"),
        (consumer(guaranteed={3: 101}), "guaranteed"),
        (consumer(guaranteed=5), "guaranteed"),
        (consumer(guaranteed=[1]), "guaranteed"),
        (consumer(retry=5), "retry"),
        (consumer(retry=False), "retry"),
        (consumer(consumer_timeout=-1), "consumer_timeout"),
        (consumer(consumer_timeout="x"), "consumer_timeout"),
        (consumer(consumer_timeout=None), "consumer_timeout"),
        (consumer(name=5), "name"),
        (consumer(name=None), "name"),
        (consumer(name="\ud800"), "name"),
        (consumer(queues=(), partitions=5), "partitions"),
        (consumer(queues=(), partitions=""), "partitions"),
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


@given(
    retry=st.builds(
        Retry,
        tries=st.integers(1, 400) | st.just(2**63),
        delay=st.floats(0, 100) | st.just(4_294_967),
        factor=st.floats(1, 1000) | st.sampled_from([1, 1000]),
        cap=st.floats(0, 10_000),
    ),
    failures=st.integers(-10, 500) | st.integers(-(2**63), 2**63 - 1),
)
def test_a_wait_is_always_one_that_a_queue_was_declared_for(retry: Retry, failures: int) -> None:
    waits = retry.waits()
    assert retry.wait(failures) in [*waits, None]
    assert (retry.wait(failures) is None) == (failures >= retry.tries or retry.tries == 1)
    assert all(0 <= wait < 2**32 for wait in waits)


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
