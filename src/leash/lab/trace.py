"""Records the simulator's calls of a Flow, and replays them: the same calls must get the same answers.

Recorded are arrivals, completed work, probes, takes and ticks; not changes at run time, such as a pause or
another rate. A trace is JSON lines: the settings, then one call with its answer per line. So a simulated run
can be kept in a file and replayed, call by call, on another version.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict
from fractions import Fraction
from pathlib import Path
from typing import Any, NamedTuple

from leash.errors import ConfigError
from leash.flow import Decision, Dispatch, Flow, Lane

RECORDED = ("arrive", "done", "probed", "take", "tick")


class Call(NamedTuple):
    """One call of a Flow's method: what it returned, and the decisions that it made."""

    method: str
    arguments: tuple[Any, ...]
    answer: list[Dispatch] | None
    decisions: list[Decision]


class Recorder:
    """Stands in for a Flow, and records calls and answers."""

    def __init__(self, flow: Flow) -> None:
        self.flow = flow
        self.calls: list[Call] = []
        self._wrapped = {name: getattr(flow, name) for name in RECORDED}

    def arrive(
        self,
        now: int,
        lane: str,
        messages: list[Any],
        costs: Iterable[int] | None = None,
        ages: Iterable[int] | None = None,
        epoch: int | None = None,
        size: int | None = None,
    ) -> None:
        given = None if costs is None else list(costs)
        born = None if ages is None else list(ages)
        self._call("arrive", now, lane, list(messages), given, born, epoch, size)

    def done(self, now: int, dispatches: list[Dispatch], services: list[int]) -> None:
        self._call("done", now, list(dispatches), list(services))

    def probed(self, now: int, lane: str, ready: int, consumers: int, round_trip: int) -> None:
        self._call("probed", now, lane, ready, consumers, round_trip)

    def take(self, now: int, most: int | None = None, since: int | None = None) -> list[Dispatch]:
        answer = self._call("take", now, most, since)
        assert answer is not None
        return answer

    def tick(self, now: int) -> None:
        self._call("tick", now)

    def _call(self, method: str, *arguments: Any) -> list[Dispatch] | None:
        before = len(self.flow.decisions)
        answer: list[Dispatch] | None = self._wrapped[method](*arguments)
        self.calls.append(Call(method, arguments, answer, self.flow.decisions[before:]))
        return answer


class Difference(NamedTuple):
    """The first call with another answer."""

    position: int
    method: str
    recorded: Any
    replayed: Any


def replay(calls: Iterable[Call], flow: Flow) -> Difference | None:
    """Make the same calls on a fresh Flow; None if every answer is the same."""
    for index, (method, arguments, answer, decisions) in enumerate(calls):
        flow.decisions.clear()
        again = getattr(flow, method)(*arguments)
        if again != answer:
            return Difference(index, method, answer, again)
        if flow.decisions != decisions:
            return Difference(index, method, decisions, list(flow.decisions))
    return None


def save(path: Path, flow: Flow, calls: Iterable[Call]) -> None:
    """Write a trace; messages must be JSON values, or tuples of them."""
    settings = {
        "lanes": [asdict(lane.spec) for lane in flow.lanes.values()],
        "workers": flow.workers,
        "cost": flow.cost,
        "rate": None if flow.total is None else str(flow.total.rate),
        "burst": 1 if flow.total is None else flow.total.burst,
        "guaranteed": list(flow.guaranteed.items()),
        "buffer_messages": flow.budget.messages,
        "buffer_bytes": flow.budget.size,
        "batch": flow.budget.batch,
    }
    with path.open("w") as file:
        file.write(json.dumps({"leash-trace": 1, **settings}, default=str) + "\n")
        for method, arguments, answer, decisions in calls:
            named = [[type(decision).__name__, *decision] for decision in decisions]
            file.write(json.dumps([method, arguments, answer, named]) + "\n")


def load(path: Path) -> tuple[Flow, list[Call]]:
    """A fresh Flow with the recorded settings, and the calls."""
    with path.open() as file:
        settings = json.loads(file.readline())
        if settings.get("leash-trace") != 1:
            raise ConfigError("trace", str(path), "a file that `leash.lab.trace.save` wrote")
        calls = [_call(json.loads(line)) for line in file]
    lanes = [Lane(**{**lane, "rate": _rate(lane["rate"])}) for lane in settings["lanes"]]
    flow = Flow(
        lanes,
        workers=settings["workers"],
        cost=settings["cost"],
        rate=_rate(settings["rate"]),
        burst=settings["burst"],
        guaranteed=dict(settings["guaranteed"]),
        buffer_messages=settings["buffer_messages"],
        buffer_bytes=settings["buffer_bytes"],
        batch=settings["batch"],
    )
    return flow, calls


def _rate(rate: str | float | None) -> Fraction | None:
    return None if rate is None else Fraction(rate)


def _call(line: list[Any]) -> Call:
    from leash.flow import decisions as kinds

    method, arguments, answer, decisions = line
    if method == "arrive":
        arguments[2] = [_messages(message) for message in arguments[2]]
    elif method == "done":
        arguments[1] = [_dispatch(dispatch) for dispatch in arguments[1]]
    made = []
    for name, *fields in decisions:
        if name == "Shed":
            fields[1] = _messages(fields[1])
        made.append(getattr(kinds, name)(*fields))
    dispatches = None if answer is None else [_dispatch(dispatch) for dispatch in answer]
    return Call(method, tuple(arguments), dispatches, made)


def _dispatch(fields: list[Any]) -> Dispatch:
    return Dispatch(fields[0], [_messages(message) for message in fields[1]], *fields[2:])


def _messages(message: Any) -> Any:
    """A message read from JSON, which has lists for tuples."""
    return tuple(message) if isinstance(message, list) else message
