"""A bad argument is answered with its name and what is allowed, and changes nothing."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from leash.errors import ConfigError
from leash.policies.fair import DeficitRoundRobin, Ticket


def busy() -> DeficitRoundRobin:
    rr = DeficitRoundRobin({"a": 2, "b": 1})
    rr.offer("a", 100)
    rr.offer("b", 100)
    return rr


BAD: list[tuple[str, Callable[[DeficitRoundRobin], object], str]] = [
    ("quantum", lambda _: DeficitRoundRobin({"a": 0}), "a whole number of at least 1"),
    ("quantum", lambda _: DeficitRoundRobin({"a": -1}), "a whole number of at least 1"),
    ("quantum", lambda _: DeficitRoundRobin({"a": 1.5}), "a whole number"),  # type: ignore[arg-type]
    ("quantum", lambda _: DeficitRoundRobin({"a": True}), "a whole number"),
    ("quantum", lambda _: DeficitRoundRobin({"a": "3"}), "a whole number"),  # type: ignore[arg-type]
    ("quanta", lambda _: DeficitRoundRobin(7), "a mapping"),  # type: ignore[arg-type]
    ("lane", lambda _: DeficitRoundRobin([("a", 1), ("a", 2)]), "each lane once"),
    ("tier", lambda _: DeficitRoundRobin({"a": 1}, tiers={"a": -1}), "a whole number of at least 0"),
    ("tiers", lambda _: DeficitRoundRobin({"a": 1}, tiers={"b": 1}), "only lanes that have a quantum: 'a'"),
    ("guaranteed", lambda _: DeficitRoundRobin({"a": 1}, guaranteed={0: 0}), "from 1 to 100"),
    ("guaranteed", lambda _: DeficitRoundRobin({"a": 1}, guaranteed={0: 60, 1: 60}), "at most 100"),
    ("lane", lambda rr: rr.add_lane("a", 1), "each lane once"),
    ("quantum", lambda rr: rr.add_lane("new", 0), "of at least 1"),
    ("quantum", lambda rr: rr.set_quantum("a", 0), "of at least 1"),
    ("lane", lambda rr: rr.set_quantum("?", 1), "one of 'a', 'b'"),
    ("lane", lambda rr: rr.remove_lane("?"), "one of 'a', 'b'"),
    ("lane", lambda rr: rr.offer("?"), "one of 'a', 'b'"),
    ("n", lambda rr: rr.offer("a", -1), "of at least 0"),
    ("n", lambda rr: rr.offer("a", 1.0), "of at least 0"),  # type: ignore[arg-type]
    ("n", lambda rr: rr.offer("a", True), "of at least 0"),
    ("lane", lambda rr: rr.withdraw("?", 1), "one of 'a', 'b'"),
    ("n", lambda rr: rr.withdraw("a", 101), "from 0 to 100"),
    ("lane", lambda rr: rr.expect("?", 1), "one of 'a', 'b'"),
    ("n", lambda rr: rr.expect("a", -1), "of at least 0"),
    ("lane", lambda rr: rr.block("?"), "one of 'a', 'b'"),
    ("lane", lambda rr: rr.unblock("?"), "one of 'a', 'b'"),
    ("lane", lambda rr: rr.balance("?"), "one of 'a', 'b'"),
    ("cost", lambda rr: rr.pick(cost=lambda _: -1), "of at least 0"),
    ("limit", lambda rr: rr.take(0), "of at least 1"),
    ("lane", lambda rr: rr.settle(Ticket("?")), "one of 'a', 'b'"),
    ("cost", lambda rr: rr.settle(Ticket("a"), -1), "of at least 0"),
    ("cost", lambda rr: rr.settle(Ticket("a"), 0.5), "of at least 0"),  # type: ignore[arg-type]
    ("estimate", lambda rr: rr.settle(Ticket("a", -1)), "of at least 0"),
    ("ticket", lambda rr: rr.settle(rr.pick(eligible=lambda _: False)), "a Ticket"),  # type: ignore[arg-type]
    ("budget", lambda rr: rr.plan({"a": 1}, -1), "of at least 0"),
    ("backlog", lambda rr: rr.plan({"a": -1}, 1), "of at least 0"),
    ("backlog", lambda rr: rr.plan({"?": 1}, 1), "one of 'a', 'b'"),
    ("state", lambda rr: rr.restore({}), r"what state\(\) returned"),
    ("state", lambda rr: rr.restore({"tiers": [{"tier": 0, "round": 0}]}), r"what state\(\) returned"),
]


@pytest.mark.parametrize(("argument", "call", "allowed"), BAD)
def test_a_bad_argument_is_named_with_what_is_allowed(
    argument: str, call: Callable[[DeficitRoundRobin], object], allowed: str
) -> None:
    rr = busy()
    with pytest.raises(ConfigError, match=allowed) as error:
        call(rr)
    assert error.value.argument == argument


@pytest.mark.parametrize(("argument", "call", "allowed"), [bad for bad in BAD if bad[0] != "state"])
def test_a_bad_argument_changes_nothing(
    argument: str, call: Callable[[DeficitRoundRobin], object], allowed: str
) -> None:
    rr, twin = busy(), busy()
    with pytest.raises(ConfigError, match=f"{argument}=.*{allowed}"):
        call(rr)
    assert [rr.pick() for _ in range(6)] == [twin.pick() for _ in range(6)]
