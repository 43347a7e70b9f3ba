"""The circuit: opens in an outage and not for bad messages, probes one at a time, recovers by itself."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from leash.policies.breaker import Circuit, Turn
from leash.units import MS, SECOND


def opened(failures: int = 5, now: int = 0, **options: int) -> Circuit:
    circuit = Circuit(failures, **options)
    for _ in range(failures):
        circuit.failed(now, Turn.CALL)
    assert circuit.state == "open"
    return circuit


def test_as_many_first_failures_in_a_row_open_it() -> None:
    circuit = Circuit(3)
    for _ in range(2):
        circuit.failed(0, Turn.CALL)
        assert circuit.state == "closed"
    circuit.failed(7, Turn.CALL)
    assert (circuit.state, circuit.opened, circuit.since) == ("open", 1, 7)


def test_a_success_ends_the_row() -> None:
    circuit = Circuit(3)
    for _ in range(100):
        circuit.failed(0, Turn.CALL)
        circuit.failed(0, Turn.CALL)
        circuit.succeeded(Turn.CALL)
    assert circuit.state == "closed"


def test_messages_that_fail_again_say_nothing_new() -> None:
    circuit = Circuit(2)
    circuit.failed(0, Turn.CALL)
    for _ in range(100):
        circuit.failed(0, Turn.CALL, first=False)
    assert circuit.state == "closed"


def test_one_probe_at_a_time_and_ever_longer_waits() -> None:
    circuit = opened(longest=SECOND)
    waits, now = [], 0
    for _ in range(6):
        assert circuit.begin(circuit.next - 1) is Turn.NO
        waits.append(circuit.next - now)
        now = circuit.next
        assert circuit.begin(now) is Turn.PROBE
        assert circuit.begin(now) is Turn.NO
        circuit.failed(now, Turn.PROBE)
    assert waits == [100 * MS, 200 * MS, 400 * MS, 800 * MS, SECOND, SECOND]


def test_what_began_before_it_opened_does_not_change_the_waits() -> None:
    circuit = opened()
    at = circuit.next
    for _ in range(20):
        circuit.failed(1, Turn.CALL)
    assert circuit.next == at


def test_a_successful_probe_lets_all_go_and_some_more_close_it() -> None:
    circuit = opened(3)
    assert circuit.begin(circuit.next) is Turn.PROBE
    circuit.succeeded(Turn.PROBE)
    assert (circuit.state, circuit.begin(circuit.next)) == ("half-open", Turn.CALL)
    for _ in range(2):
        circuit.succeeded(Turn.CALL)
    assert circuit.state == "closed"
    assert circuit.quiet


def test_a_first_failure_opens_a_half_open_one_again() -> None:
    circuit = opened(3, now=5)
    circuit.begin(circuit.next)
    circuit.succeeded(Turn.PROBE)
    circuit.failed(SECOND, Turn.CALL, first=False)
    assert circuit.state == "half-open"
    circuit.failed(SECOND, Turn.CALL)
    assert (circuit.state, circuit.next - SECOND) == ("open", 100 * MS)
    assert (circuit.opened, circuit.since) == (1, 5)  # the same outage


def test_a_probe_that_says_nothing_leaves_its_place_to_the_next() -> None:
    circuit = opened()
    at = circuit.next
    assert circuit.begin(at) is Turn.PROBE
    circuit.unknown(Turn.PROBE)
    assert circuit.begin(at) is Turn.PROBE


def test_failures_are_excused_while_it_is_open_and_for_as_long_as_the_patience() -> None:
    assert not Circuit().excuses(0)
    circuit = opened(3, patience=60 * SECOND)
    assert circuit.excuses(60 * SECOND - 1)
    assert not circuit.excuses(60 * SECOND)
    circuit.begin(circuit.next)
    circuit.succeeded(Turn.PROBE)
    assert not circuit.excuses(1)


@given(
    st.integers(1, 6),
    st.lists(st.tuples(st.integers(0, 1500), st.sampled_from(["good", "bad", "unknown"])), max_size=200),
)
def test_it_never_gets_stuck_and_never_has_two_probes(failures: int, ends: list[tuple[int, str]]) -> None:
    circuit = Circuit(failures)
    now = probes = 0
    for passes, end in ends:
        now += passes * MS
        before = circuit.state
        turn = circuit.begin(now)
        probes += turn is Turn.PROBE
        assert (turn is Turn.PROBE) <= (before == "open")
        assert turn is Turn.NO or circuit.begin(now) is (Turn.NO if before == "open" else Turn.CALL)
        if turn is Turn.NO:
            assert now < circuit.next <= now + SECOND
        elif end == "good":
            circuit.succeeded(turn)
            assert circuit.state != "open"
        elif end == "bad":
            circuit.failed(now, turn)
        else:
            circuit.unknown(turn)
    assert probes <= now // (100 * MS) + len(ends)
    assert circuit.begin(now + SECOND) is not Turn.NO
