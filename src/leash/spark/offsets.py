"""An end offset holds the whole plan of its batch: what to read depends on it alone, even if the options
have changed."""

from __future__ import annotations

import secrets
from dataclasses import dataclass, field
from typing import Any

from leash.errors import OffsetError
from leash.spark.staging import paths

VERSION = 1


@dataclass(frozen=True, slots=True)
class Seen:
    """A finished batch whose rows may still be redelivered as copies."""

    folder: str
    """The batch's folder, or the path of one seal in another run's folder."""
    at: int
    rows: int
    kept: bool = False
    """True if its acknowledgements are in doubt: then an unbroken connection does not retire it."""


@dataclass(frozen=True, slots=True)
class Plan:
    """A batch. `splits` are (queue index, grant); `adopted` are paths of seals made for other batches."""

    run: str
    seq: int
    nonce: str = ""
    queues: tuple[str, ...] = ()
    splits: tuple[tuple[int, int], ...] = ()
    adopted: tuple[str, ...] = ()
    spent: tuple[str, ...] = ()
    ordered: bool = False
    exclusive: tuple[str, ...] = ()
    """Queues whose order an exclusive consumer guards; the others have a single active one."""
    limbo: tuple[str, ...] = ()
    """Ordered queues that count deliveries: messages redelivered too often wait in their limbo."""
    returned: tuple[tuple[str, int], ...] = ()
    """How many messages of a queue with a limbo may have been returned, if known."""
    seen: tuple[Seen, ...] | None = None
    state: dict[str, Any] = field(default_factory=dict)

    @property
    def folder(self) -> str:
        return paths.batch(self.run, self.seq, self.nonce)

    def to_json(self) -> dict[str, Any]:
        return {
            "version": VERSION,
            "run": self.run,
            "seq": self.seq,
            "nonce": self.nonce,
            "queues": list(self.queues),
            "splits": [list(split) for split in self.splits],
            "adopted": list(self.adopted),
            "spent": list(self.spent),
            "ordered": self.ordered,
            "exclusive": list(self.exclusive),
            "limbo": list(self.limbo),
            "returned": dict(self.returned),
            "seen": None if self.seen is None else [[s.folder, s.at, s.rows, s.kept] for s in self.seen],
            "state": self.state,
        }

    @staticmethod
    def from_json(offset: dict[str, Any]) -> Plan:
        if offset.get("version") != VERSION:
            raise OffsetError(
                f"the checkpoint holds a version {offset.get('version')!r} offset; this is version {VERSION}"
            )
        return Plan(
            run=offset["run"],
            seq=offset["seq"],
            nonce=offset["nonce"],
            queues=tuple(offset["queues"]),
            splits=tuple((queue, grant) for queue, grant in offset["splits"]),
            adopted=tuple(offset["adopted"]),
            spent=tuple(offset["spent"]),
            ordered=offset["ordered"],
            exclusive=tuple(offset["exclusive"]),
            limbo=tuple(offset.get("limbo", ())),
            returned=tuple(offset.get("returned", {}).items()),
            seen=None if offset["seen"] is None else tuple(Seen(*seen) for seen in offset["seen"]),
            state=offset["state"],
        )


@dataclass(frozen=True, slots=True)
class Split:
    """One task's share. Either a queue and a grant, or an adopted seal."""

    run: str
    seq: int
    folder: str
    index: int
    queue: str = ""
    grant: int = 0
    ordered: bool = False
    exclusive: bool = False
    limbo: bool = False
    window: int | None = None
    """Large enough for all messages that may have been returned. None if their number is unknown."""
    adopted: str = ""
    seen: tuple[str, ...] | None = None
    """Folders whose rows are remembered; None without deduplication."""

    @property
    def seal_path(self) -> str:
        return self.adopted or paths.seal(self.folder, self.index)


def first_plan() -> Plan:
    """The offset before the first batch of a new run."""
    return Plan(run=secrets.token_hex(8), seq=0)


def splits_of(plan: Plan) -> list[Split]:
    """The batch's splits, in order."""
    seen = None if plan.seen is None else tuple(s.folder for s in plan.seen)
    returned = dict(plan.returned)
    new = []
    for index, (number, grant) in enumerate(plan.splits):
        queue = plan.queues[number]
        new.append(
            Split(
                plan.run,
                plan.seq,
                plan.folder,
                index,
                queue,
                grant,
                plan.ordered,
                exclusive=queue in plan.exclusive,
                limbo=queue in plan.limbo,
                window=max(grant, returned[queue]) if queue in returned else None,
                seen=seen,
            )
        )
    return new + [
        Split(plan.run, plan.seq, plan.folder, len(new) + number, adopted=path)
        for number, path in enumerate(plan.adopted)
    ]


def splits_between(start: Plan, end: Plan) -> list[Split]:
    """The splits of `end`, if it directly follows `start`.

    The run is taken from `end`: a restarted first batch makes a new start.
    """
    if start == end:
        return []
    follows = end.seq == start.seq + 1 if end.run == start.run else end.seq == 1
    if not follows:
        raise OffsetError(
            f"batch {end.seq} of run {end.run} does not follow batch {start.seq} of run {start.run}: "
            "offsets were skipped or mixed; restore the checkpoint, or start a new one"
        )
    return splits_of(end)
