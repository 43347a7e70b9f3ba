"""The layout of partitions: their exchange, their queues, and where every key goes. Pure.

direct   queues are bound to the hash exchange, in the order of `weights`
slots    fixed slot exchanges are bound to it, in the order of `order`, each with weight 1, and every slot to
         the queue that `owners` names; so a slot can move without moving other keys
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from leash.errors import ConfigError
from leash.partitions.owners import Owners
from leash.policies.ring import HashRing, Move, jump
from leash.policies.ring.hash_input import Terms

Shape = Literal["slots", "direct"]
FORMAT = 1


class Taking(NamedTuple):
    """A move in progress: `target` takes over `slots`."""

    number: int
    target: str
    slots: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Layout:
    """A layout as Leash stores it."""

    name: str
    shape: Shape
    weights: tuple[tuple[str, int], ...]
    by: str = "routing_key"
    kind: str = "classic"
    ordered: bool = True
    arguments: Mapping[str, Any] = field(default_factory=dict)
    owners: Owners = ()
    order: tuple[int, ...] = ()
    retired: tuple[str, ...] = ()
    """Queues that get no new messages, and may still hold some."""
    leaving: tuple[tuple[str, int], ...] = ()
    """Bindings of a direct layout that are about to be removed."""
    ready: bool = False
    """True if all of it has been declared."""
    moves: int = 0
    """The number of moves so far; moves are numbered."""
    left: tuple[tuple[str, int], ...] = ()
    """The last move that took slots from a queue: once it is passed, the queue holds nothing older."""
    taking: Taking | None = None
    version: tuple[int, ...] | None = None
    """The broker's version; looked up, not stored."""
    beside: Mapping[str, Any] = field(default_factory=dict)
    """What others store with it, as plain JSON: see `fleet/tenants/tenants.py`."""

    @property
    def queues(self) -> tuple[str, ...]:
        """The queues that get messages."""
        return tuple(queue for queue, _ in self.weights)

    @property
    def all_queues(self) -> tuple[str, ...]:
        """The queues to consume, including retired ones."""
        return (*self.queues, *self.retired)

    @property
    def ring(self) -> HashRing:
        """The hash exchange's ring: of queues, or of slots."""
        if self.shape == "direct":
            return HashRing(self.weights, self.by, self.version)
        return HashRing([(self.slot(slot), 1) for slot in self.order], self.by, self.version)

    @property
    def places(self) -> list[str]:
        """The queue behind every binding of the ring."""
        return list(self.queues) if self.shape == "direct" else [self.owners[slot] for slot in self.order]

    @property
    def sources(self) -> tuple[str, ...]:
        """The queues from which the move in progress takes slots."""
        taken = () if self.taking is None else self.taking.slots
        return tuple(dict.fromkeys(self.owners[slot] for slot in taken))

    # Names

    def slot(self, number: int) -> str:
        """The name of a slot's exchange."""
        return f"{self.name}.slot-{number:03}"

    @property
    def moving(self) -> str:
        """The exchange that gets a slot's messages while no queue is bound to it."""
        return f"{self.name}.moving"

    # Routing

    def route(self, key: object) -> str:
        """The queue that a message with this key goes to."""
        ring = self.ring
        return self.places[ring.queues.index(ring.route(key))]

    def route_many(self, keys: Any) -> NDArray[np.object_]:
        """The queue of every key of a list, a numpy array or an Arrow column."""
        return np.array(self.places, np.object_).take(self.ring.indices(keys))

    def shares(self) -> dict[str, float]:
        """The exact share of all keys that each queue gets."""
        parts = dict.fromkeys(self.queues, 0.0)
        for queue, share in zip(self.places, self.ring.shares().values(), strict=True):
            parts[queue] = parts.get(queue, 0.0) + share
        return parts

    # What a change costs

    def moved(self, other: Layout, keys: Any = None) -> float:
        """The share of all keys, or of a sample, that goes to another queue in the other layout."""
        if keys is None:
            return sum(move.share for move in self.moves_to(other))
        before, after = self.route_many(keys), other.route_many(keys)
        return int(np.count_nonzero(before != after)) / len(before) if len(before) else 0.0

    def moves_to(self, other: Layout) -> list[Move]:
        """The moves of keys between queues, largest share first."""
        if Terms(self.by, self.version).typed != Terms(other.by, other.version).typed or self.by != other.by:
            mine, theirs = self.shares(), other.shares()
            moved_shares = [Move(a, b, x * y) for a, x in mine.items() for b, y in theirs.items()]
        else:
            names = list(dict.fromkeys([*self.places, *other.places]))
            code = self._codes(names) * len(names) + other._codes(names)
            pairs, counts = np.unique(code, return_counts=True)
            moved_shares = [
                Move(names[pair // len(names)], names[pair % len(names)], count / jump.SEEDS)
                for pair, count in zip(pairs.tolist(), counts.tolist(), strict=True)
            ]
        moves = [move for move in moved_shares if move.source != move.target and move.share]
        return sorted(moves, key=lambda move: (-move.share, move.source, move.target))

    def _codes(self, names: list[str]) -> NDArray[np.int64]:
        places = np.array([names.index(queue) for queue in self.places], np.int64)
        return places.take(jump.owners(self.ring.weights))

    def restarted(self) -> Layout:
        """The layout after a full stop of a broker that rebuilds its rings in sorted order."""
        again = self.ring.restart().queues
        if self.shape == "direct":
            weights = dict(self.weights)
            return replace(self, weights=tuple((queue, weights[queue]) for queue in again))
        numbers = {self.slot(slot): slot for slot in self.order}
        return replace(self, order=tuple(numbers[name] for name in again))

    def upgraded(self, version: tuple[int, ...]) -> Layout:
        """The layout after an upgrade of the broker."""
        known = self.ring.upgrade(version).version
        return replace(self.restarted(), version=known)

    # Remembering

    def to_json(self) -> dict[str, Any]:
        """Plain values; owners are numbers, for brevity."""
        names = list(dict.fromkeys([*self.queues, *self.owners]))
        return {
            "format": FORMAT,
            "name": self.name,
            "shape": self.shape,
            "weights": [list(pair) for pair in self.weights],
            "by": self.by,
            "kind": self.kind,
            "ordered": self.ordered,
            "arguments": dict(self.arguments),
            "names": names,
            "owners": [names.index(owner) for owner in self.owners],
            "order": list(self.order),
            "retired": list(self.retired),
            "leaving": [list(pair) for pair in self.leaving],
            "ready": self.ready,
            "moves": self.moves,
            "left": [list(pair) for pair in self.left],
            "taking": None if self.taking is None else list(self.taking),
            "beside": dict(self.beside),
        }

    @classmethod
    def from_json(cls, fields: Mapping[str, Any], version: tuple[int, ...] | None = None) -> Layout:
        """The inverse of `to_json`."""
        if fields.get("format") != FORMAT:
            raise ConfigError("format", fields.get("format"), f"{FORMAT}: a newer Leash wrote this layout")
        taking = fields["taking"]
        return cls(
            name=fields["name"],
            shape=fields["shape"],
            weights=tuple((queue, weight) for queue, weight in fields["weights"]),
            by=fields["by"],
            kind=fields["kind"],
            ordered=fields["ordered"],
            arguments=fields["arguments"],
            owners=tuple(fields["names"][owner] for owner in fields["owners"]),
            order=tuple(fields["order"]),
            retired=tuple(fields["retired"]),
            leaving=tuple((queue, weight) for queue, weight in fields["leaving"]),
            ready=fields["ready"],
            moves=fields["moves"],
            left=tuple((queue, move) for queue, move in fields["left"]),
            taking=None if taking is None else Taking(taking[0], taking[1], tuple(taking[2])),
            version=version,
            beside=fields.get("beside", {}),
        )
