"""What an ordered attempt holds, and what of it is settled."""

from __future__ import annotations

from leash.amqp import Connection, topology
from leash.spark.task.held_messages import Hold
from tests.conftest import StalledLog
from tests.consumer.kit import fill, until

COUNT = 100


def test_many_acks_are_applied_before_the_channel_ends(
    connection: Connection, stalled_log: StalledLog
) -> None:
    channel = connection.channel()
    fill(channel, "q", COUNT + 10, kind="quorum")
    hold = Hold(connection, "q", COUNT)
    last = 0
    while last < COUNT:
        lot = hold.next(60)
        assert lot is not None
        last = lot.tags[-1]
    stalled_log.begin()
    for tag in range(1, COUNT):
        hold._ack(tag)
    hold.extend = stalled_log.ends_with(hold.extend)  # type: ignore[method-assign]
    hold.close()
    stalled_log.end()
    until(lambda: topology.state(channel, "q").consumers == 0)
    assert topology.state(channel, "q").ready == 11
