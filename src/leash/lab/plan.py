"""What if: a description of queues, workers and network, and the effect of one setting in virtual time."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

from leash.errors import ConfigError
from leash.flow import Flow, Lane
from leash.lab.clock import AT_BROKER, Clock
from leash.lab.simulated_queues import Queue
from leash.lab.simulator import Pool
from leash.policies.exact_numbers import whole
from leash.units import MS, SECOND

BUSY = 0.99
"""A pool on queues that never run dry counts as fully used above this."""

KEPT_UP = 0.97
"""A setting keeps up with a queue's rate if this part of the messages was handled."""

_MESSAGES = 2000
"""Messages simulated per setting: after warming up, 99 % leaves 15 slower ones."""

_DEEP = 10**9


@dataclass(frozen=True)
class Stream:
    """One queue: messages per second (None: it never runs dry), ms of work, quanta to try."""

    name: str = "queue"
    work: float = 10.0
    rate: float | None = None
    quanta: tuple[int, ...] = (1,)
    spread: float = 0.0
    """The standard deviation of the work over its mean: 0 is fixed, 1 is exponential."""

    def __post_init__(self) -> None:
        _positive("work", self.work)
        if self.rate is not None:
            _positive("rate", self.rate)
        if not 0 <= self.spread <= 1:
            raise ConfigError("spread", self.spread, "a number from 0 (fixed) to 1 (exponential)")
        for quantum in self.quanta:
            whole("quantum", quantum, 1)


@dataclass(frozen=True)
class Plan:
    """The given values, and those to choose from. Times in ms."""

    streams: tuple[Stream, ...] = field(default_factory=lambda: (Stream(),))
    round_trip: float = 1.0
    windows: tuple[int, ...] = tuple(range(1, 65))
    workers: tuple[int, ...] = (1,)
    latency: float | None = None
    """99 % of messages must be faster: from publishing to the end of the work or, for a queue that never runs
    dry, from arrival to the beginning of the work."""

    def __post_init__(self) -> None:
        if not self.streams:
            raise ConfigError("queue", [], "at least one queue")
        if self.round_trip < 0:
            raise ConfigError("round_trip", self.round_trip, "ms, at least 0")
        for name, values in (("windows", self.windows), ("workers", self.workers)):
            if not values:
                raise ConfigError(name, values, "at least one number")
            for value in values:
                whole(name, value, 1, 65535)
        if self.latency is not None:
            _positive("latency", self.latency)

    def settings(self) -> Iterator[Setting]:
        quanta = product(*(stream.quanta for stream in self.streams))
        for chosen in quanta:
            for workers, window in product(self.workers, self.windows):
                yield Setting(workers, window, chosen)


class Setting(NamedTuple):
    workers: int
    window: int
    quanta: tuple[int, ...]


class Outcome(NamedTuple):
    """The effect of a setting: messages per second, percent busy, ms for the median and 99 % of messages."""

    setting: Setting
    throughput: float
    busy: float
    median: float
    slowest: float
    kept_up: bool


def try_out(plan: Plan, setting: Setting) -> Outcome:
    """Run a setting for long enough that every credit is used several times."""
    clock = Clock()
    flow = Flow(
        [
            Lane(stream.name, quantum, window=setting.window)
            for stream, quantum in zip(plan.streams, setting.quanta, strict=True)
        ],
        workers=setting.workers,
    )
    queues = [Queue(clock, stream.name, 0 if stream.rate else _DEEP) for stream in plan.streams]
    one_way = round(plan.round_trip * MS / 2)
    works = {stream.name: _works(stream) for stream in plan.streams}
    pool = Pool(clock, flow, queues, lambda lane, number: works[lane](number), up=one_way, down=one_way)
    span = _span(plan, setting)
    warm = span // 4
    for stream, queue in zip(plan.streams, queues, strict=True):
        if stream.rate:
            queue.born = []
            clock.at(0, AT_BROKER, _publish, clock, queue, stream.rate, Random(stream.name))
    clock.run(warm - 1)
    served, busy, finished = pool.total, pool.log.busy, len(pool.log.latencies)
    arrived = _arrived(plan, queues)
    clock.run(span - 1)
    return _outcome(plan, setting, pool, span - warm, warm, (served, busy, finished, arrived))


def _outcome(
    plan: Plan, setting: Setting, pool: Pool, span: int, warm: int, before: tuple[int, int, int, int]
) -> Outcome:
    served, busy, finished, arrived = before
    rated = any(stream.rate for stream in plan.streams)
    latencies = sorted(pool.log.latencies[finished:] if rated else pool.log.waits(warm)) or [0]
    used = (pool.log.busy - busy) / (span * setting.workers)
    if rated:
        came = _arrived(plan, [link.queue for link in pool.links.values()]) - arrived
        kept_up = len(latencies) >= KEPT_UP * came
    else:
        kept_up = used >= BUSY
    return Outcome(
        setting,
        (pool.total - served) * SECOND / span,
        100 * min(1.0, used),
        latencies[len(latencies) // 2] / MS,
        latencies[min(len(latencies) - 1, len(latencies) * 99 // 100)] / MS,
        kept_up,
    )


def meets(plan: Plan, outcome: Outcome) -> bool:
    return outcome.kept_up and (plan.latency is None or outcome.slowest <= plan.latency)


def cheapest(plan: Plan, outcomes: Sequence[Outcome]) -> Outcome | None:
    """The setting that meets the goals with the fewest workers, then the least credit, then the least
    latency.
    """
    good = [outcome for outcome in outcomes if meets(plan, outcome)]
    return min(good, key=lambda each: (each.setting[:2], each.slowest, each.setting.quanta), default=None)


def _span(plan: Plan, setting: Setting) -> int:
    """Ns of virtual time: every credit is used several times, or enough messages arrive to see 1 in 100."""
    works = [stream.work for stream in plan.streams]
    rates = [stream.rate for stream in plan.streams if stream.rate]
    if rates:
        return round(max(20 * plan.round_trip, _MESSAGES * 1000 / sum(rates)) * MS)
    pace = sum(works) / len(works) / setting.workers
    wanted = max(20 * plan.round_trip, 5 * setting.window * pace, 400 * pace)
    return round(max(min(wanted, _MESSAGES * pace), 8 * (plan.round_trip + max(works))) * MS)


def _arrived(plan: Plan, queues: Sequence[Queue]) -> int:
    return sum(queue.published for stream, queue in zip(plan.streams, queues, strict=True) if stream.rate)


def _publish(clock: Clock, queue: Queue, rate: float, random: Random) -> None:
    queue.publish()
    gap = round(random.expovariate(rate) * SECOND)
    clock.at(clock.now + gap, AT_BROKER, _publish, clock, queue, rate, random)


def _works(stream: Stream) -> Any:
    """The n-th message's work in ns: a mean with an exponential part, the same in every run."""
    mean = stream.work * MS
    if not stream.spread:
        fixed = round(mean)
        return lambda _: fixed
    known: list[int] = []
    random = Random(f"{stream.name} work")

    def work(number: int) -> int:
        while len(known) <= number:
            varied = random.expovariate(1.0)
            known.append(max(1, round(mean * (1 - stream.spread + stream.spread * varied))))
        return known[number]

    return work


# --- descriptions ---


def load(path: Path) -> Plan:
    """Read TOML: round_trip, latency, windows and workers at the top, a [[queue]] table for each queue."""
    try:
        given = tomllib.loads(path.read_text())
    except (OSError, tomllib.TOMLDecodeError) as error:
        raise ConfigError("plan", str(path), f"a TOML file ({error})") from None
    tables = given.pop("queue", [])
    _known("plan", given, ("round_trip", "latency", "windows", "workers"))
    chosen: dict[str, Any] = {}
    for key, value in given.items():
        chosen[key] = numbers(key, value) if key in ("windows", "workers") else _float(key, value)
    return Plan(tuple(stream(table) for table in tables), **chosen)


def stream(table: Mapping[str, Any]) -> Stream:
    """A queue's description: name, work, rate, quantum (or several), spread."""
    _known("queue", table, ("name", "work", "rate", "quantum", "spread"))
    fields = {key: value for key, value in table.items() if key != "quantum"}
    for key in ("work", "rate", "spread"):
        if key in fields:
            fields[key] = _float(key, fields[key])
    if "quantum" in table:
        fields["quanta"] = numbers("quantum", table["quantum"])
    return Stream(**fields)


def numbers(argument: str, given: object) -> tuple[int, ...]:
    """4, "1-64", "1,2,8" or a list of whole numbers."""
    if isinstance(given, list):
        return tuple(number for each in given for number in numbers(argument, each))
    try:
        found: list[int] = []
        for part in str(given).split(","):
            first, _, last = part.partition("-")
            found += range(int(first), int(last or first) + 1)
    except ValueError:
        raise ConfigError(argument, given, 'whole numbers like 4, "1-64" or "1,2,8"') from None
    return tuple(found)


def _known(argument: str, given: Mapping[str, Any], names: tuple[str, ...]) -> None:
    for name in given:
        if name not in names:
            raise ConfigError(argument, name, f"one of {', '.join(names)}")


def _float(argument: str, value: object) -> float:
    try:
        return float(str(value))
    except ValueError:
        raise ConfigError(argument, value, "a number") from None


def _positive(argument: str, value: float) -> None:
    if not value > 0:
        raise ConfigError(argument, value, "a number above 0")
