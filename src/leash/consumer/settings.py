"""A consumer's arguments, checked before anything is consumed. Arguments are in seconds, settings in ns."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass, field
from typing import Literal, get_args

from leash.amqp.uri import Uri
from leash.consumer.breaker_settings import Breaker, checked_breaker
from leash.consumer.costs import Costs, header_cost
from leash.consumer.raw_delivery import REDELIVERED, Raw
from leash.consumer.retry import Retry
from leash.errors import ConfigError
from leash.fleet import Budget
from leash.flow import Flow, Lane, Purse
from leash.flow.flow import Cost
from leash.policies.exact_numbers import Number, per_second, whole
from leash.policies.permits import Permits
from leash.policies.shed import Mode
from leash.policies.window.credit import MOST
from leash.units import nanoseconds

BUFFER_MESSAGES = 20_000
BUFFER_BYTES = 32 * 1024 * 1024
"""Default limits for what is buffered or in flight, over all queues."""

OnExhausted = Literal["park", "reject", "discard"]


def text(argument: str, value: str, allowed: str, least: int = 1, most: int | None = None) -> str:
    """Check a string's length in UTF-8; a lone surrogate cannot be encoded."""
    try:
        size = len(value.encode())
    except (AttributeError, UnicodeEncodeError):
        size = -1
    if not isinstance(value, str) or size < least or (most is not None and size > most):
        raise ConfigError(argument, value, allowed)
    return value


def one_of(argument: str, value: object, allowed: tuple[str, ...], why: str = "") -> None:
    """Check that a value is one of a few words."""
    if value not in allowed:
        raise ConfigError(argument, value, f"one of {', '.join(allowed)}{why}")


def flag(argument: str, value: object) -> None:
    """Check a switch."""
    if not isinstance(value, bool):
        raise ConfigError(argument, value, "True or False")


@dataclass(frozen=True, slots=True)
class Queue:
    """A queue to consume, and its share of the workers. Leash declares it only if `declare` says so.

    Arguments:
        name: The queue's name.
        quantum: Its share: messages (or units of cost) per round. Default: 1.
        tier: 0 (the default) is served first; a higher tier only when no lower one has work to serve.
        rate: Messages per second that go to workers, in this process only. For a limit over all processes
            use `budget`. Default: None, no limit.
        burst: How many messages may go to workers at once after a pause. Default: 1. Needs a rate.
        budget: A `Budget`, shared with every process that names it. Each message of this queue needs a
            permit from it. Default: None.
        window: How many messages the broker may send ahead (AMQP's prefetch). "auto" (the default) adapts
            it; a number fixes it. With `ordered` or `exclusive` it is always fixed, to 16 by default.
        shed: What to do about a standing delay in the buffer: "observe" counts it, "shrink" (the default)
            makes the window smaller, "return" returns messages to the queue, "drop" rejects those past
            their deadline.
        target: Seconds in the buffer above which a wait counts as a delay. Default: 0.005.
        interval: Seconds after which a delay counts as standing. Default: 0.1.
        deadline: Seconds after which a message is too old to be handled. Default: None. `shed="drop"` needs
            it.
        ordered: One message at a time and in order, for queues with a single active consumer; a failing
            message is tried again in place. Default: False.
        exclusive: Refuse other consumers of this queue; not for quorum queues, where it excludes nobody.
            Default: False.
        delivery_limit: How often the broker delivers a message before it drops it. Default: None, which
            asks the broker. Give it if a policy sets it, or if this user lacks the configure permission.
        breaker: A `Breaker`, which slows the queue to single probes while its handler fails again and again.
            Default: None, the consumer's.
        kind: The type of its dead queue, "classic" or "quorum". "auto" (the default): the queue's own type,
            or classic if that is not known.
        declare: Create the queue, durable, if it does not exist: "classic", "quorum", or True for the virtual
            host's default type. An existing one is used as it is. Default: False.
    """

    name: str
    quantum: int = 1
    _: KW_ONLY
    tier: int = 0
    rate: Number | None = None
    burst: int | None = None
    budget: Budget | None = None
    window: int | Literal["auto"] = "auto"
    shed: Mode = "shrink"
    target: float = 0.005
    interval: float = 0.1
    deadline: float | None = None
    ordered: bool = False
    exclusive: bool = False
    delivery_limit: int | None = None
    breaker: Breaker | None = None
    kind: Literal["auto", "classic", "quorum"] = "auto"
    declare: bool | Literal["classic", "quorum"] = False

    def __post_init__(self) -> None:
        text("name", self.name, "a queue's name, of 1 to 255 bytes", most=255)
        whole("quantum", self.quantum, 1)
        whole("tier", self.tier, 0)
        if self.rate is not None:
            per_second("rate", self.rate)
        elif self.burst is not None:
            raise ConfigError("burst", self.burst, f"a rate with it, for queue {self.name!r}")
        if self.burst is not None:
            whole("burst", self.burst, 1)
        if self.budget is not None and not isinstance(self.budget, Budget):
            raise ConfigError("budget", self.budget, f"a Budget, for queue {self.name!r}")
        if self.window != "auto":
            whole("window", self.window, 1, MOST)
        if self.delivery_limit is not None:
            whole("delivery_limit", self.delivery_limit, 1)
        one_of("shed", self.shed, get_args(Mode))
        if self.shed == "drop" and self.deadline is None:
            raise ConfigError("deadline", None, "seconds: dropping loses messages, so it needs a deadline")
        one_of("kind", self.kind, ("auto", "classic", "quorum"))
        if not isinstance(self.declare, bool) and self.declare not in ("classic", "quorum"):
            raise ConfigError("declare", self.declare, "True, False, 'classic' or 'quorum'")
        flag("ordered", self.ordered)
        flag("exclusive", self.exclusive)
        checked_breaker(self.breaker)
        if self.deadline is not None:
            nanoseconds("deadline", self.deadline)
        if nanoseconds("target", self.target) > nanoseconds("interval", self.interval):
            raise ConfigError("target", self.target, f"at most the interval, {self.interval:g} s")

    @property
    def sole(self) -> bool:
        return self.ordered or self.exclusive

    @property
    def in_place(self) -> bool:
        """True if a failing message is tried again in place, and not by way of a retry queue."""
        return self.ordered

    def lane(self, budget: Budget | None = None) -> Lane:
        """The lane for this queue; `budget` is the consumer's."""
        return Lane(
            self.name,
            self.quantum,
            self.tier,
            self.rate,
            1 if self.burst is None else self.burst,
            None if self.window == "auto" else self.window,
            self.shed,
            max(1, nanoseconds("target", self.target)),
            max(1, nanoseconds("interval", self.interval)),
            None if self.deadline is None else max(1, nanoseconds("deadline", self.deadline)),
            self.delivery_limit,
            self.ordered,
            self.sole,
            tuple([each.name for each in dict.fromkeys((self.budget, budget)) if each is not None]),
        )


def queues_of(asked: object) -> list[Queue]:
    """A consumer's `queues` argument, as a list of `Queue`s."""
    allowed = "a list of names and Queues"
    if isinstance(asked, str | bytes | Mapping):  # iterable, but not as meant
        raise ConfigError("queues", asked, allowed)
    try:
        queues = list(asked)  # type: ignore[call-overload]
    except TypeError:
        raise ConfigError("queues", asked, allowed) from None
    for queue in queues:
        if not isinstance(queue, str | Queue):
            raise ConfigError("queues", queue, allowed)
    return [Queue(queue) if isinstance(queue, str) else queue for queue in queues]


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """A consumer's arguments, checked."""

    uri: Uri
    queues: list[Queue]
    workers: int
    retry: Retry
    on_exhausted: OnExhausted
    cost: Cost
    costs: Costs | None
    rate: Number | None
    burst: int
    budget: Budget | None
    guaranteed: Mapping[int, int] | None
    buffer_messages: int | None
    buffer_bytes: int
    drain: int
    """In ns."""
    consumer_timeout: float
    name: str
    retries: Mapping[str, Retry] = field(default_factory=dict)
    """Of queues that have their own."""
    breaker: Breaker | None = None
    """Of queues that have none of their own."""
    sharing: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """The queues that share a handler with a queue, unless it is the handler for all."""
    quiet_first: bool = False
    """A lane that wakes up is served ahead of the others."""
    stream_port: int | None = None
    load_balancer: bool = False

    def __post_init__(self) -> None:
        one_of("on_exhausted", self.on_exhausted, get_args(OnExhausted))
        if self.budget is not None and not isinstance(self.budget, Budget):
            raise ConfigError("budget", self.budget, "a Budget")
        nanoseconds("consumer_timeout", self.consumer_timeout)

    def known(self, queue: str) -> str:
        """`queue`, if it is one of them."""
        names = [each.name for each in self.queues]
        if queue not in names:
            raise ConfigError("queue", queue, f"one of {', '.join(map(repr, names))}")
        return queue

    def retry_of(self, queue: str) -> Retry:
        return self.retries.get(queue, self.retry)

    def breaker_of(self, queue: Queue) -> Breaker | None:
        return self.breaker if queue.breaker is None else queue.breaker

    def flow(self, batch: int = 1) -> Flow:
        """A Flow with these settings; `batch` is the number of messages in all workers' batches together."""
        messages = self.buffer_messages
        return Flow(
            [queue.lane(self.budget) for queue in self.queues],
            workers=self.workers,
            rate=self.rate,
            burst=self.burst,
            cost=self.cost,
            guaranteed=self.guaranteed,
            redelivered=_redelivered,
            buffer_messages=max(BUFFER_MESSAGES, 2 * batch) if messages is None else messages,
            buffer_bytes=self.buffer_bytes,
            batch=batch,
            shared=[
                Purse(
                    budget.name,
                    Permits(held=budget.at_once is not None),
                    budget.size,
                    None if budget.cost == "count" else header_cost(budget.cost.removeprefix("header:")),
                )
                for budget in self.budgets
            ],
            quiet_first=self.quiet_first,
        )

    @property
    def budgets(self) -> list[Budget]:
        """All budgets, each once."""
        known: dict[str, Budget] = {}
        for budget in (self.budget, *[queue.budget for queue in self.queues]):
            if budget is not None and known.setdefault(budget.name, budget) != budget:
                raise ConfigError("budget", budget.name, "the same numbers wherever one consumer names it")
        return list(known.values())


def _redelivered(raw: Raw) -> bool:
    return raw[REDELIVERED]
