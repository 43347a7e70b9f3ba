"""tenants: a hundred, one of them noisy by count, then by slowness; one FIFO against lanes by tenant."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import NamedTuple

from leash.flow import Flow, Lane
from leash.lab.clock import AT_BROKER, Clock
from leash.lab.figures import Claim, Experiment, Progress, Run
from leash.lab.simulated_queues import Queue
from leash.lab.simulator import Pool
from leash.policies.ring import HashRing
from leash.units import MS, SECOND

TENANTS, LANES, WORKERS = 100, 64, 4
SERVICE = 8 * MS
SLOWER = 50
SPAN = 10 * SECOND
LEARNT = SECOND
"""Figures count from here on: how slow a lane is shows when its first messages are done."""

QUIET_RATE = 100
"""Messages per second of the 99 quiet tenants together: a fifth of what the workers can do."""

OVERLOAD = 2
"""The noisy tenant alone wants this many times what the workers can do."""

NOISY = "acme"
OWN = "jobs.own-00"
NAMES = [f"tenant {number}" for number in range(1, TENANTS)]
_SEED = 17


class Kind(NamedTuple):
    """A way to be noisy: the time that its messages take, and messages per second."""

    name: str
    service: int
    rate: float


_CAPACITY = WORKERS * SECOND / SERVICE
KINDS = (
    Kind("by count", SERVICE, OVERLOAD * _CAPACITY - QUIET_RATE),
    Kind("by slowness", SLOWER * SERVICE, OVERLOAD * _CAPACITY / SLOWER),
)
WAYS = ("without it", "one FIFO", "Leash", "Leash, isolated")


class Sent(NamedTuple):
    """A message: when it is published, and whose it is."""

    at: int
    tenant: str


class Done(NamedTuple):
    """A message that was done: the same, and how long that took from publishing."""

    at: int
    tenant: str
    took: int


def load(kind: Kind, noisy: bool) -> list[Sent]:
    """All messages in order. Arrivals are random, and the same in every run."""
    found = [Sent(at, tenant) for at, tenant in _quiet()]
    if noisy:
        found += [Sent(at, NOISY) for at in _arrivals(kind.rate, _SEED)]
    return sorted(found)


def lane_of(way: str) -> Callable[[str], str]:
    """In which queue a tenant's messages are."""
    if way in ("one FIFO", "without it"):
        return lambda _: "jobs"
    ring = HashRing([(f"jobs.lane-{number:03}", 1) for number in range(LANES)], "header:tenant", (4, 3))
    lanes = {tenant: ring.route(tenant) for tenant in (*NAMES, NOISY)}
    if way == "Leash, isolated":
        lanes[NOISY] = OWN
    return lanes.__getitem__


def neighbours() -> frozenset[str]:
    """The quiet tenants in the noisy one's lane."""
    lane = lane_of("Leash")
    return frozenset(name for name in NAMES if lane(name) == lane(NOISY))


def simulate(progress: Progress, _: int) -> Run:
    run = Run()
    for number, (kind, way) in enumerate((kind, way) for kind in KINDS for way in WAYS):
        fill(run, kind, way, _simulated(kind, way))
        progress((number + 1) / len(KINDS) / len(WAYS))
    return run


def fill(run: Run, kind: Kind, way: str, done: list[Done]) -> None:
    """The figures of one of the runs: the latency of quiet tenants, in ms."""
    beside = neighbours() if way == "Leash" else frozenset()
    quiet = [each for each in done if each.tenant != NOISY]
    counted = [each for each in quiet if each.at >= LEARNT]
    apart = [each.took for each in counted if each.tenant not in beside]
    run.values[f"{kind.name}: {way}"] = percentile(apart) / MS
    if beside:
        within = [each.took for each in counted if each.tenant in beside]
        run.values[f"{kind.name}: {way}, in its lane"] = percentile(within) / MS
    if way == "Leash, isolated":
        base = run.values[f"{kind.name}: without it"]
        run.values[f"{kind.name}: ratio"] = run.values[f"{kind.name}: {way}"] / base
    points = [(each.at / SECOND, each.took / MS) for each in quiet]
    run.series.setdefault(kind.name, {})[way] = points


def percentile(values: list[int], part: float = 0.99) -> float:
    """The value below which that part of them is."""
    ranked = sorted(values)
    return float(ranked[min(len(ranked) - 1, int(part * len(ranked)))]) if ranked else 0.0


def _simulated(kind: Kind, way: str) -> list[Done]:
    clock = Clock()
    lane = lane_of(way)
    sent = load(kind, way != "without it")
    names = sorted({lane(each.tenant) for each in sent})
    queues = {name: Queue(clock, name) for name in names}
    held: dict[str, list[Sent]] = {name: [] for name in names}
    done: list[Done] = []

    def publish(message: Sent) -> None:
        held[lane(message.tenant)].append(message)
        queues[lane(message.tenant)].publish()

    def service(name: str, number: int) -> int:
        at, tenant = held[name][number]
        takes = kind.service if tenant == NOISY else SERVICE
        done.append(Done(at, tenant, clock.now + takes - at))
        return takes

    for message in sent:
        clock.at(message.at, AT_BROKER, publish, message)
    flow = Flow(
        [Lane(name) for name in names],
        workers=WORKERS,
        cost="time",
        quiet_first=way.startswith("Leash"),
        buffer_messages=20_000,
    )
    Pool(clock, flow, queues.values(), service, up=MS // 2, down=MS // 2, detail=False)
    clock.run(SPAN)
    return done + [Done(*each, SPAN - each.at) for each in _left(held, done)]


def _left(held: dict[str, list[Sent]], done: list[Done]) -> Iterator[Sent]:
    """What is still waiting at the end counts with the time that it has waited."""
    seen = {(each.at, each.tenant) for each in done}
    return (each for sent in held.values() for each in sent if (each.at, each.tenant) not in seen)


def _quiet() -> Iterator[tuple[int, str]]:
    pick = random.Random(_SEED + 1)
    return ((at, pick.choice(NAMES)) for at in _arrivals(QUIET_RATE, _SEED + 2))


def _arrivals(rate: float, seed: int) -> Iterator[int]:
    chance = random.Random(seed)
    at = 0
    while (at := at + round(chance.expovariate(rate) * SECOND)) < SPAN:
        yield at


def _claims() -> list[Claim]:
    found = []
    for kind in KINDS:
        for way in WAYS:
            least = 3000 if way == "one FIFO" else 0
            found.append(Claim(f"{kind.name}: {way}", "ms", None, least, SPAN / MS, compare=False))
            if way == "Leash":
                found.append(
                    Claim(f"{kind.name}: {way}, in its lane", "ms", None, 0, SPAN / MS, compare=False)
                )
        found.append(Claim(f"{kind.name}: ratio", "x", None, 0, 2, compare=False))
    return found


EXPERIMENT = Experiment(
    "tenants",
    "A noisy tenant and ninety-nine quiet ones",
    f"{WORKERS} workers. The quiet tenants send {QUIET_RATE} messages per second in all, {SERVICE // MS} ms "
    f"of work each. The noisy one wants {OVERLOAD} times what the workers can do: with messages like the "
    f"others', then with few that take {SLOWER} times as long. The figures are the p99 of the quiet tenants' "
    f"latency, from publishing to the end of the work; with Leash, in {LANES} lanes and by time. The first "
    "second does not count.",
    _claims(),
    simulate,
    "In one FIFO the quiet tenants wait for the noisy one's backlog; in lanes they wait hardly longer"
    " than without it.",
)
