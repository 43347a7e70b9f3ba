"""What a change would do, before it is made. Pure: the stored and the wanted layout in, a plan out."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from leash.errors import ConfigError, TopologyError
from leash.partitions import owners
from leash.partitions.layout import Layout
from leash.policies.ring import KEEPS_ITS_RING, Move


@dataclass(frozen=True)
class Plan:
    """A planned change. `before` is None for new partitions; `lines` are the difference, `notes` advice."""

    before: Layout | None
    after: Layout
    takeovers: dict[str, tuple[int, ...]]
    lines: tuple[str, ...]
    notes: tuple[str, ...]

    @property
    def nothing(self) -> bool:
        """True if there is nothing to change."""
        return not self.lines

    @property
    def moves(self) -> list[Move]:
        """The moves of keys between queues."""
        return [] if self.before is None or self.nothing else self.before.moves_to(self.after)

    def moved(self, keys: Any = None) -> float:
        """The share of all keys, or of a sample's messages, that changes queues."""
        return 0.0 if self.before is None or self.nothing else self.before.moved(self.after, keys)

    def __str__(self) -> str:
        lines = list(self.lines) or ["nothing to do"]
        if self.before is not None and not self.nothing:
            lines.append(f"moves {self.moved():.1%} of all keys")
        return "\n".join([*lines, *(f"note: {note}" for note in self.notes)])


def compare(before: Layout | None, asked: Layout, foreign: bool = False) -> Plan:
    """Plan a change. `foreign`: the hash exchange exists, and no layout is stored for it."""
    if before is None:
        if foreign:
            raise TopologyError(
                f"exchange {asked.name!r} exists, Leash did not make it, and AMQP cannot list its "
                "bindings: choose another name, or delete it"
            )
        after = _first(asked)
        what = f"{len(after.order)} slots" if after.shape == "slots" else "no slots"
        made = [f"create exchange {after.name!r}, by {after.by}, {what}"]
        made += [f"create {after.kind} queue {queue!r}, weight {weight}" for queue, weight in after.weights]
        return Plan(None, after, {}, tuple(made), notes(after))
    _same_kind(before, asked)
    after, takeovers = _next(before, asked)
    lines = [] if before.ready else ["finish what was begun and not completed"]
    if before.taking is not None:
        lines.append(f"finish the move to {before.taking.target!r} that was interrupted")
    lines += _differences(before, after, takeovers)
    return Plan(before, after, takeovers, tuple(lines), notes(after))


def _first(asked: Layout) -> Layout:
    if asked.shape == "direct":
        # In the order in which a restart would sort them, so that it moves nothing.
        return asked.restarted()
    assigned = owners.assign(dict(asked.weights), len(asked.order))
    return replace(asked, owners=assigned)


def _next(before: Layout, asked: Layout) -> tuple[Layout, dict[str, tuple[int, ...]]]:
    retired = tuple(q for q in before.all_queues if q not in asked.queues)
    after = replace(before, weights=asked.weights, retired=retired, taking=None, ready=True)
    if before.shape == "direct":
        return replace(after, weights=_appended(before, asked)), {}
    now = before.owners
    if before.taking is not None:
        taken = before.taking
        now = tuple(taken.target if slot in taken.slots else owner for slot, owner in enumerate(now))
    assigned = owners.assign(dict(asked.weights), len(before.order), now)
    return replace(after, owners=assigned), owners.moves(now, assigned)


def _appended(before: Layout, asked: Layout) -> tuple[tuple[str, int], ...]:
    """Unchanged bindings keep their places; new ones follow, then those with another weight."""
    old, wanted = dict(before.weights), dict(asked.weights)
    kept = [(queue, weight) for queue, weight in before.weights if wanted.get(queue) == weight]
    fresh = [pair for pair in asked.weights if pair not in kept]
    return (*kept, *sorted(fresh, key=lambda pair: (pair[0] in old, str(pair[1]), pair[0])))


def _differences(before: Layout, after: Layout, takeovers: dict[str, tuple[int, ...]]) -> list[str]:
    old, new = dict(before.weights), dict(after.weights)
    lines = []
    for queue, weight in new.items():
        if queue not in old:
            back = " back" if queue in before.retired else ""
            lines.append(f"bring{back} queue {queue!r}, weight {weight}")
        elif old[queue] != weight:
            lines.append(f"weigh queue {queue!r} {weight} instead of {old[queue]}")
    lines += [f"retire queue {queue!r}: nothing new comes to it" for queue in old if queue not in new]
    lines += [f"move {len(taken)} slots to {queue!r}" for queue, taken in takeovers.items()]
    return lines


def _same_kind(before: Layout, asked: Layout) -> None:
    for what in ("shape", "by", "kind", "ordered"):
        present, wanted = getattr(before, what), getattr(asked, what)
        if present != wanted:
            argument = "layout" if what == "shape" else what
            raise ConfigError(
                argument, wanted, f"{present!r}, as {before.name!r} was made; it cannot be changed"
            )
    if before.shape == "slots" and len(before.order) != len(asked.order):
        raise ConfigError(
            "slots",
            len(asked.order),
            f"{len(before.order)}, as {before.name!r} was made; it cannot be changed",
        )
    if dict(before.arguments) != dict(asked.arguments):
        raise ConfigError(
            "arguments", dict(asked.arguments), f"{dict(before.arguments)}, as {before.name!r} was made"
        )


def notes(after: Layout) -> tuple[str, ...]:
    """Advice about restarts."""
    if after.version is not None and after.version >= KEEPS_ITS_RING:
        return ()
    advice = [
        "a full stop of this broker shuffles the ring, "
        "unless its rabbitmq.conf says default_worker_pool_size = 1"
    ]
    again = after.restarted()
    lost = 0.0 if again == after else after.moved(again)
    if lost:
        advice.append(
            f"even then the next restart moves {lost:.1%} of all keys: this ring is not in sorted order"
        )
    return tuple(advice)
