"""The measured column on a real broker: short versions, and what they stand on."""

from __future__ import annotations

import time

import pytest

from leash.amqp import connect
from leash.amqp.topology import declare_queue, state
from leash.lab import fair, hashing, live_fair, live_hashing, live_tenants, quiet, tenants
from leash.lab.figures import TURNAROUND, Result, silent
from leash.lab.plots import plots
from leash.lab.proxy import slow
from leash.units import SECOND


def test_the_proxy_delays_every_byte_both_ways(uri: str) -> None:
    proxy, far = slow(uri, 0.05)
    with proxy, connect(far, name="tests") as connection, connection.channel() as channel:
        declare_queue(channel, "q")
        began = time.monotonic()
        for _ in range(5):
            state(channel, "q")
        assert time.monotonic() - began >= 0.5


def test_every_message_goes_where_the_ring_says(uri: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hashing, "COUNT", 20_000)
    run = live_hashing.measure(uri, silent)
    assert run.values["misrouted"] == 0
    assert sum(run.series["occupancy"]) == 20_000
    predicted = hashing.EXPERIMENT.simulate(silent, TURNAROUND)
    assert run.series["occupancy"] == predicted.series["occupancy"]


def test_the_real_consumer_keeps_ten_queues_within_a_round(uri: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fair, "TOTAL", 100 * fair.ROUND)
    monkeypatch.setattr(fair, "VARIED", 20 * fair.ROUND)
    monkeypatch.setattr(live_fair, "SPARE", 1.3)
    monkeypatch.setattr(quiet, "TRIES", 1)  # only the published loop is timed, and that is not looked at
    run = live_fair.measure(uri, silent)
    not_ours = (": messages", "as published: p0's gain")
    counts = [claim for claim in fair.EXPERIMENT.claims if not claim.name.endswith(not_ours)]
    faults = Result(fair.EXPERIMENT, None, run).faults()
    assert [fault for fault in faults if fault.split(":")[0] in {claim.name for claim in counts}] == []
    assert run.values["spread"] <= 1


def test_every_quiet_message_is_accounted_for_in_every_way(uri: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tenants, "SPAN", 3 * SECOND // 2)
    run = live_tenants.measure(uri, silent)
    silent_ones = tenants.load(tenants.KINDS[0], noisy=False)
    for kind in tenants.KINDS:
        assert list(run.series[kind.name]) == list(tenants.WAYS)
        for way in tenants.WAYS:
            assert len(run.series[kind.name][way]) == len(silent_ones)
    assert set(run.values) == {claim.name for claim in tenants.EXPERIMENT.claims}
    assert len(plots(Result(tenants.EXPERIMENT, None, run))) == len(tenants.KINDS)
