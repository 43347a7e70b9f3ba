"""phash2 and the jump against numbers that a real Erlang (OTP 25) gave."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leash.errors import ConfigError
from leash.policies.ring.jump import bucket
from leash.policies.ring.phash import Atom, phash2

HASHES: list[tuple[object, int]] = [
    (b"", 13708901),
    (b"a", 112802447),
    (b"hello", 47480723),
    (b"tenant-42", 24147458),
    (b"0123456789a", 73708536),
    (b"0123456789ab", 115360506),
    (b"0123456789abc", 67923675),
    (bytes(range(256)), 3064723),
    (b"\x00", 96315567),
    (b"x" * 255, 113300833),
    (Atom("undefined"), 45914356),
    (Atom("true"), 506293),
    (Atom(""), 0),
    (Atom("longstr"), 56945346),
    (Atom("é"), 233),
    (Atom("日本"), 117588076),
    (Atom("a_rather_long_atom_that_wraps_around"), 76447188),
    (0, 88723725),
    (1, 2614250),
    (-1, 44071773),
    (255, 44734653),
    (256, 37021655),
    (2**27 - 1, 112602999),
    (2**27, 12354923),
    (-(2**27), 69672967),
    (-(2**27) - 1, 76739502),
    (2**31 - 1, 124127543),
    (-(2**31), 62030289),
    (2**32, 95057355),
    (2**59, 26969617),
    (2**63 - 1, 28179613),
    (-(2**63), 126213383),
    (2**64 - 1, 53435350),
    (2**64, 103122609),
    (-(2**100), 124857544),
    (0.0, 20875736),
    (-0.0, 20875736),
    (1.0, 77147068),
    (-1.5, 13753666),
    (3.141592653589793, 93376775),
    (5e-324, 107647591),
    (1.7976931348623157e308, 22278810),
    ((), 87486268),
    ((1,), 110528523),
    ((b"",), 11376169),
    ((Atom("a"), Atom("b")), 101277806),
    (((), ()), 122066660),
    ([], 113427502),
    ([1], 84609158),
    ([1, 2, 3], 25788620),
    ([1, 2, 3, 4], 90049352),
    ([1, 2, 3, 4, 5], 66056394),
    ([256], 73608398),
    ([b"a", 1], 61284974),
    ([[], []], 67164138),
    ([1, Atom("a"), 2, 2, 2, 2, 2], 128597575),
    ([-1], 42412580),
    ((Atom("longstr"), b"hello"), 5518530),
    ((Atom("signedint"), 42), 20266392),
    ((Atom("long"), -(2**40)), 32506873),
    ((Atom("bool"), True), 32030443),
    ((Atom("bool"), False), 54145719),
    ((Atom("double"), 2.5), 126418831),
    ((Atom("decimal"), (2, 314)), 113508173),
    ((Atom("void"), None), 27077197),
    ((Atom("binary"), b"hello"), 50957146),
    ((Atom("timestamp"), 1700000000), 59280699),
    ((Atom("table"), [(b"k", Atom("longstr"), b"v")]), 95356243),
    ((Atom("array"), [(Atom("byte"), -7), (Atom("unsignedint"), 7)]), 117696122),
]

JUMPS = {  # raw seed -> buckets among 2, 7, 100 and 10,000
    0: [0, 4, 47, 3765],
    1: [0, 3, 29, 856],
    42: [1, 6, 6, 4447],
    -1: [0, 6, 74, 9916],
    -1000000: [0, 5, 56, 339],
    2**40: [0, 4, 47, 3765],
    2**21 - 1: [0, 6, 74, 9916],
    2**21: [0, 4, 47, 3765],
    1700000000000: [1, 5, 77, 6921],
}


@pytest.mark.parametrize(("term", "expected"), HASHES, ids=[repr(term)[:40] for term, _ in HASHES])
def test_a_term_hashes_as_erlang_hashes_it(term: object, expected: int) -> None:
    assert phash2(term) == expected


def test_python_values_stand_for_erlang_ones() -> None:
    assert phash2("hellö") == phash2("hellö".encode())
    assert phash2(None) == phash2(Atom("undefined")) == 45914356
    assert phash2(True) == phash2(Atom("true")) != phash2(1)
    assert phash2("a") != phash2(Atom("a"))
    assert phash2(b"\xff\xfe".decode("utf-8", "surrogateescape")) == phash2(b"\xff\xfe")


@given(st.recursive(st.none() | st.booleans() | st.integers() | st.binary(), st.lists, max_leaves=20))
def test_every_term_hashes_into_27_bits(term: object) -> None:
    assert 0 <= phash2(term) < 2**27


@pytest.mark.parametrize("term", [{"a": 1}, {1}, object(), float("nan"), float("inf"), [object()], "\ud800"])
def test_what_has_no_erlang_term_is_refused(term: object) -> None:
    with pytest.raises(ConfigError):
        phash2(term)


@pytest.mark.parametrize(("seed", "expected"), JUMPS.items())
def test_a_seed_jumps_as_in_erlang(seed: int, expected: list[int]) -> None:
    assert [bucket(seed, n) for n in (2, 7, 100, 10_000)] == expected
