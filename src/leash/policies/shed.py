"""What a verdict of CoDel does: shrink the window first, return messages second, drop them last.

A nack is not a drop: it frees a credit, and the broker fills it at once, often with the same message. So a
return needs another consumer to take the message, happens only once per message, and is paid for by acks; a
drop needs a deadline that the user set.
"""

from __future__ import annotations

from typing import Literal, NamedTuple, get_args

from leash.errors import ConfigError
from leash.policies.exact_numbers import whole

Mode = Literal["observe", "shrink", "return", "drop"]
Kind = Literal["none", "signal", "return", "drop"]

ACKS_PER_RETURN = 20
"""Returns stay within 5 % of acks."""

_SAVED = 50 * ACKS_PER_RETURN
"""The most acks that are saved up: after a quiet day, 50 returns in a row and not a flood."""


class Action(NamedTuple):
    """`return` and `drop` concern the message that was judged; both signal the window, too."""

    kind: Kind
    reason: str


class Shedder:
    """One lane's ladder; `mode` is the last rung that may be used.

    `sole` is set for single active and exclusive consumers: a message that they return comes back to them.
    `deadline` is the age in ns above which the user would rather lose a message than handle it.
    """

    __slots__ = ("_acks", "deadline", "delivery_limit", "done", "mode", "sole")

    def __init__(
        self,
        mode: Mode = "shrink",
        *,
        sole: bool = False,
        delivery_limit: int | None = None,
        deadline: int | None = None,
    ) -> None:
        if mode not in get_args(Mode):
            raise ConfigError("mode", mode, "one of observe, shrink, return, drop")
        if mode == "drop" and deadline is None:
            raise ConfigError("mode", mode, "drop loses messages, so it needs a deadline")
        self.mode = mode
        self.sole = sole
        self.delivery_limit = None if delivery_limit is None else whole("delivery_limit", delivery_limit, 0)
        self.deadline = None if deadline is None else whole("deadline", deadline, 1)
        self.done: dict[Kind, int] = {"none": 0, "signal": 0, "return": 0, "drop": 0}
        """Verdicts by their consequence."""
        self._acks = 0

    def acked(self, count: int = 1) -> None:
        """Acks pay for returns."""
        acks = self._acks + count
        self._acks = acks if acks < _SAVED else _SAVED

    def decide(
        self,
        verdict: bool,
        *,
        consumers: int = 1,
        redelivered: bool = False,
        deliveries: int = 0,
        age: int = 0,
    ) -> Action:
        """What to do about one message: the head that was judged, or one beyond the window after a signal.

        `consumers` counts all of the queue's consumers, including this one; `deliveries` is the message's
        delivery count so far.
        """
        if not verdict:
            return Action("none", "the delay is not standing")
        action = self._climb(consumers, redelivered, deliveries, age)
        self.done[action.kind] += 1
        if action.kind == "return":
            self._acks -= ACKS_PER_RETURN
        return action

    def _climb(self, consumers: int, redelivered: bool, deliveries: int, age: int) -> Action:
        if self.mode == "observe":
            return Action("none", "standing delay, observed only")
        if self.mode == "shrink":
            return Action("signal", "standing delay: shrink the window")
        if self.mode == "drop" and self.deadline is not None and age >= self.deadline:
            return Action("drop", "standing delay, and past its deadline")
        obstacle = self._obstacle(consumers, redelivered, deliveries)
        if obstacle is not None:
            return Action("signal", f"standing delay; not returned: {obstacle}")
        return Action("return", "standing delay, and others consume this queue")

    def _obstacle(self, consumers: int, redelivered: bool, deliveries: int) -> str | None:
        if self.sole:
            return "a single-active or exclusive consumer would get it again"
        if consumers < 2:
            return "nobody else consumes this queue"
        if redelivered:
            # The flag outlives us and reaches every consumer, so only it can prove "once".
            return "it was delivered before, and each message is returned once"
        if self.delivery_limit is not None and deliveries + 1 >= self.delivery_limit:
            return f"it nears the delivery limit of {self.delivery_limit}"
        if self._acks < ACKS_PER_RETURN:
            return "returns are limited to 5 % of acks"
        return None
