"""Messages that come back unserved, as from a worker that is late: no lane catches up in one long turn."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from leash.policies.fair import DeficitRoundRobin, Ticket

QUANTA = st.lists(st.integers(1, 9), min_size=1, max_size=6)


def lanes(quanta: list[int], quiet_first: bool = False) -> DeficitRoundRobin:
    rr = DeficitRoundRobin({str(i): quantum for i, quantum in enumerate(quanta)}, quiet_first=quiet_first)
    for lane in rr.quanta:
        rr.offer(lane, 10_000)
    return rr


def taken(rr: DeficitRoundRobin, count: int) -> list[str]:
    tickets = [rr.pick() for _ in range(count)]
    return [ticket.lane for ticket in tickets if ticket is not None]


def put_back(rr: DeficitRoundRobin, names: list[str]) -> None:
    for name, count in Counter(names).items():
        rr.settle(Ticket(name, count), 0, dry=False)
        rr.offer(name, count)
    rr.rewind()


@given(QUANTA, st.integers(0, 100), st.integers(0, 100), st.booleans())
def test_what_comes_back_is_given_again_in_the_same_order(
    quanta: list[int], before: int, count: int, quiet_first: bool
) -> None:
    rr = lanes(quanta, quiet_first)
    taken(rr, before)
    again = lanes(quanta, quiet_first)
    taken(again, before)
    put_back(rr, taken(rr, count))
    assert taken(rr, count + 50) == taken(again, count + 50)


@given(QUANTA, st.lists(st.tuples(st.integers(1, 40), st.integers(0, 40)), min_size=1, max_size=4))
def test_lanes_are_within_a_round_again_once_those_behind_have_caught_up(
    quanta: list[int], workers: list[tuple[int, int]]
) -> None:
    """Several workers took a batch each, one after the other, and then give back what they did not begin."""
    rr = lanes(quanta)
    served = Counter(dict.fromkeys(rr.quanta, 0))
    batches = [(taken(rr, count), begun) for count, begun in workers]
    for batch, begun in batches:
        served.update(batch[:begun])
        put_back(rr, batch[begun:])
    furthest = max(served[lane] // quantum for lane, quantum in rr.quanta.items()) + 1
    served.update(taken(rr, sum(max(0, furthest * q - served[lane]) for lane, q in rr.quanta.items())))
    rounds = [served[lane] / quantum for lane, quantum in rr.quanta.items()]
    assert max(rounds) - min(rounds) <= 1


def test_a_lane_that_is_not_behind_waits_for_those_that_are() -> None:
    rr = lanes([2, 2, 2])
    assert "".join(taken(rr, 6)) == "001122"
    put_back(rr, ["1", "1", "1"])  # one of them from an earlier batch
    assert "".join(taken(rr, 9)) == "111001122"
