"""What is known of the fleet, and what somebody should look at, from made-up reports."""

from __future__ import annotations

from typing import Any

import pytest

from leash.page.fleet import Fleet
from leash.page.percentiles import between, percentile
from tests.page.kit import queue, report


def kinds(view: dict[str, Any]) -> list[tuple[str, str]]:
    return [(each["kind"], each.get("queue") or each.get("process")) for each in view["attention"]]


def fed(*queues: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """A view after two reports, ten seconds apart."""
    fleet = Fleet()
    for at, each in enumerate(queues):
        fleet.heard(100.0 + 10 * at, report(seconds=10.0 * at, queues=each))
    return fleet.view(100.0 + 10 * (len(queues) - 1))


def test_queues_are_summed_over_processes_and_shares_go_by_those_with_work() -> None:
    fleet = Fleet()
    for name, handled in (("a", 300), ("b", 100)):
        for seconds, factor in ((0.0, 0), (10.0, 1)):
            gold = queue(quantum=3, handled=handled * factor, depth=7, in_work=2)
            free = queue(handled=handled * factor // 4, depth=5)
            fleet.heard(
                50 + seconds, report(name, seconds, queues={"gold": gold, "free": free, "idle": queue()})
            )
    view = fleet.view(60.0)
    by_name = {each["name"]: each for each in view["queues"]}
    assert by_name["gold"]["rate"] == pytest.approx(40)
    assert by_name["gold"]["depth"] == 7
    assert by_name["gold"]["in_work"] == 4
    assert by_name["gold"]["share"] == pytest.approx(0.8)
    assert by_name["gold"]["target"] == 0.75
    assert by_name["idle"]["target"] == 0
    assert view["totals"] == {
        "rate": pytest.approx(50),
        "depth": 12,
        "in_work": 4,
        "parked": 0,
        "failing": 0,
        "queues": 3,
        "processes": 2,
        "gone": 0,
    }
    assert kinds(view) == []


def test_a_queue_at_its_rate_or_without_waiting_messages_lowers_nobodys_target() -> None:
    then = {"a": queue(), "b": queue(), "mail": queue(rate=5), "stuck": queue()}
    now = {
        "a": queue(handled=100, depth=9),
        "b": queue(handled=100, depth=9),
        "mail": queue(rate=5, handled=50, depth=900),
        "stuck": queue(in_work=1),
    }
    found = {each["name"]: each for each in fed(then, now)["queues"]}
    targets = {name: each["target"] for name, each in found.items()}
    assert targets == {"a": 0.5, "b": 0.5, "mail": 0.0, "stuck": 0.0}
    assert found["a"]["share"] == 0.5  # of what those two had, not of all


def test_a_share_is_by_cost_and_among_the_queues_of_the_same_processes() -> None:
    fleet = Fleet()
    for seconds, factor in ((0.0, 0), (10.0, 1)):
        big = queue(handled=10 * factor, cost=900 * factor, depth=5)
        small = queue(handled=90 * factor, cost=100 * factor, depth=5)
        fleet.heard(50 + seconds, report("a", seconds, queues={"big": big}))
        fleet.heard(50 + seconds, report("b", seconds, queues={"big": big, "small": small}))
        other = queue(handled=7 * factor, depth=5)
        fleet.heard(50 + seconds, report("c", seconds, queues={"other": other}))
    view = fleet.view(60.0)
    assert view["groups"] == [["a", "b"], ["c"]]
    found = {each["name"]: each for each in view["queues"]}
    assert {name: each["target"] for name, each in found.items()} == {"big": 0.5, "small": 0.5, "other": 1.0}
    assert found["big"]["share"] == pytest.approx(18 / 19)
    assert found["other"]["share"] == 1.0
    assert found["big"]["group"] == found["small"]["group"] != found["other"]["group"]


def test_a_process_that_is_silent_is_gone_within_three_seconds_and_one_that_says_good_bye_has_left() -> None:
    fleet = Fleet()
    assert fleet.silence(10.0) is None
    fleet.heard(10.0, report("a"))
    fleet.heard(10.0, report("b"))
    fleet.heard(10.0, report("c", stopping=True))
    fleet.heard(12.4, report("b"))
    assert fleet.silence(12.4) == pytest.approx(0.1)
    assert {p["name"]: p["state"] for p in fleet.view(12.4)["processes"]} == {
        "a": "here",
        "b": "here",
        "c": "left",
    }
    view = fleet.view(12.5)
    assert {p["name"]: p["state"] for p in view["processes"]} == {"a": "gone", "b": "here", "c": "left"}
    assert kinds(view) == [("gone", "a")]
    assert fleet.silence(12.5) == pytest.approx(2.4)
    fleet.tick(700.0)
    assert fleet.view(700.0)["processes"] == []


def test_queues_whose_only_process_is_gone_are_still_shown_and_said_to_be_consumed_by_nobody() -> None:
    fleet = Fleet()
    fleet.heard(1.0, report("a", queues={"only": queue(depth=70), "both": queue(depth=5)}))
    fleet.heard(3.0, report("b", queues={"both": queue(depth=5)}))
    view = fleet.view(4.0)
    assert kinds(view) == [("gone", "a"), ("not consumed", "only")]
    assert view["attention"][1]["text"].endswith("are gone; 70 waited when it was last seen")
    assert view["totals"]["depth"] == 75
    fleet.heard(4.5, report("c", queues={"only": queue(depth=60)}))
    assert kinds(fleet.view(4.5)) == [("gone", "a")]


def test_a_process_whose_reports_are_large_gives_signs_of_life_in_between() -> None:
    fleet = Fleet()
    fleet.heard(1.0, {"v": 1, "kind": "alive", "id": "many"})
    assert fleet.view(1.0)["processes"] == []
    fleet.heard(1.0, report("many", every=5.0))
    for second in (2.0, 3.0, 4.0):
        fleet.heard(second, {"v": 1, "kind": "alive", "id": "many"})
    assert [process["state"] for process in fleet.view(6.4)["processes"]] == ["here"]
    assert [process["state"] for process in fleet.view(6.5)["processes"]] == ["gone"]
    assert fleet.strangers == 0


def budget(taken: int = 0, waited: float = 0.0, **more: Any) -> dict[str, Any]:
    told = {"rate": 50.0, "burst": 100, "at_once": None, "taken": taken, "waited": waited}
    return told | {"void": 0, "in_hand": 2, "at_work": 0} | more


@pytest.mark.parametrize(("waited", "why"), [(0.9, ""), (0.0, "no permit")])
def test_a_budget_is_summed_over_all_who_use_it_and_one_that_is_used_up_is_found(
    waited: float, why: str
) -> None:
    fleet = Fleet()
    for seconds in (0.0, 10.0):
        for name in ("a", "b"):
            mail = queue(depth=40, budgets=["sms"], handled=int(seconds * 20), why=why)
            free = queue(depth=40, handled=int(seconds * 20))
            sms = budget(int(20 * seconds), waited * seconds)
            pdf = budget(rate=None, burst=None, at_once=4, at_work=1)
            told = report(
                name, seconds, queues={"mail": mail, "free": free}, budgets={"sms": sms, "pdf": pdf}
            )
            fleet.heard(50 + seconds, told)
        spark = {"v": 1, "kind": "spark", "id": "run", "name": "lake", "batch": 1, "queues": {}}
        fleet.heard(50 + seconds, spark | {"budgets": {"sms": budget(int(10 * seconds))}})
    view = fleet.view(60.0)
    sms, pdf = view["budgets"]
    assert (sms["name"], sms["used"], sms["rate"], sms["burst"]) == ("sms", pytest.approx(50), 50.0, 100)
    assert sms["used_up"] is True
    assert sms["users"] == ["a", "b", "lake"]
    assert (sms["queues"], sms["depth"]) == (["mail"], 40)
    assert (pdf["at_once"], pdf["at_work"], pdf["used_up"]) == (4, 2, False)
    (found,) = view["attention"]
    assert (found["kind"], found["budget"]) == ("at its limit", "sms")
    assert found["text"] == "is at its limit: 50 of 50 permits a second; 40 wait in mail"
    by_name = {each["name"]: each for each in view["queues"]}
    assert (by_name["mail"]["trouble"], by_name["mail"]["target"]) == ("no permit", 0.0)
    assert by_name["free"]["target"] == 1.0
    told = {each["budget"]: each for each in fleet.certificate(60.0)["budgets"]}
    assert told["sms"]["promised"] == {"rate": 50.0, "burst": 100, "at_once": None}
    assert told["sms"]["measured"]["rate"] == pytest.approx(50)


@pytest.mark.parametrize(
    ("then", "now", "kind"),
    [
        (queue(), queue(running=30.0, in_work=1), "stuck"),
        (queue(), queue(consumed=False), "not consumed"),
        (queue(), queue(failed=3), "failing"),
        (queue(rate=5), queue(rate=5, why="throttled", resumes=0.2, depth=10), "throttled"),
        (queue(rate=5), queue(rate=5, tokens=0.7, depth=10), "throttled"),
        (queue(), queue(why="paused", consumed=False), "paused"),
        (queue(), queue(why="breaker open", breaker="open", depth=10), "breaker open"),
        (queue(), queue(breaker="half-open"), "breaker open"),
        (queue(), queue(depth=90_000), "noisy"),
        (queue(), queue(depth=5, handled=10, handler_seconds=9.0), "noisy"),
    ],
)
def test_each_trouble_is_found_and_named_with_its_queue(
    then: dict[str, Any], now: dict[str, Any], kind: str
) -> None:
    others = {f"o{n}": queue(handled=10, handler_seconds=0.1, depth=20) for n in range(4)}
    before = {name: queue() for name in others}
    view = fed({"it": then, **before}, {"it": now, **others})
    assert kinds(view) == [(kind, "it")]
    assert view["queues"][0]["name"] == "it"
    assert view["queues"][0]["trouble"] == kind


def test_a_queue_that_has_just_used_its_token_and_has_no_more_messages_is_not_throttled() -> None:
    assert kinds(fed({"q": queue(rate=5)}, {"q": queue(rate=5, tokens=0.2, handled=9)})) == []


def test_a_handler_that_always_takes_long_is_not_stuck() -> None:
    long = [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 50]  # 30 s and less, each
    assert kinds(fed({"q": queue()}, {"q": queue(running=40.0, took=long, handled=50)})) == []
    assert kinds(fed({"q": queue()}, {"q": queue(running=95.0, took=long, handled=50)})) == [("stuck", "q")]


def test_changes_of_windows_keep_their_reasons() -> None:
    fleet = Fleet()
    fleet.heard(1.0, report(queues={"q": queue()}))
    fleet.heard(2.0, report(queues={"q": queue(window=4, reason="6 credits never used")}))
    (change,) = fleet.view(2.0)["changes"]
    assert (change["queue"], change["from"], change["to"], change["reason"]) == (
        "q",
        10,
        4,
        "6 credits never used",
    )


def test_a_broken_bound_is_named_with_whoever_broke_it_and_is_in_the_certificate() -> None:
    fleet = Fleet({"vhost": "/"})
    fleet.heard(1.0, report(spread=3.0, unfair={"q": "window-limited"}, queues={"q": queue(depth=1)}))
    view = fleet.view(1.0)
    assert kinds(view) == [("unfair", "q")]
    told = fleet.certificate(1.0)
    (process,) = told["processes"]
    assert process["promised"] == {"spread_rounds": 1.0}
    assert process["measured"] == {"spread_rounds": 3.0}
    assert process["kept"] is False
    assert process["broke_it"] == {"q": "window-limited"}
    assert told["queues"][0]["promised"]["share"] == 1.0


def test_a_queue_with_an_open_breaker_leaves_its_share_to_the_others_and_is_in_the_certificate() -> None:
    fleet = Fleet()
    then, now = queue(breaker="closed"), queue(breaker="open", why="breaker open", depth=9)
    fleet.heard(1.0, report("a", queues={"it": then, "other": then}))
    fleet.heard(2.0, report("a", 2.0, queues={"it": now, "other": queue(depth=9, handled=50)}))
    fleet.heard(2.0, report("b", 2.0, queues={"it": then}))
    targets = {each["name"]: each["target"] for each in fleet.view(2.0)["queues"]}
    assert targets == {"it": 0.0, "other": 1.0}
    told = {each["queue"]: each["breaker"] for each in fleet.certificate(2.0)["queues"]}
    assert told == {"it": "open", "other": ""}


@pytest.mark.parametrize(
    "strange",
    [
        *(None, 3, [], {}, {"v": 2, "kind": "consumer"}, {"v": 1, "kind": "new"}),
        *({"v": 1, "kind": "consumer"}, report(queues=[]), report(queues={"q": 3}), report(errors=[{}])),
        *(report(spread=float("inf")), report(round_trip="x"), report(unfair={"q": 3}), report(id=3)),
        *(report(queues={"q": queue(handled="x")}), report(queues={"q": queue(handled=None)})),
        report(queues={"q": queue(took=["x"])}),
        *({"v": 1, "kind": "budget", "id": "a", "name": "a", "seconds": 1.0}, report(seconds=float("nan"))),
        {"v": 1, "kind": "spark", "id": "a", "name": "a", "queues": {"q": None}},
        *(report(spread=None), report(budgets=[]), report(budgets={"b": 3}), report(budgets={"b": {}})),
        {"v": 1, "kind": "spark", "budgets": {"b": {"taken": "x"}}},
    ],
)
def test_what_makes_no_sense_is_counted_and_left_alone(strange: Any) -> None:
    fleet = Fleet()
    fleet.heard(1.0, strange)
    view = fleet.tick(1.0)
    assert view["strangers"] == 1
    assert view["processes"] == []


def test_spark_queries_are_shown_by_their_last_batch() -> None:
    fleet = Fleet()
    told = {
        "v": 1,
        "kind": "spark",
        "id": "run",
        "name": "orders",
        "batch": 3,
        "queues": {},
        "ready": {"q": 4},
    }
    fleet.heard(1.0, told)
    fleet.heard(2.0, told | {"batch": 4})
    (query,) = fleet.view(5.0)["spark"]
    assert (query["name"], query["batch"], query["silent"]) == ("orders", 4, 3.0)


def test_the_noisy_tenants_of_all_processes_are_shown_and_nonsense_is_not() -> None:
    fleet = Fleet()
    told = {"name": "jobs", "messages": 100, "seconds": 10.0, "top": [["acme", "jobs.lane-001", 60, 1.0]]}
    slow = told | {"top": [["slow", "jobs.lane-002", 1, 9.0]]}
    for name, tenants in (
        ("a", told),
        ("b", slow),
        ("c", {"name": "jobs"}),
        ("d", told | {"top": [["x", 1]]}),
    ):
        fleet.heard(1.0, report(name) | {"tenants": tenants})
    view = fleet.view(1.0)
    assert [(each["of"], each["tenant"], each["time"], each["messages"]) for each in view["tenants"]] == [
        ("jobs", "slow", 0.45, 0.005),
        ("jobs", "acme", 0.05, 0.3),
    ]


def noisy(*shares: tuple[str, int, float]) -> list[tuple[str, str]]:
    messages, seconds = sum(each[1] for each in shares), sum(each[2] for each in shares)
    told = {"name": "jobs", "messages": messages, "seconds": seconds}
    told |= {"top": [[tenant, "jobs.lane-001", count, time] for tenant, count, time in shares]}
    fleet = Fleet()
    fleet.heard(1.0, report() | {"tenants": told})
    return [(each["kind"], each["tenant"]) for each in fleet.view(1.0)["attention"]]


def test_a_tenant_that_takes_far_more_than_its_equal_share_needs_attention() -> None:
    assert noisy(("acme", 10, 9.0), ("b", 10, 0.5), ("c", 10, 0.5)) == [("noisy", "acme")]
    assert noisy(("acme", 90, 1.0), ("b", 5, 1.0), ("c", 5, 1.0)) == [("noisy", "acme")]
    assert noisy(("a", 10, 1.0), ("b", 10, 1.0)) == []
    assert noisy(("a", 12, 1.2), ("b", 10, 1.0), ("c", 9, 1.0)) == []
    assert noisy(("alone", 10, 1.0)) == []


def test_percentiles_are_the_bounds_of_their_buckets() -> None:
    assert percentile([], 0.5) is None
    assert percentile([0, 0], 0.5) is None
    assert percentile([99, 0, 1], 0.5) == 0.001
    assert percentile([99, 0, 1], 0.99) == 0.001
    assert percentile([98, 0, 2], 0.99) == 0.01
    assert percentile([0] * 12 + [1], 0.5) == 300
    assert between([1], [5, 2], [3]) == [3, 2]
