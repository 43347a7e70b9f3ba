"""The ledger: every tag settled once on the wire, whatever the order of finishing."""

from __future__ import annotations

import struct

from hypothesis import given
from hypothesis import strategies as st

from leash.consumer.ack_ledger import Ledger
from leash.consumer.settle import Outcome

_ACK, _REJECT, _NACK = 0x003C0050, 0x003C005A, 0x003C0078


class Broker:
    """What RabbitMQ does with ack, nack and reject: an unknown tag closes the channel."""

    def __init__(self, count: int) -> None:
        self.unacked = list(range(1, count + 1))
        self.acked: set[int] = set()
        self.returned: set[int] = set()

    def feed(self, data: bytes) -> None:
        while data:
            _, channel, size, method, tag, bits = struct.unpack_from(">BHIIQB", data)
            assert (channel, size) == (7, 13)
            assert tag in self.unacked, f"unknown delivery tag {tag}"
            multiple = method == _ACK and bits & 1
            settled = [each for each in self.unacked if each <= tag] if multiple else [tag]
            self.unacked = [each for each in self.unacked if each not in settled]
            (self.acked if method == _ACK else self.returned).update(settled)
            data = data[21:]


@given(st.permutations(range(1, 25)), st.lists(st.integers(0, 5), min_size=24, max_size=24))
def test_every_message_is_settled_exactly_once_in_any_order(order: list[int], actions: list[int]) -> None:
    broker, ledger = Broker(24), Ledger(7)
    ledger.delivered = 24
    acked = set()
    for tag, action in zip(order, actions, strict=True):
        if action == 0:
            data = ledger.settle(tag, Outcome.GIVEN_BACK)
            assert data
            broker.feed(data)
        else:
            assert ledger.ack(tag)
            acked.add(tag)
        if action > 3:
            broker.feed(ledger.flush(singles=action == 4))
        assert not ledger.ack(tag)
        assert ledger.settle(tag, Outcome.REJECTED) is None
    broker.feed(ledger.flush())
    assert ledger.unsettled == ledger.unsent == 0
    assert broker.unacked == []
    assert broker.acked == acked


def test_a_finished_prefix_is_one_frame() -> None:
    ledger = Ledger(7)
    for tag in (1, 2, 3, 5):
        ledger.ack(tag)
    assert len(ledger.flush(singles=False)) == 21
    assert ledger.unsent == 1
    assert len(ledger.flush()) == 21
    assert ledger.flush() == b""


def test_messages_behind_a_slow_one_are_acked_one_by_one() -> None:
    ledger = Ledger(7)
    ledger.ack(2)
    ledger.ack(3)
    assert len(ledger.flush()) == 2 * 21
    ledger.ack(1)
    broker = Broker(3)
    broker.unacked = [1]
    broker.feed(ledger.flush())
    assert broker.unacked == []
