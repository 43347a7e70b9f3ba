"""Where the x-consistent-hash exchange sends a message: key -> bucket -> queue, as the broker does it.

A ring is a list of bindings; each owns as many buckets as its weight, in the order of binding. Binding
appends buckets at the end. Unbinding takes a queue's buckets out and *shifts all later ones down*, so that
nearly every key moves unless the queue was the last. A restart may sort the list. Every such operation
gives a new ring, and `moved` says what it would cost.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from leash.errors import ConfigError
from leash.policies.ring import jump
from leash.policies.ring.hash_input import Terms, check_by, check_version

KEEPS_ITS_RING = (4, 2)
"""From this version on a new broker keeps its metadata, and the ring, in Khepri; before, in Mnesia."""
WEIGHT_CAP = (4, 2, 6)
MOST_WEIGHT = 10_000
_STATE_LINE = re.compile(r"^Ring index: (\d+), queue: '(.*)'\s*$", re.MULTILINE)


class Move(NamedTuple):
    """A share of all keys that changes queues."""

    source: str
    target: str
    share: float


class Load(NamedTuple):
    """How many keys of a sample go to a queue, and how many its weight calls for."""

    queue: str
    weight: int
    received: int
    expected: float


class HotKey(NamedTuple):
    """A frequent key."""

    key: object
    times: int
    queue: str


class Skew(NamedTuple):
    """How evenly a sample of keys falls."""

    total: int
    loads: tuple[Load, ...]
    hot: tuple[HotKey, ...]

    @property
    def worst(self) -> float:
        """The fullest queue's count, relative to what its weight calls for."""
        return max((load.received / load.expected for load in self.loads), default=0.0) if self.total else 0.0


@dataclass(frozen=True, slots=True)
class HashRing:
    """An exchange's bindings in order: pairs of queue and weight (or a dict of them).

    by       'routing_key', 'header:NAME' or 'property:NAME' (message_id, correlation_id or timestamp)
    version  the broker's, such as '3.10' or (3, 13): header hashing and restarts depend on it

    A key is bytes or str; by header any value or `Field`; by timestamp whole seconds; None where missing.

    >>> HashRing([("q0", 1), ("q1", 2)]).route(b"key")
    'q1'
    """

    bindings: tuple[tuple[str, int], ...]
    by: str = "routing_key"
    version: tuple[int, ...] | None = None

    def __init__(
        self,
        bindings: Mapping[str, int] | Iterable[tuple[str, int]],
        by: str = "routing_key",
        version: str | tuple[int, ...] | None = None,
    ) -> None:
        known = None if version is None else check_version(version)
        if check_by(by).startswith("header:") and known is None:
            raise ConfigError("version", version, "the broker's: how a header is hashed changed with 3.13")
        object.__setattr__(self, "by", by)
        object.__setattr__(self, "version", known)
        object.__setattr__(self, "bindings", _check_bindings(bindings, known))

    @classmethod
    def from_state(
        cls, text: str, by: str = "routing_key", version: str | tuple[int, ...] | None = None
    ) -> HashRing:
        """The ring that `rabbitmq-diagnostics consistent_hash_exchange_ring_state` prints."""
        owners = {int(at): queue for at, queue in _STATE_LINE.findall(text)}
        weights = Counter(owners[at] for at in sorted(owners))
        in_turn = [queue for queue, weight in weights.items() for _ in range(weight)]
        if owners != dict(enumerate(in_turn)):
            raise ConfigError("text", text[:200], "a ring state in which each queue owns one run of buckets")
        return cls(weights, by, version)

    @property
    def queues(self) -> tuple[str, ...]:
        """The queues in ring order."""
        return tuple(queue for queue, _ in self.bindings)

    @property
    def weights(self) -> tuple[int, ...]:
        """Their weights, in the same order."""
        return tuple(weight for _, weight in self.bindings)

    @property
    def buckets(self) -> int:
        """The number of buckets: the sum of the weights."""
        return sum(self.weights)

    # Routing

    def route(self, key: object) -> str:
        """The queue that a message with this key goes to."""
        at = jump.bucket(Terms(self.by, self.version).hash(key), self.buckets)
        for queue, weight in self.bindings:
            at -= weight
            if at < 0:
                return queue
        raise AssertionError("a bucket beyond the ring")

    def route_many(self, keys: Any) -> NDArray[np.object_]:
        """The queue of every key of a list, a numpy array or an Arrow column."""
        return np.array(self.queues, np.object_).take(self.indices(keys))

    def indices(self, keys: Any) -> NDArray[np.int32]:
        """Like `route_many`, as positions in `queues`."""
        seeds = Terms(self.by, self.version).seeds(keys)
        return jump.bindings(seeds, self.weights).astype(np.int32)

    # What an operation makes of the ring

    def bind(self, queue: str, weight: int = 1) -> HashRing:
        """Append a queue's buckets at the end."""
        return replace(self, bindings=(*self.bindings, (queue, weight)))

    def unbind(self, queue: str) -> HashRing:
        """Remove a queue's buckets; all later buckets shift down."""
        if queue not in self.queues:
            raise ConfigError("queue", queue, "a queue of the ring: " + ", ".join(self.queues))
        if len(self.bindings) == 1:
            raise ConfigError("queue", queue, "not the last one: an empty ring drops every message")
        return replace(self, bindings=tuple(pair for pair in self.bindings if pair[0] != queue))

    def restart(self, store: str | None = None) -> HashRing:
        """Stop all of the broker and start it again.

        Mnesia holds the ring in memory only, and rebuilds it in the order of weight (as a string) and name.
        With more than one core it uses several workers, and some queue may be late: then read the ring with
        `from_state`, or set `default_worker_pool_size = 1` in rabbitmq.conf, which keeps the order.

        Khepri keeps the ring. Without `store`, brokers from 4.2 on are assumed to use it.
        """
        if store is None:
            store = "khepri" if self.version is not None and self.version >= KEEPS_ITS_RING else "mnesia"
        if store not in ("mnesia", "khepri"):
            raise ConfigError("store", store, "'mnesia' or 'khepri'")
        if store == "khepri":
            return self
        return replace(self, bindings=tuple(sorted(self.bindings, key=_recovery_order)))

    def upgrade(self, version: str | tuple[int, ...]) -> HashRing:
        """Stop the broker and start a newer one on its data."""
        known = check_version(version)
        if self.version is not None and known < self.version[: len(known)]:
            raise ConfigError("version", version, "no older than the ring's: a broker cannot go back")
        return replace(self.restart(), version=known)

    # What it costs

    def shares(self) -> dict[str, float]:
        """The exact share of all keys that each queue gets; it is close to its weight's share."""
        counts = np.bincount(jump.owners(self.weights), minlength=len(self.bindings))
        return {queue: int(count) / jump.SEEDS for queue, count in zip(self.queues, counts, strict=True)}

    def moved(self, other: HashRing, keys: Any = None) -> float:
        """The share of all keys, or of a sample, that goes to another queue in the other ring."""
        if keys is None:
            return sum(move.share for move in self.moves(other))
        before, after = self.route_many(keys), other.route_many(keys)
        return int(np.count_nonzero(before != after)) / len(before) if len(before) else 0.0

    def moves(self, other: HashRing) -> list[Move]:
        """The moves of keys between queues, largest share first: counted over all 2^21 seeds.

        If the two rings hash a key differently, as before and after an upgrade to 3.13 by header, its old and
        new places are independent, and a share is the product of both queues' shares.
        """
        if self._hashes_as(other):
            width = len(other.bindings)
            code = jump.owners(self.weights).astype(np.int64) * width + jump.owners(other.weights)
            pairs, counts = np.unique(code, return_counts=True)
            found = [
                Move(self.queues[pair // width], other.queues[pair % width], count / jump.SEEDS)
                for pair, count in zip(pairs.tolist(), counts.tolist(), strict=True)
            ]
        else:
            found = [Move(a, b, x * y) for a, x in self.shares().items() for b, y in other.shares().items()]
        moves = [move for move in found if move.source != move.target and move.share]
        return sorted(moves, key=lambda move: (-move.share, move.source, move.target))

    def skew(self, keys: Any, top: int = 10) -> Skew:
        """How a sample of keys falls on the queues, and its most frequent keys."""
        values = _values(keys)
        places = self.indices(values)
        counts = np.bincount(places, minlength=len(self.bindings))
        loads = tuple(
            Load(queue, weight, int(count), len(values) * weight / self.buckets)
            for (queue, weight), count in zip(self.bindings, counts, strict=True)
        )
        often = Counter(values).most_common(top)
        hot = tuple(HotKey(key, count, self.route(key)) for key, count in often if count > 1)
        return Skew(len(values), loads, hot)

    def _hashes_as(self, other: HashRing) -> bool:
        mine, theirs = Terms(self.by, self.version), Terms(other.by, other.version)
        return mine.by == theirs.by and mine.typed == theirs.typed


def buckets(keys: Any, n: int) -> NDArray[np.int32]:
    """The bucket, out of n, of every routing key in a column."""
    if not isinstance(n, int) or isinstance(n, bool) or not 1 <= n <= jump.MOST_BUCKETS:
        raise ConfigError("n", n, f"a whole number from 1 to {jump.MOST_BUCKETS}")
    return jump.buckets(Terms("routing_key", None).seeds(keys), n).astype(np.int32)


def _check_bindings(
    bindings: Mapping[str, int] | Iterable[tuple[str, int]], version: tuple[int, ...] | None
) -> tuple[tuple[str, int], ...]:
    try:
        pairs = bindings.items() if isinstance(bindings, Mapping) else bindings
        found = tuple((queue, weight) for queue, weight in pairs)
    except (TypeError, ValueError) as error:
        raise ConfigError("bindings", bindings, "pairs of queue and weight") from error
    if not found:
        raise ConfigError("bindings", bindings, "at least one queue: an empty ring drops every message")
    seen: dict[str, int] = {}
    for queue, weight in found:
        if not isinstance(queue, str) or not queue:
            raise ConfigError("queue", queue, "a queue's name")
        if queue in seen:
            raise ConfigError("queue", queue, "each queue once: the broker ignores a second binding")
        seen[queue] = _check_weight(weight, version)
    if sum(seen.values()) > jump.MOST_BUCKETS:
        raise ConfigError("bindings", bindings, f"weights that add up to {jump.MOST_BUCKETS} at most")
    return tuple(seen.items())


def _check_weight(weight: object, version: tuple[int, ...] | None) -> int:
    if not isinstance(weight, int) or isinstance(weight, bool) or weight < 1:
        raise ConfigError("weight", weight, "a whole number of at least 1")
    if version is not None and version >= WEIGHT_CAP and weight > MOST_WEIGHT:
        raise ConfigError("weight", weight, f"{MOST_WEIGHT} at most, on a broker from 4.2.6 on")
    return weight


def _recovery_order(binding: tuple[str, int]) -> tuple[str, bytes]:
    queue, weight = binding
    return str(weight), queue.encode("utf-8", "surrogateescape")


def _values(keys: Any) -> list[object]:
    if hasattr(keys, "to_pylist"):
        return list(keys.to_pylist())
    return list(keys.tolist()) if hasattr(keys, "tolist") else list(keys)
