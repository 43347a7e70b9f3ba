"""What Flow tells its driver to do. Each decision but Dispatch carries its reason."""

from __future__ import annotations

from typing import Any, Literal, NamedTuple


class Dispatch(NamedTuple):
    """Serve these messages of one lane, in this order; return it to `Flow.done` with the time it took."""

    lane: str
    messages: list[Any]
    estimate: int
    """What the lane was charged for them."""
    until: int | None = None
    """When the permits of its budget expire: it must begin before. None: never."""


class Shed(NamedTuple):
    """Settle a message that no worker will see: `return` puts it back into the queue, `drop` is final."""

    lane: str
    message: Any
    kind: Literal["return", "drop"]
    reason: str


class SetWindow(NamedTuple):
    """Ask the broker for another window.

    `resume` is None for a window that grows: consume again at once. For one that shrinks it is the number of
    unsettled messages at which to consume again: earlier, the old ones would come on top.
    """

    lane: str
    window: int
    reason: str
    epoch: int
    resume: int | None


class Probe(NamedTuple):
    """Look up the queue's depth, and answer with `Flow.probed`."""

    lane: str
    reason: str


class Ask(NamedTuple):
    """Fetch `short` permits of a budget, if possible, or return those that are no longer needed."""

    budget: str
    short: int


Decision = Shed | SetWindow | Probe | Ask
