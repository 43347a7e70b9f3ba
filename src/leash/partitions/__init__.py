"""Partitions: one flow of messages over several queues by key: work is parallel, and each key in order."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from leash.partitions.layout import Layout
    from leash.partitions.partitions import Partitions, check, read, remind
    from leash.partitions.plan import Plan
else:

    def __getattr__(name: str) -> object:
        # The command line starts without numpy.
        if name in __all__:
            from leash.partitions import partitions

            return getattr(partitions, name)
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


__all__ = ["Layout", "Partitions", "Plan", "check", "read", "remind"]
