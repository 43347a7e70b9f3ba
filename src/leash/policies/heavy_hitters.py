"""Heavy hitters: the keys with the most weight in a stream of them, in constant memory (Space-Saving).

A key that is not counted yet takes the place, and the weight, of the lightest one; that weight is its error.
So a key's true weight lies between `weight - error` and `weight`, and every key with more than 1 / `places`
of the total is counted. Weights halve from time to time, so that the present counts more than the past.
"""

from __future__ import annotations

from typing import Generic, NamedTuple, TypeVar

from leash.policies.exact_numbers import whole

K = TypeVar("K")


class Heavy(NamedTuple, Generic[K]):
    """A key, and the weight that it surely has."""

    key: K
    weight: float


class HeavyHitters(Generic[K]):
    """Counts at most `places` keys; weights are halved once in `half_life` ns, if it is not 0."""

    __slots__ = ("_counts", "_due", "_half_life", "_places", "total")

    def __init__(self, places: int, half_life: int = 0) -> None:
        self._places = whole("places", places, 1)
        self._half_life = whole("half_life", half_life, 0)
        self._counts: dict[K, list[float]] = {}
        self._due: int | None = None
        self.total = 0.0
        """The weight of all keys, counted or not."""

    def add(self, now: int, key: K, weight: float) -> None:
        """A key came, with a weight of at least 0."""
        self._age(now)
        self.total += weight
        counts = self._counts
        known = counts.get(key)
        if known is not None:
            known[0] += weight
        elif len(counts) < self._places:
            counts[key] = [weight, 0.0]
        else:
            lightest = min(counts, key=lambda each: counts[each][0])
            least = counts.pop(lightest)[0]
            counts[key] = [least + weight, least]

    def top(self, now: int) -> list[Heavy[K]]:
        """What is counted, the heaviest first."""
        self._age(now)
        found = [Heavy(key, weight - error) for key, (weight, error) in self._counts.items()]
        return sorted(found, key=lambda each: -each.weight)

    def _age(self, now: int) -> None:
        if not self._half_life:
            return
        if self._due is None:
            self._due = now + self._half_life
        if now < self._due:
            return
        halvings = 1 + (now - self._due) // self._half_life
        self._due += halvings * self._half_life
        part = 0.5 ** min(halvings, 64)
        self.total *= part
        for known in self._counts.values():
            known[0] *= part
            known[1] *= part
