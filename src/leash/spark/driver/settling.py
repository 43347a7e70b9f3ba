"""Settling a finished batch: what was really read, before the next one is planned."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from leash.spark.offsets import Plan, Split, splits_of
from leash.spark.staging import notes, paths, seals
from leash.spark.staging.files import Files
from leash.spark.staging.seals import Seal

Each = Callable[..., Iterable[Any]]
"""`map`, or a parallel version of it."""


@dataclass(frozen=True, slots=True)
class Settled:
    """The result of a batch: one seal per split, in order, and whether the broker got every ack."""

    splits: tuple[Split, ...]
    seals: tuple[Seal, ...]
    acked: bool
    returned: tuple[tuple[str, int], ...] = ()
    """See `Plan.returned`, after this batch."""

    def pairs(self) -> Iterable[tuple[Split, Seal]]:
        return zip(self.splits, self.seals, strict=True)


def settle(files: Files, plan: Plan, each: Each = map) -> Settled:
    """Close the batch before the next is planned: splits that were not read can no longer be read."""
    splits = tuple(splits_of(plan))

    def close(split: Split) -> Seal:
        found = seals.read_seal(files, split.seal_path)
        if found is None and split.adopted:
            return Seal(attempt="gone", void=True)
        return found if found is not None else seals.void_seal(files, split.seal_path)

    found = tuple(each(close, splits))
    names = {f"{plan.folder}/{name}" for name in files.names(plan.folder)} if plan.seen is not None else set()
    returned: dict[str, int | None] = dict(plan.returned)
    returned |= {split.queue: notes.left_behind(files, split) for split in splits if split.limbo}
    acked = all(
        seal.void or not seal.rows or paths.acked(plan.folder, split.index) in names
        for split, seal in zip(splits, found, strict=True)
    )
    known = tuple((queue, count) for queue, count in returned.items() if count is not None)
    return Settled(splits, found, acked, known)
