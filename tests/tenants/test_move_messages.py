"""A feed that cannot publish: nothing that it took is dropped by the broker."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from leash.amqp import Channel, Outgoing, Publisher, topology
from leash.fleet.tenants import move_messages
from tests.tenants.kit import message, send
from tests.waiting import until


@pytest.mark.parametrize("why", ["a full lane", "no exchange"])
def test_what_cannot_be_moved_is_kept(
    uri: str, channel: Channel, monkeypatch: pytest.MonkeyPatch, why: str
) -> None:
    """Giving it back each time would reach the delivery limit of the adopted queue."""
    monkeypatch.setattr(move_messages, "_BACKOFF", (0.01, 0.02))
    topology.declare_queue(channel, "old", kind="quorum")
    send(uri, [message("a", b"%d" % n, "", "old") for n in range(400)])
    topology.declare_queue(channel, "lane", arguments={"x-max-length": 1, "x-overflow": "reject-publish"})
    topology.declare_queue(channel, "roomy")
    if why == "a full lane":
        topology.declare_exchange(channel, "jobs", kind="fanout")
        topology.bind_queue(channel, "lane", "jobs", "")
        send(uri, [message("a", b"full", "", "lane")])
    tries: list[int] = []
    publish = Publisher.publish

    def counted(self: Publisher, messages: Iterable[Outgoing]) -> int:
        tries.append(1)
        return publish(self, messages)

    monkeypatch.setattr(Publisher, "publish", counted)
    moving = move_messages.Feed(uri, "old", "jobs")
    moving.start()
    until(lambda: len(tries) > 50)
    assert moving.trouble
    topology.declare_exchange(channel, "jobs", kind="fanout")
    if why == "a full lane":  # first: what goes to both is refused by one
        topology.unbind_queue(channel, "lane", "jobs")  # deleted, it would take with it what is on its way
    topology.bind_queue(channel, "roomy", "jobs", "")
    until(lambda: topology.state(channel, "roomy").ready >= 400)
    moving.stop()
    assert (topology.state(channel, "old").ready, topology.state(channel, "roomy").ready) == (0, 400)


def test_what_cannot_be_moved_outlives_its_feeds(
    uri: str, channel: Channel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However often they come and go, or are killed."""
    monkeypatch.setattr(move_messages, "_BACKOFF", (0.01, 0.02))
    topology.declare_queue(channel, "old", kind="quorum")
    send(uri, [message("a", b"%d" % n, "", "old") for n in range(12)])
    for _ in range(15):
        with channel.connection.channel() as taker:
            until(lambda: topology.state(channel, "old").ready == 12)
            assert all(taker.get("old") for _ in range(12))
    for _ in range(8):
        moving = move_messages.Feed(uri, "old", "nowhere")
        moving.start()
        until(lambda: moving.trouble)  # noqa: B023
        moving.stop()
    until(lambda: topology.state(channel, "old").ready == 12)
