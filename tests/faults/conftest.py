"""What the broker itself says was dropped."""

from __future__ import annotations

import re
import urllib.request
from collections.abc import Callable, Iterator

import pytest

from leash.broker import Broker


@pytest.fixture
def dropped(broker: Broker) -> Iterator[Callable[[], int]]:
    """How many messages the broker dropped (or dead-lettered) for their delivery limit, since the start."""

    def count() -> int:
        with urllib.request.urlopen(
            f"http://127.0.0.1:{broker.port('prometheus')}/metrics", timeout=60
        ) as page:
            text = page.read().decode()
        name = "rabbitmq_global_messages_dead_lettered_delivery_limit_total"
        assert name in text
        return sum(int(value) for value in re.findall(rf"^{name}{{[^}}]*}} (\d+)", text, re.MULTILINE))

    before = count()
    yield lambda: count() - before
    assert count() == before
