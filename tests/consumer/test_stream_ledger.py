"""What is settled of a stream: the prefix is never above anything that is not."""

from __future__ import annotations

import random

from hypothesis import given
from hypothesis import strategies as st

from leash.consumer.stream_ledger import StreamLedger


@given(st.lists(st.integers(1, 4), min_size=1, max_size=60), st.randoms(use_true_random=False))
def test_the_prefix_is_what_is_settled_below_the_first_that_is_not(
    steps: list[int], luck: random.Random
) -> None:
    """Offsets grow by one, or by more where the broker keeps other things."""
    offsets, at = [], luck.randrange(3)
    for step in steps:
        at += 1 if step < 4 else luck.randrange(1, 5)
        offsets.append(at)
    ledger = StreamLedger()
    coming, here, settled = list(offsets), [], set()  # type: ignore[var-annotated]
    while coming or here:
        if coming and (not here or luck.random() < 0.4):
            count = luck.randrange(1, 6)
            batch, coming = coming[:count], coming[count:]
            ledger.expect(batch)
            ledger.delivered += len(batch)
            here += batch
        else:
            offset = here.pop(luck.randrange(len(here)))
            assert not ledger.is_settled(offset)
            assert ledger.ack(offset)
            assert not ledger.ack(offset)
            settled.add(offset)
        done = [offset for offset in offsets if all(low in settled for low in offsets if low <= offset)]
        assert ledger.last == (done[-1] if done else None)
        assert ledger.unsettled == len(here)
        assert ledger.spread == len(settled) - len(done)
        assert all(ledger.is_settled(offset) for offset in settled)
    assert ledger.last == offsets[-1]
    assert not ledger.spread
