"""Planning: pure, so depths and times are made up."""

from __future__ import annotations

import json
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leash.errors import ConfigError
from leash.spark import settings
from leash.spark.driver.dedup_memory import DURABLE_AFTER, remember
from leash.spark.driver.planner import Planner, Targets, cut
from leash.spark.offsets import Seen
from leash.spark.staging.seals import Seal
from leash.units import SECOND


def options(queues: str = "gold:10,free:1", **more: object) -> settings.SourceSettings:
    given = {"url": "amqp://broker", "queues": queues, "stagingLocation": "staging"}
    return settings.source_settings(given | {name: str(value) for name, value in more.items()})


def planner(
    state: dict[str, Any] | None = None, now: int = 0, queues: str = "gold:10,free:1", **more: object
) -> Planner:
    return Planner(options(queues, **more), state or {}, now)


def full(grants: dict[str, int]) -> list[tuple[tuple[str, int], Seal]]:
    return [
        ((name, grant), Seal("x", name, rows=grant, size=grant * 100, ended="filled"))
        for name, grant in grants.items()
    ]


def test_a_batch_is_shared_out_by_quantum() -> None:
    assert planner(maxRecordsPerTrigger=110).grants({"gold": 500, "free": 80}, 0) == {"gold": 100, "free": 10}


def test_what_a_short_queue_leaves_goes_to_the_others() -> None:
    assert planner(maxRecordsPerTrigger=110).grants({"gold": 5, "free": 800}, 0) == {"gold": 5, "free": 105}


def test_a_lower_tier_waits_for_the_higher_ones() -> None:
    plan = planner(queues='{"slow": {"tier": 1}, "fast": {}}', maxRecordsPerTrigger=100)
    assert plan.grants({"slow": 500, "fast": 70}, 0) == {"fast": 70, "slow": 30}


def test_nothing_ready_is_nothing_granted() -> None:
    assert planner().grants({"gold": 0}, 0) == {}
    assert planner().grants({}, 0) == {}


def test_ten_queues_stay_within_one_round_of_exact_after_every_batch() -> None:
    quanta = {f"q{i}": 4 * i for i in range(1, 11)}
    names = ",".join(f"{name}:{quantum}" for name, quantum in quanta.items())
    state: dict[str, Any] = {}
    sent = dict.fromkeys(quanta, 0)
    grants: dict[str, int] = {}
    for batch in range(50):
        plan = planner(state, queues=names, maxRecordsPerTrigger=137 + batch)
        if batch:
            plan.settle(full(grants), 0, None)
        grants = plan.grants(dict.fromkeys(quanta, 10**6), 0)
        state = json.loads(json.dumps(plan.state()))  # as if every batch ran in a process of its own
        for name, grant in grants.items():
            sent[name] += grant
        rounds = [sent[name] / quantum for name, quantum in quanta.items()]
        assert max(rounds) - min(rounds) <= 1


def test_a_short_read_is_made_up_for_unless_the_queue_ran_dry() -> None:
    for ended, expected in (("deadline", {"gold": 110}), ("drained", {"gold": 100, "free": 10})):
        plan = planner(maxRecordsPerTrigger=110)
        grants = plan.grants({"gold": 500, "free": 500}, 0)
        plan.settle(
            [
                (("gold", grants["gold"]), Seal("x", "gold", rows=0, ended=ended)),
                (("free", grants["free"]), Seal("x", "free", rows=10, ended="filled")),
            ],
            0,
            None,
        )
        assert plan.grants({"gold": 500, "free": 500}, 0)["gold"] == expected["gold"]


def test_the_rate_is_kept_over_all_batches_and_restarts() -> None:
    state: dict[str, Any] = {}
    granted = 0
    grants: dict[str, int] = {}
    for tick in range(300):
        now = tick * SECOND // 10
        plan = planner(state, now, maxRatePerSecond=50, burst=100)
        if grants:
            plan.settle(full(grants), now, None)
        grants = plan.grants({"gold": 10**6, "free": 10**6}, now)
        state = json.loads(json.dumps(plan.state()))
        granted += sum(grants.values())
        assert granted <= 100 + 50 * tick / 10 + 1
    assert granted >= 0.95 * (100 + 50 * 29.9)


def test_tokens_for_rows_that_did_not_come_are_given_back() -> None:
    plan = planner(maxRatePerSecond=10, burst=10)
    grants = plan.grants({"gold": 100}, 0)
    assert sum(grants.values()) == 10
    assert plan.grants({"gold": 100}, 0) == {}
    plan.settle([(("gold", 10), Seal("x", "gold", rows=4, ended="drained"))], 0, None)
    assert sum(plan.grants({"gold": 100}, 0).values()) == 6


def test_a_queues_own_rate_holds_it_back_and_not_the_others() -> None:
    plan = planner(queues='{"gold": {"rate": 5, "burst": 5}, "free": {}}', maxRecordsPerTrigger=100)
    assert plan.grants({"gold": 500, "free": 500}, 0) == {"gold": 5, "free": 95}
    assert plan.wait(["gold"], 0) == SECOND // 5
    assert plan.wait(["gold", "free"], 0) == 0


def test_a_clock_that_went_back_does_not_stall_the_rate() -> None:
    plan = planner(now=1000 * SECOND, maxRatePerSecond=10, burst=10)
    assert sum(plan.grants({"gold": 100}, 1000 * SECOND).values()) == 10
    again = planner(plan.state(), now=0, maxRatePerSecond=10, burst=10)
    assert sum(again.grants({"gold": 100}, SECOND).values()) == 10


def test_a_minimum_waits_for_company_but_not_forever() -> None:
    plan = planner(minRecordsPerTrigger=10, maxTriggerDelay="5s")
    assert plan.grants({"gold": 3}, 0) == {}
    assert plan.grants({"gold": 3}, 4 * SECOND) == {}
    assert plan.grants({"gold": 3}, 5 * SECOND) == {"gold": 3}
    assert plan.grants({"gold": 12}, 6 * SECOND) == {"gold": 12}
    assert plan.grants({"gold": 3}, 6 * SECOND, hurry=True) == {"gold": 3}


def test_bytes_limit_a_batch_by_the_mean_size_seen() -> None:
    plan = planner(queues="q", maxBytesPerTrigger="10m")
    assert plan.grants({"q": 10**6}, 0) == {"q": 10}  # sizes unknown: assumed to be big
    plan.settle([(("q", 10), Seal("x", "q", rows=10, size=10_000, ended="filled"))], 0, None)
    assert plan.grants({"q": 10**6}, 0) == {"q": 10 * 1024 * 1024 // 1000}


def test_all_available_lifts_size_limits_and_not_rates() -> None:
    plan = planner(queues="q", maxRecordsPerTrigger=10, maxRatePerSecond=50)
    assert plan.grants({"q": 1000}, 0, all_available=True) == {"q": 50}


@pytest.mark.parametrize(("per_second", "finally_"), [(1000, 5000), (100_000, 500_000), (20, 100)])
def test_the_target_delay_sizes_batches_by_how_fast_they_go(per_second: int, finally_: int) -> None:
    plan = planner(queues="q", targetDelay="5s")
    sizes = []
    for _ in range(12):
        grant = plan.grants({"q": 10**9}, 0)["q"]
        sizes.append(grant)
        plan.settle(full({"q": grant}), 0, grant * SECOND // per_second)
    assert sizes[-1] == pytest.approx(finally_, rel=0.01)
    assert all(0.5 <= after / before <= 2 for before, after in pairwise(sizes))


def test_an_unfilled_batch_does_not_shrink_the_next() -> None:
    plan = planner(queues="q", targetDelay="5s", maxRecordsPerTrigger=10_000)
    grant = plan.grants({"q": 10}, 0)["q"]
    plan.settle(full({"q": grant}), 0, SECOND // 1000)
    assert plan.grants({"q": 10**9}, 0)["q"] == 10_000


def test_ordered_queues_get_one_split_of_at_most_one_window() -> None:
    plan = planner(queues="q", ordered=True)
    grants = plan.grants({"q": 10**6}, 0)
    assert grants == {"q": 65_535}
    assert cut(grants, options(queues="q", ordered=True, maxRecordsPerPartition=10)) == [("q", 65_535)]


@given(
    st.dictionaries(st.sampled_from("abcdef"), st.integers(1, 10_000), min_size=1),
    st.integers(1, 3000),
    st.one_of(st.none(), st.integers(1, 50)),
)
def test_cutting_keeps_every_grant_whole(grants: dict[str, int], most: int, least: int | None) -> None:
    more = {"minPartitions": least} if least else {}
    splits = cut(grants, options(queues="a,b,c,d,e,f", maxRecordsPerPartition=most, **more))
    for name, grant in grants.items():
        assert sum(size for queue, size in splits if queue == name) == grant
    assert all(1 <= size <= most for _, size in splits)
    if least is not None:
        assert len(splits) >= min(least, sum(grants.values()))
    for name, other in pairwise(grants):
        assert abs([q for q, _ in splits].index(name) - [q for q, _ in splits].index(other)) == 1


def test_available_now_ends_when_the_messages_of_its_start_are_read() -> None:
    targets = Targets({"gold": 10, "free": 3})
    targets.settle([("gold", 4), ("free", 1), ("gold", 6), ("unknown", 1)])
    assert targets.left() == {"free": 2}
    targets.settle([("free", 5)])
    assert targets.left() == {}


def test_available_now_gives_a_queue_up_after_two_empty_batches_in_a_row() -> None:
    targets = Targets({"gold": 10})
    for rows, left in ((0, 10), (1, 9), (0, 9)):
        targets.settle([("gold", rows)])
        assert targets.left() == {"gold": left}
    targets.settle([("gold", 0)])
    assert targets.left() == {}


def test_a_queue_that_left_the_options_does_not_disturb_settling() -> None:
    plan = planner(queues="free:1")
    assert plan.settle(full({"gold": 5, "free": 2}), 0, None) == {"free": 2}


def window(seen: tuple[Seen, ...], new: list[Seen], now: int, since: int = 0) -> tuple[tuple[Seen, ...], int]:
    return remember(seen, new, now, since, window=3600 * SECOND, max_rows=100)


def test_an_acked_batch_is_forgotten_after_a_minute_on_one_connection() -> None:
    batch = Seen("f", SECOND, 10)
    assert window((), [batch], 2 * SECOND) == ((batch,), 0)
    assert window((batch,), [], SECOND + DURABLE_AFTER) == ((), 0)


def test_a_batch_is_kept_where_the_connection_broke_or_the_ack_is_in_doubt() -> None:
    batch, doubtful = Seen("f", SECOND, 10), Seen("g", SECOND, 10, kept=True)
    kept, _ = window((batch, doubtful), [], 2 * DURABLE_AFTER, since=2 * SECOND)
    assert kept == (Seen("f", SECOND, 10, kept=True), doubtful)
    assert window(kept, [], 2 * 3600 * SECOND) == ((), 0)


def test_too_many_rows_push_the_oldest_out_and_say_so() -> None:
    batches = [Seen(str(i), SECOND, 40) for i in range(4)]
    assert window((), batches, 2 * SECOND) == (tuple(batches[2:]), 80)


def test_a_batch_has_no_more_messages_than_permits_were_taken_for_it() -> None:
    plan = planner(budget="sms:rate=50", maxRecordsPerTrigger=110)
    ready = {"gold": 500, "free": 80}
    assert plan.wanted(ready, 0) == {"sms": 110}
    assert plan.grants(ready, 0, permits={"sms": 22}) == {"gold": 20, "free": 2}
    assert plan.grants(ready, 0, permits={"sms": 0}) == {}


def test_queues_of_one_budget_share_its_permits_by_quantum_and_others_go_on() -> None:
    sms = {"budget": "sms:rate=50"}
    plan = planner(queues=json.dumps({"a": {"quantum": 3, **sms}, "b": sms, "c": {}}))
    ready = {"a": 100, "b": 100, "c": 100}
    assert plan.wanted(ready, 0) == {"sms": 200}
    assert plan.grants(ready, 0, permits={"sms": 8}) == {"a": 6, "b": 2, "c": 100}


def test_a_batch_that_waits_wants_no_permits() -> None:
    plan = planner(budget="sms:rate=50", minRecordsPerTrigger=100)
    assert plan.wanted({"gold": 5}, 0) == {}
    assert plan.wanted({"gold": 5}, 0, hurry=True) == {"sms": 5}
    assert plan.wanted({"gold": 0}, 0, hurry=True) == {}


@pytest.mark.parametrize(
    "text",
    [
        "",
        "sms",
        "sms:rate=",
        "sms:rate=fast",
        "sms:at_once=5",
        "sms:rate=5,cost=header:x",
        "{",
        '{"rate": 5}',
    ],
)
def test_a_budget_that_makes_no_sense_for_a_query_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="a budget with a rate"):
        options(budget=text)


def test_one_query_names_a_budget_with_the_same_numbers_everywhere() -> None:
    with pytest.raises(ConfigError, match="the same numbers"):
        options('{"a": {"budget": "sms:rate=5"}}', budget="sms:rate=6")
