"""Which queue owns which slot. Pure: weights and today's owners in, tomorrow's owners out.

Every queue gets its exact share of the slots, rounded down or up, and as few slots move as possible.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from leash.errors import ConfigError

Owners = tuple[str, ...]
"""The queues of slot 0, 1, 2 and so on."""


def assign(weights: Mapping[str, int], slots: int, owners: Sequence[str] = ()) -> Owners:
    """Owners in proportion to the weights, as close to the present ones as possible."""
    wanted = counts(weights, slots, owners)
    room = Counter(wanted)
    kept: list[str | None] = []
    for queue in owners or [""] * slots:
        stays = room[queue] > 0
        kept.append(queue if stays else None)
        room[queue] -= stays
    spare = iter([queue for queue in wanted for _ in range(room[queue])])
    return tuple(queue if queue is not None else next(spare) for queue in kept)


def counts(weights: Mapping[str, int], slots: int, owners: Sequence[str] = ()) -> dict[str, int]:
    """How many slots each queue gets.

    Slots left over by rounding go to queues that hold such a slot already, then to the largest remainders.
    """
    total = sum(weights.values())
    held = Counter(owners)
    shares = {queue: slots * weight // total for queue, weight in weights.items()}
    rests = {queue: slots * weight % total for queue, weight in weights.items()}
    keen = sorted((q for q in weights if rests[q]), key=lambda q: (held[q] <= shares[q], -rests[q]))
    for queue in keen[: slots - sum(shares.values())]:
        shares[queue] += 1
    for queue, count in shares.items():
        if not count:
            raise ConfigError(
                "weights", dict(weights), f"no slot of {slots} is left for {queue!r}: use more slots"
            )
    return shares


def moves(before: Owners, after: Owners) -> dict[str, tuple[int, ...]]:
    """The slots that each queue takes over."""
    takeovers: dict[str, list[int]] = {}
    for slot, (old, new) in enumerate(zip(before, after, strict=True)):
        if old != new:
            takeovers.setdefault(new, []).append(slot)
    return {queue: tuple(taken) for queue, taken in takeovers.items()}
