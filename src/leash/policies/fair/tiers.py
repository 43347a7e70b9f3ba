"""Strict tiers: the highest (0) that can be served is served, but a guaranteed share comes first.

A share is a percentage of all services. Each service adds it to the claim of every guaranteed tier that
waits, and the service that would raise a claim to 100 is that tier's. A tier without work has no claim, and
one that is served anyway incurs no debt by it. Messages that are known to be in flight are work: the others
wait for them when the claim is due, as the lanes of one tier wait for each other.
"""

from __future__ import annotations

from leash.policies.fair.rounds import Rounds

SERVICE = 100


def due(tiers: list[Rounds]) -> list[Rounds]:
    """The tiers whose guarantee is due with the next service, in the order in which to ask them."""
    for rounds in tiers:
        if not rounds.ready():
            rounds.claim = 0
    return [rounds for rounds in tiers if rounds.claim + rounds.share >= SERVICE]


def served(tiers: list[Rounds], by: Rounds) -> None:
    """One service was given to tier `by`: all others that wait have a greater claim on the next one."""
    most = SERVICE * len(tiers)  # enough for tiers that wait for each other; skipped ones must not save up
    for rounds in tiers:
        if rounds.share and (rounds.turns or rounds.held):
            rounds.claim = min(most, rounds.claim + rounds.share)
    by.claim = max(0, by.claim - SERVICE)


def split(tiers: list[Rounds], waiting: list[int], budget: int) -> tuple[list[int], int | None]:
    """How many of the next `budget` services each tier gets, and which one gets the last; updates the claims.

    Claims repeat after 100 services, so these are counted at once while no tier runs out of work.
    """
    left = list(waiting)
    last = None
    while budget and any(left):
        before = [rounds.claim for rounds in tiers]
        given = [0] * len(tiers)
        for _ in range(min(SERVICE, budget)):
            for i, rounds in enumerate(tiers):
                if not left[i]:
                    rounds.claim = 0
            open_tiers = [i for i in range(len(tiers)) if left[i]]
            if not open_tiers:
                break
            due = (i for i in open_tiers if tiers[i].claim + tiers[i].share >= SERVICE)
            last = next(due, open_tiers[0])
            for i in open_tiers:
                tiers[i].claim += tiers[i].share
            tiers[last].claim = max(0, tiers[last].claim - SERVICE)
            left[last] -= 1
            given[last] += 1
        budget -= sum(given)
        if sum(given) == SERVICE and before == [rounds.claim for rounds in tiers]:
            hundreds = min(budget // SERVICE, *(left[i] // n for i, n in enumerate(given) if n))
            budget -= hundreds * SERVICE
            left = [here - hundreds * n for here, n in zip(left, given, strict=True)]
    return [before - after for before, after in zip(waiting, left, strict=True)], last
