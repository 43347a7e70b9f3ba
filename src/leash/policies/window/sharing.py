"""Divides a common budget: small claims are met in full, the others get equal parts.

Claims and shares are in one unit, messages or bytes. Windows are whole messages and at least 1, so many
lanes of large messages may exceed a small budget, by one message each.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

FIRST = 16
"""The window of a lane about which nothing is known."""

AT_FIRST = 160
"""The sum of all first windows: `FIRST` each for ten lanes, less for more lanes."""


class Shares(NamedTuple):
    """`level` is the most that a claim gets, None if all fit; then each growing one gets `spare` on top."""

    level: int | None
    spare: int

    def of(self, claim: int, grows: bool) -> int:
        if self.level is not None:
            return min(claim, self.level)
        return claim + self.spare if grows else claim


def share_out(total: int, claims: Sequence[int], growing: int) -> Shares:
    """Divide a budget among claims, of which `growing` may get more than they claim."""
    left = total
    for index, claim in enumerate(sorted(claims)):
        others = len(claims) - index
        if claim * others > left:
            return Shares(max(0, left) // others, 0)
        left -= claim
    return Shares(None, max(0, left) // max(1, growing))


def equal_part(total: int, lanes: int, size: int = 1) -> int:
    """How many messages of a size each of `lanes` lanes may have, at least 1."""
    return max(1, total // (lanes * size))
