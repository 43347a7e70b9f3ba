"""The publisher in event loops, with callbacks and in forked processes."""

from __future__ import annotations

import asyncio
import os

import pytest

from leash import Publisher
from leash.amqp import Channel, topology
from leash.errors import Unroutable
from leash.publisher import Sent
from tests.consumer.kit import depth, until
from tests.publisher.kit import bodies_in


def test_an_event_loop_publishes_and_is_never_blocked(publisher: Publisher, channel: Channel) -> None:
    async def main() -> int:
        turns = 0

        async def tick() -> None:
            nonlocal turns
            while True:
                turns += 1
                await asyncio.sleep(0)

        ticking = asyncio.create_task(tick())
        receipts = await asyncio.gather(*(publisher.apublish(b"%d" % n, "q") for n in range(500)))
        later = publisher.send(b"later", "q")
        assert (await later).message_id == later.message_id
        ticking.cancel()
        with pytest.raises(Unroutable):
            await publisher.apublish(b"x", "nowhere")
        assert len({receipt.message_id for receipt in receipts}) == 500
        return turns

    assert asyncio.run(main()) > 1
    assert depth(channel, "q") == 501


def test_an_async_context_connects_and_flushes(uri: str, channel: Channel) -> None:
    topology.declare_queue(channel, "q")

    async def main() -> None:
        async with Publisher(uri, in_flight=3) as publisher:
            await asyncio.gather(*(publisher.apublish(b"x", "q") for _ in range(50)))
            publisher.send(b"x", "q")

    asyncio.run(main())
    assert depth(channel, "q") == 51


def test_a_cancelled_publish_takes_back_what_was_not_sent() -> None:
    publisher = Publisher("amqp://127.0.0.1:1", timeout=None)

    async def main() -> None:
        task = asyncio.create_task(publisher.apublish(b"x", "q"))
        await asyncio.sleep(0.05)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(main())
    publisher.close()  # has nothing to wait for


def test_a_cancelled_publish_does_no_harm_to_others(publisher: Publisher, channel: Channel) -> None:
    async def main() -> int:
        tasks = [asyncio.create_task(publisher.apublish(b"%d" % n, "q")) for n in range(200)]
        await asyncio.sleep(0)
        for task in tasks[::2]:
            task.cancel()
        ended = await asyncio.gather(*tasks, return_exceptions=True)
        assert not any(isinstance(each, BaseException) for each in ended[1::2])
        return sum(not isinstance(each, BaseException) for each in ended)

    confirmed = asyncio.run(main())
    publisher.flush()
    assert 100 <= confirmed <= depth(channel, "q") <= 200


def test_room_that_a_thread_takes_first_is_waited_for(
    publisher: Publisher, channel: Channel, monkeypatch: pytest.MonkeyPatch
) -> None:
    line = publisher._line
    put, tries = line.put, list[float | None]()

    def beaten(lot: list[Sent], timeout: float | None) -> bool:
        tries.append(timeout)
        return len(tries) > 1 and put(lot, timeout)

    monkeypatch.setattr(line, "put", beaten)
    asyncio.run(publisher.apublish(b"x", "q"))
    assert tries == [0, 30.0]
    assert depth(channel, "q") == 1


def test_a_callback_may_send_but_not_wait(publisher: Publisher, channel: Channel) -> None:
    said: list[object] = []

    def then(_: object) -> None:
        publisher.send(b"second", "q").add_done_callback(said.append)
        try:
            publisher.publish(b"third", "q")
        except RuntimeError as error:
            said.append(error)

    publisher.send(b"first", "q").add_done_callback(then)
    until(lambda: len(said) == 2)
    assert depth(channel, "q") == 2


def test_a_callback_never_waits_for_room(uri: str, channel: Channel) -> None:
    topology.declare_queue(channel, "q")
    said: list[object] = []

    def then(_: object) -> None:
        try:
            for _ in range(3):  # one is on its way again, so there is no room for another
                publisher.send(b"second", "q")
        except RuntimeError as error:
            said.append(str(error))

    with Publisher(uri, in_flight=1) as publisher:
        publisher.send(b"first", "q").add_done_callback(then)
        until(lambda: said)
    assert said == ["a callback of the publisher's must not wait for it: use send()"]
    assert depth(channel, "q") == 2


def test_a_callback_that_fails_harms_nobody(publisher: Publisher) -> None:
    def fail(_: object) -> None:
        raise ValueError("mine")

    publisher.send(b"x", "q").add_done_callback(fail)
    publisher.publish(b"x", "q")


def test_a_forked_process_has_a_connection_of_its_own(publisher: Publisher, channel: Channel) -> None:
    publisher.publish(b"parent", "q")
    child = os.fork()
    if not child:
        status = 1
        try:
            publisher.publish(b"child", "q")
            publisher.close()
            status = 0
        finally:
            os._exit(status)
    for _ in range(50):
        publisher.publish(b"parent", "q")
    assert os.waitpid(child, 0)[1] == 0
    publisher.publish(b"parent", "q")
    found = bodies_in(channel, "q")
    assert (found.count(b"parent"), found.count(b"child")) == (52, 1)
