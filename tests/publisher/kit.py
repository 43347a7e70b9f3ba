"""What the tests of the publisher share."""

from __future__ import annotations

import threading
from collections.abc import Callable

from leash.amqp import Channel


def bodies_in(channel: Channel, queue: str) -> list[bytes]:
    found = []
    while (event := channel.get(queue)) is not None:
        found.append(event.body)
    return found


def together(count: int, work: Callable[[int], object]) -> None:
    """Every failure is the test's."""
    failed: list[BaseException] = []

    def run(number: int) -> None:
        try:
            work(number)
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=run, args=(number,)) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failed == []
